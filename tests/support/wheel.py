"""A wheel of the tree under test."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SOURCES = "pyproject.toml", "README.md", "LICENSE", "psched", "etc", "systemd"


def build_wheel(folder: Path) -> Path:
    """Build a wheel in an empty folder, without a network, and return its path.

    It is built from a copy, because setuptools leaves files in the tree, and takes files of an
    earlier build from it.
    """
    tree = folder / "tree"
    tree.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, tree / name, ignore=ignored)
        else:
            shutil.copy(source, tree)
    subprocess.run(
        [
            sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check",
            "--no-deps", "--no-build-isolation", "--no-index", f"--wheel-dir={folder}", tree,
        ],
        check=True,
    )  # fmt: skip
    [wheel] = folder.glob("*.whl")
    return wheel

"""bin/demo, which may be interrupted."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import HANG_TIMEOUT

pytestmark = pytest.mark.extended

REPOSITORY = Path(__file__).parents[2]


def demo(folder, *, fails_at=0):
    """Run bin/demo in a folder of its own, with this interpreter and without a real master.

    Args:
        folder: the same for several runs.
        fails_at: the how-manieth call of psched fails; 0: none.
    """
    bin_ = folder / "bin"
    for name in "bin/demo", "docs/demo":
        (folder / name).parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
        if not (folder / name).exists():
            copy(REPOSITORY / name, folder / name)
    programs = {
        "bin/venv": f"echo {folder}/venv",
        "venv/bin/psched": f"""
            echo call >>{folder}/calls
            [ "$(wc -l <{folder}/calls)" != {fails_at} ] || exit 1
            PYTHONPATH={REPOSITORY} exec {sys.executable} -m psched "$@"
            """,
        "venv/bin/psched-master": "echo the master is there",
    }
    (folder / "calls").write_text("")
    (folder / "venv" / "bin").mkdir(parents=True, exist_ok=True)
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return subprocess.run(
        [bin_ / "demo"], env=env, capture_output=True, text=True, timeout=HANG_TIMEOUT, check=False
    )


def test_a_first_run_that_was_interrupted_is_begun_anew(tmp_path):
    assert demo(tmp_path, fails_at=4).returncode == 1

    done = demo(tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert "6 schedules\n" in done.stdout
    assert done.stdout.endswith("the master is there\n")
    again = demo(tmp_path)
    assert "6 schedules\n" in again.stdout
    assert "first at" not in again.stdout

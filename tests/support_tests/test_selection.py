"""support.selection: a landing leaves out what is marked so, and only that."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import support
from support import selection

TESTS = """
import pytest

REDIS = pytest.param("redis", marks=pytest.mark.redis)
on_both = pytest.mark.parametrize("kind", ["sqlite", REDIS])

def test_plain(): pass

@pytest.mark.extended
def test_extended(): pass

@pytest.mark.quiet
def test_quiet(): pass

@pytest.mark.extended
@pytest.mark.landing
def test_landing(): pass

@on_both
def test_each(kind): pass

@pytest.mark.twins
@on_both
def test_twins(kind): pass

@pytest.mark.twins
@pytest.mark.redis
def test_without_a_twin(): pass
"""


EVERY = {
    "plain", "extended", "quiet", "landing", "each[sqlite]", "each[redis]", "twins[sqlite]",
    "twins[redis]", "without_a_twin",
}  # fmt: skip


@pytest.mark.parametrize(
    ("argument", "selected"),
    [
        (".", EVERY - {"extended", "quiet", "twins[redis]"}),
        ("--extended", EVERY),
        ("test_file.py", EVERY),
        ("test_file.py::test_twins", {"twins[sqlite]", "twins[redis]"}),
    ],
)
def test_what_a_landing_does_not_need_is_left_out_unless_it_is_asked_for(
    tmp_path, argument, selected
):
    (tmp_path / "test_file.py").write_text(TESTS)
    assert collected(tmp_path, argument) == {f"test_file.py::test_{name}" for name in selected}


@pytest.mark.parametrize(
    ("mark", "marked"),
    [
        ("stores", {"stores[sqlite]", "stores[redis]", "contract[redis]"}),
        ("twins", {"e2e[sqlite]", "e2e[redis]"}),
    ],
)
def test_folders_give_their_tests_a_mark(tmp_path, mark, marked):
    (tmp_path / "pytest.ini").touch()  # names of files are relative to it
    for name in "stores", "contract", "e2e":
        folder = tmp_path / "tests" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"test_{name}.py").write_text(
            f"import pytest\n"
            f"REDIS = pytest.param('redis', marks=pytest.mark.redis)\n"
            f"@pytest.mark.parametrize('kind', ['sqlite', REDIS])\n"
            f"def test_{name}(kind): pass\n"
        )
    found = collected(tmp_path, "--extended", "-m", mark)
    assert {name.partition("::test_")[2] for name in found} == marked


def collected(folder, *arguments):
    """The tests that pytest would run."""
    options = ["-m", "pytest", "-p", "support.selection", "--collect-only", "-q"]
    process = subprocess.run(
        [sys.executable, *options, *arguments],
        cwd=folder,
        # Whoever runs this may want other options, such as -v.
        env=os.environ
        | {"PYTHONPATH": str(Path(support.__file__).parents[1]), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return set(re.findall(r"^\S+::\S+", process.stdout, re.MULTILINE))


@pytest.mark.parametrize(
    "changed", ["psched/core/model.py", "psched/stores/x.lua", "tests/stores/test_tls.py"]
)
def test_the_tests_of_the_stores_have_passed_until_something_of_the_stores_changes(
    tmp_path, monkeypatch, changed
):
    for name in changed, "psched/core/policy.py":
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    record = tmp_path / "last-full-run"
    monkeypatch.setattr(selection, "ROOT", tmp_path)
    monkeypatch.setattr(selection, "RECORD", record)
    have_passed = selection._stores_have_passed
    assert not have_passed()

    record.write_text(f"2026-01-01\nstores {selection.stores_checksum()}\n")
    assert have_passed()
    (tmp_path / "psched/core/policy.py").write_text("2")
    assert have_passed()
    (tmp_path / changed).write_text("2")
    assert not have_passed()

"""The README: its commands are run as they are printed."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.owned_process import OwnedProcess
from support.waiting import HANG_TIMEOUT, wait_for_text

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language):
    """The blocks of code in this language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


INSTALLATION, SETUP, FIRST, SECOND = blocks("sh")
[PICTURE] = blocks("text")


@pytest.fixture
def folder(tmp_path):
    """A clean folder, in which a user tries psched."""
    clean = tmp_path / "empty"
    clean.mkdir()
    return clean


def test_the_commands_work_as_printed_and_show_what_is_printed(folder, tmp_path):
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "RUNTIME_DIRECTORY": str(tmp_path),
    }
    output = tmp_path / "output"
    terminal = OwnedProcess(["/bin/bash", "-ec", FIRST], output=output, cwd=folder, env=env)
    try:
        wait_for_text(output, "hello, world!")
        second = subprocess.run(
            ["bash", "-ec", SECOND],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=HANG_TIMEOUT,
            check=False,
        )
        # The head of the output that psched logs shows.
        assert re.fullmatch("==> hello, attempt 1 of .* <==\n", second.stderr), second.stderr
        assert second.returncode == 0
        assert second.stdout.startswith("first: finished\n")
        for shown in ("hello", "disk", "psched-master"):
            assert shown in second.stdout
        wait_for_text(output, "hello, Ann!")
        terminal.send_to_group(signal.SIGINT)
        assert terminal.wait() == 0
    finally:
        terminal.close()
    printed = output.read_text()
    assert "disk: first at " in printed
    # Numbers differ from run to run: times, process ids, and the number of workers.
    for line in PICTURE.splitlines():
        pattern = re.sub(r"\d+", r"\\d+", re.escape(line))
        assert re.search(rf"^{pattern}$", printed, re.MULTILINE), line


def test_what_is_installed_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.findall(r"\[(\w+)\]'", INSTALLATION)
    assert extras == ["postgresql", "redis"]
    assert set(extras) <= set(project["optional-dependencies"])
    assert (ROOT / ".ci" / "constraints.txt").exists()
    assert "ExecStart=/opt/psched/bin/" in (ROOT / "systemd" / "psched.service").read_text()


def test_two_commands_set_everything_up():
    programs = [line.split()[0] for line in SETUP.splitlines()]
    assert programs == ["bin/demo", "bin/test"]
    for program in programs:
        assert os.access(ROOT / program, os.X_OK)


def test_psched_is_installed_before_it_is_tried():
    assert re.findall(r"^## (Install|Try it)$", README, re.MULTILINE) == ["Install", "Try it"]


def test_the_readme_is_short_and_begins_with_psched_itself():
    assert len(README.splitlines()) <= 130
    before_documentation = README.partition("## Documentation")[0]
    assert not re.search("PerfectSched|PerfectQueue|Allora", before_documentation)

"""The leash on which tests keep what they start."""

import os
import signal
import subprocess
import sys

import pytest

from support.processes import Leashed, children, title
from support.waiting import has_ended, wait_for_end, wait_for_text, wait_until

FAMILY = "setsid -f sleep 600 & sleep 600 & trap '' TERM; echo there; wait; exec sleep 600"


def sleepers(leashed):
    return [pid for pid in leashed.descendants if title(pid) == "sleep 600"]


@pytest.fixture
def leashed(tmp_path):
    """A shell that has started a child and a daemon."""
    leashed = Leashed(
        ["/bin/sh", "-c", FAMILY],
        output=tmp_path / "output",
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
    )
    wait_for_text(tmp_path / "output", "there")
    # Who has started the daemon has gone by then.
    wait_until(
        lambda: len(sleepers(leashed)) == 2 and len(leashed.descendants) == 3,
        what="the shell's child and its daemon",
    )
    yield leashed
    leashed.close()


def test_everything_that_came_of_a_command_ends_with_its_leash(leashed):
    there = leashed.descendants

    leashed.close()

    assert all(map(has_ended, there))


def test_an_orphan_of_a_command_is_still_known(leashed):
    orphans = {*sleepers(leashed)}

    leashed.send(signal.SIGKILL)

    assert leashed.wait() == -signal.SIGKILL
    assert {*leashed.descendants} == orphans


def test_thousands_who_are_dead_already_are_no_work_for_a_leash(tmp_path):
    """Each costs what one costs, however many there are: else this would take minutes."""
    family = "import os, time\nfor _ in range(10_000): os.fork() or os._exit(0)\nprint('there')"
    leashed = Leashed(
        [sys.executable, "-uISc", f"{family}; time.sleep(600)"],
        output=tmp_path / "output",
        cwd=tmp_path,
        env={},
    )
    wait_for_text(tmp_path / "output", "there")

    leashed.close()

    assert has_ended(leashed.pid)


def test_a_command_goes_when_the_test_is_killed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import pathlib, signal, sys\n"
        "from support.processes import Leashed\n"
        "leashed = Leashed(['/bin/sleep', '600'], output=pathlib.Path('output'), cwd='.', env={})\n"
        "print(leashed.pid, flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, program],
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as test:
        pid = int(test.stdout.readline())
        assert children(test.pid)

        test.kill()

    wait_for_end(pid)


def test_the_status_of_a_command_is_known_once_it_has_ended(tmp_path):
    leashed = Leashed(["/bin/sh", "-c", "exit 7"], output=tmp_path / "o", cwd=tmp_path, env={})

    assert leashed.wait() == leashed.status == 7

    leashed.close()

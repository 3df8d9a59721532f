"""Processes that end with the test, with all that they have started."""

import os
import signal
import subprocess
import sys

import pytest

from support.owned_process import OwnedProcess
from support.processes import children, title
from support.waiting import has_ended, wait_for_end, wait_for_text, wait_until

FAMILY = "setsid -f sleep 600 & sleep 600 & trap '' TERM; echo there; wait; exec sleep 600"


def sleepers(owned):
    return [pid for pid in owned.descendants if title(pid) == "sleep 600"]


@pytest.fixture
def owned(tmp_path):
    """A shell that has started a child and a daemon."""
    owned = OwnedProcess(
        ["/bin/sh", "-c", FAMILY],
        output=tmp_path / "output",
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
    )
    wait_for_text(tmp_path / "output", "there")
    # Who has started the daemon has gone by then.
    wait_until(
        lambda: len(sleepers(owned)) == 2 and len(owned.descendants) == 3,
        what="the shell's child and its daemon",
    )
    yield owned
    owned.close()


def test_everything_that_came_of_a_command_ends_with_its_owner(owned):
    there = owned.descendants

    owned.close()

    assert all(map(has_ended, there))


def test_an_orphan_of_a_command_is_still_known(owned):
    orphans = {*sleepers(owned)}

    owned.send(signal.SIGKILL)

    assert owned.wait() == -signal.SIGKILL
    assert {*owned.descendants} == orphans


def test_thousands_of_zombies_are_reaped_in_a_moment(tmp_path):
    """Each costs what one costs, however many there are: else this would take minutes."""
    family = "import os, time\nfor _ in range(3000): os.fork() or os._exit(0)\nprint('there')"
    owned = OwnedProcess(
        [sys.executable, "-uISc", f"{family}; time.sleep(600)"],
        output=tmp_path / "output",
        cwd=tmp_path,
        env={},
    )
    wait_for_text(tmp_path / "output", "there")

    owned.close()

    assert has_ended(owned.pid)


def test_a_command_goes_when_the_test_is_killed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import pathlib, signal, sys\n"
        "from support.owned_process import OwnedProcess\n"
        "output = pathlib.Path('output')\n"
        "owned = OwnedProcess(['/bin/sleep', '600'], output=output, cwd='.', env={})\n"
        "print(owned.pid, flush=True)\n"
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
    owned = OwnedProcess(["/bin/sh", "-c", "exit 7"], output=tmp_path / "o", cwd=tmp_path, env={})

    assert owned.wait() == owned.status == 7

    owned.close()

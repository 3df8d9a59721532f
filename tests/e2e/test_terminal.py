"""A master on a terminal: the terminal is closed, Ctrl-C is pressed, HUP is sent by hand."""

import contextlib
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

import support
from support.processes import kill, title
from support.waiting import wait_for_text, wait_until

pytestmark = pytest.mark.extended

SCRIPT = Path(support.__file__).with_name("on_terminal.py")


class Terminal:
    """A terminal's window in which a command runs."""

    def __init__(self, service, *command):
        self._keys = service.folder / "keys"
        words = [sys.executable, "-I", "-S", SCRIPT, self._keys, *command]
        self.process = service.start(*words, log="terminal", generation=0)
        wait_until(self._keys.exists, what="the terminal")

    def type(self, keys):
        # Without a reader, because the terminal is gone, this fails and does not wait for one.
        with contextlib.suppress(OSError):
            descriptor = os.open(self._keys, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(descriptor, keys)
            finally:
                os.close(descriptor)

    def close(self):
        self.type(b"\0")

    def shows(self, text):
        return wait_for_text(self.process.log, text)

    @property
    def master(self):
        """The pid of the master that runs in it."""

        def only() -> int | None:
            below = self.process.descendants
            found = [pid for pid in below if title(pid).startswith("psched master")]
            return found[0] if len(found) == 1 else None

        # A process that the master has just forked still has its title.
        return wait_until(only, what="exactly one master")


@pytest.fixture
def log(service):
    """The log of a service with one task, which runs until the gate is opened."""
    service.configure(log=str(service.folder / "psched.log"))
    service.add("long", data={"until": "gate"})
    return service.folder / "psched.log"


def start(service, kind):
    """Start a master on a terminal, by itself or by a line that is typed in a shell."""
    master = [*service.master_command, "-c", service.config.name]
    if kind == "psched run":
        return Terminal(service, *service.psched_command, "run")
    if kind == "psched-master":
        return Terminal(service, *master)
    window = Terminal(service, "/bin/bash", "--norc", "--noprofile", "-i")
    line = {
        "in the foreground of a shell": "{}\n",
        "in the background of a shell": "{} &\n",
        "nohup": "nohup {} &\n",
    }[kind]
    window.type(line.format(shlex.join(master)).encode())
    return window


CLOSED = (
    "psched run",
    "psched-master",
    "in the foreground of a shell",
    "in the background of a shell",
)


@pytest.mark.parametrize("kind", CLOSED)
def test_when_the_terminal_is_closed_the_master_stops(service, log, kind):
    window = start(service, kind)
    service.runs.wait("long")
    master = window.master

    window.close()

    wait_for_text(log, "the terminal was closed")
    wait_for_text(log, "stopping: running tasks may finish")
    service.open_gate("gate")
    service.wait_for_finish("long")
    wait_until(lambda: not window.process.descendants, what=f"the end of master {master}")
    assert "master stopped" in log.read_text()
    assert service.runs.runs("long")[0].completed


@pytest.mark.parametrize("kind", CLOSED)
def test_a_hup_that_somebody_sends_restarts_although_there_is_a_terminal(service, log, kind):
    window = start(service, kind)
    service.runs.wait("long")

    kill(window.master, signal.SIGHUP)

    wait_for_text(log, "generation 2 serves")
    service.open_gate("gate")
    service.wait_for_finish("long")
    kill(window.master, signal.SIGTERM)
    wait_for_text(log, "master stopped")


def test_nohup_outlives_the_terminal_and_hup_restarts(service, log):
    window = start(service, "nohup")
    service.runs.wait("long")
    master = window.master

    window.close()
    wait_until(lambda: window.process.status is not None, what="the end of the shell")
    before = log.read_text().count(" serves, ")
    kill(master, signal.SIGHUP)

    wait_until(lambda: log.read_text().count(" serves, ") > before, what="a restart")
    # A master that stops would claim nothing more.
    service.add("next")
    service.wait_for_finish("next")
    assert title(master)
    service.open_gate("gate")
    service.wait_for_finish("long")
    kill(master, signal.SIGTERM)
    wait_for_text(log, "master stopped")


def test_ctrl_c_says_what_runs_until_when_and_how_to_hurry(service, log):
    service.configure(graceful_timeout=600, graceful_kill_limit=70)
    window = start(service, "psched run")
    service.runs.wait("long")

    window.type(b"\x03")
    shown = window.shows("running: long.1000000000 (recorder, ")
    assert "stopping: running tasks may finish until " in shown
    assert " (600 s), then get TERM, and KILL 70 s later; press Ctrl-C again" in shown
    # Whether it comes within the first second or later, it is answered.
    window.type(b"\x03")
    wait_until(
        lambda: "press it again" in (text := window.process.text) or "at once:" in text,
        what="an answer to the second Ctrl-C",
    )

    def hurried():
        if "stopping at once" in window.process.text:
            return True
        window.type(b"\x03")
        return False

    wait_until(hurried, what="a stop at once")
    assert window.process.wait() == 0
    assert service.runs.runs("long")[0].end == "ProcessStopError: shutdown"
    assert "running: long.1000000000 (recorder, " in log.read_text()


def test_what_the_log_shows_on_the_terminal_is_not_said_twice(service, log):
    service.configure(log=None)
    window = start(service, "psched-master")
    service.runs.wait("long")

    window.type(b"\x03")
    window.shows("running: long.1000000000 (recorder, ")
    service.open_gate("gate")

    assert window.process.wait() == 0
    assert window.process.text.count("stopping: running tasks") == 1
    assert "press Ctrl-C again to stop them at once" in window.process.text
    assert not log.exists()

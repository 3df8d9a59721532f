"""A HUP of a terminal that is gone, told from a HUP that a person sends."""

import contextlib
import fcntl
import json
import logging
import os
import pty
import select
import signal
import termios
from pathlib import Path

import pytest

from psched.base.log import Log, start
from psched.master.terminal import ControllingTerminal
from psched.process.signals import SignalInbox
from psched.testing import ManualClock
from support.isolated import isolated

HUP, TERM, USR2 = signal.SIGHUP, signal.SIGTERM, signal.SIGUSR2


def what_hup_means(case):
    """Lead the session of a terminal, or of none, and close the terminal; what HUP means then."""
    pid = os.fork()  # noqa: TID251  # this process leads a group, so it cannot lead a new session
    if not pid:
        Path("found").write_text(json.dumps(before_and_after(case)))
        os._exit(0)
    os.waitpid(pid, 0)
    return json.loads(Path("found").read_text())


def before_and_after(case):
    clock, arrived = ManualClock(), {HUP, USR2}
    os.setsid()
    window, screen = pty.openpty()
    if case != "no terminal":
        fcntl.ioctl(screen, termios.TIOCSCTTY, 0)
    if case == "nohup":
        signal.signal(HUP, signal.SIG_IGN)  # noqa: TID251
    terminal = ControllingTerminal(Log(None, "master"), clock)
    SignalInbox([HUP])
    terminal.look()
    before = terminal.translate(arrived)
    if case.startswith("HUP"):
        arrived = {USR2}
        clock.advance(9 if case == "HUP first" else 11)
    os.close(screen)
    os.close(window)
    if case == "noticed before":
        terminal.look()
        clock.advance(9)
    elif case == "outlived":
        terminal.look()
        clock.advance(11)
    elif case == "stopped meanwhile":
        clock.advance(1000)
    return sorted(before), sorted(terminal.translate(arrived)), sorted(terminal.translate({USR2}))


def what_is_said(case):
    """Say a line on a terminal whose window reads late, or which has hardly room; what is read."""
    if (pid := os.fork()) == 0:  # noqa: TID251  # see `what_hup_means`
        Path("said").write_bytes(say_on_terminal(case))
        os._exit(0)
    os.waitpid(pid, 0)
    return Path("said").read_bytes().decode()


def say_on_terminal(case):
    os.setsid()
    window, screen = pty.openpty()
    fcntl.ioctl(screen, termios.TIOCSCTTY, 0)
    os.dup2(screen, 2)
    shown = b""
    if case == "full":
        os.set_blocking(2, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(2, b"." * 10):
                pass
        os.set_blocking(2, True)
        poller = select.poll()
        poller.register(2, select.POLLOUT)
        while not poller.poll(0):  # until there is room, but less than the line needs
            shown += os.read(window, 1)
    if case == "stopped":
        termios.tcflow(2, termios.TCOOFF)
    log = start(Path("psched.log"), "info", "master")
    ControllingTerminal(log, ManualClock()).say("a\x1b]0;b\x07\nc " + "x" * 2000)
    if case == "stopped":
        termios.tcflow(2, termios.TCOON)
    os.set_blocking(window, False)
    with contextlib.suppress(BlockingIOError):
        while part := os.read(window, 4096):
            shown += part
    return shown


def test_a_line_on_the_terminal_is_visible_and_one_line():
    said = isolated(what_is_said, "free")
    assert said == r"psched-master: a\x1b]0;b\x07\nc " + "x" * 2000 + "\r\n"


def test_a_terminal_with_too_little_room_does_not_block_the_master():
    assert "psched-master: a" in isolated(what_is_said, "full")


def test_a_terminal_whose_output_is_stopped_does_not_block_the_master():
    assert isolated(what_is_said, "stopped") == ""


def logged_in_background():
    """Log a line from the background, where the terminal stops writers; what is read."""
    if (pid := os.fork()) == 0:  # noqa: TID251  # see `what_hup_means`
        os.setsid()
        window, screen = pty.openpty()
        fcntl.ioctl(screen, termios.TIOCSCTTY, 0)
        modes = termios.tcgetattr(screen)
        modes[3] |= termios.TOSTOP
        termios.tcsetattr(screen, termios.TCSANOW, modes)
        if (writer := os.fork()) == 0:  # noqa: TID251
            signal.alarm(10)
            os.setpgid(0, 0)
            os.dup2(screen, 2)
            inbox = SignalInbox([signal.SIGTTOU])
            start(None, "info", "master")
            logging.getLogger("psched").info("hello")
            os._exit(len(inbox.take()))
        _, status = os.waitpid(writer, 0)
        Path("ended").write_text(str(os.waitstatus_to_exitcode(status)))
        os.set_blocking(window, False)
        with contextlib.suppress(BlockingIOError):
            Path("said").write_bytes(os.read(window, 4096))
        os._exit(0)
    os.waitpid(pid, 0)
    return Path("ended").read_text(), Path("said").read_text()


def test_a_master_in_the_background_of_a_terminal_that_stops_writers_logs_and_does_not_spin():
    ended, said = isolated(logged_in_background)
    assert ended == "0"
    assert "INFO    master hello" in said


@pytest.mark.parametrize(
    ("case", "meaning"),
    [
        ("closed", TERM),
        ("noticed before", TERM),
        ("stopped meanwhile", TERM),
        ("outlived", HUP),
        ("no terminal", HUP),
        ("nohup", HUP),
        ("HUP first", TERM),
        ("HUP long before", None),
    ],
)
def test_hup_stops_only_if_the_terminal_is_just_gone(case, meaning):
    before, after, other = isolated(what_hup_means, case)
    assert before == [HUP, USR2]
    assert after == sorted({meaning, USR2} - {None})
    assert other == [USR2]

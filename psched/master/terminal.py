"""The terminal from which a master was started, and what its user is told about a stop.

A terminal sends HUP when it is closed, and people send HUP to request a restart. The two are told
apart by /dev/tty: when a terminal is closed, the kernel first takes it from all processes of its
session, so that they cannot open /dev/tty any more, and then sends HUP. Some programs that show a
terminal (konsole, screen) send HUP to its shell before they close it, and the shell passes HUP on.
So HUP can also arrive shortly before the terminal is gone.

A HUP is always a request to restart if the master never had a terminal (systemd, setsid), or if
its starter ignored HUP (nohup).
"""

import errno
import logging
import os
import signal
import sys
import time
from collections.abc import Collection
from contextlib import suppress

from typing_extensions import override

from psched.base.clock import Clock
from psched.base.log import Log
from psched.base.texts import visible
from psched.master.workers import Workers

_log = logging.getLogger("psched.master")

_LONGEST_HANG_UP = 10.0
"""The most seconds between the loss of the terminal and a HUP because of it, whichever is first. A
later HUP was sent by a person, to a master that has outlived its terminal."""

_SAME_KEY_PRESS = 1.0
"""Seconds from the beginning of a stop for which INT does not hurry it, because one key press can
send INT twice: a wrapper such as sudo also receives it, and passes it on."""

_REPORT_TIMEOUT = 1.0
"""Seconds for which `StopNotice` waits for the workers to report what they run."""

_MOST_NAMED = 10  # the most running tasks that `StopNotice` names
_LONGEST_NAME = 100  # the most characters of a running task's name in a message of `StopNotice`


class Terminal:
    """No terminal; the base class of terminals."""

    has_user = False  # whether a user can press Ctrl-C to stop the master
    # Whether it sends WINCH when the size of its window changes, so that the master must ignore it.
    has_window = False

    def look(self) -> None:
        """Note whether the terminal is gone; called in each tick of the master."""

    def translate(self, arrived: Collection[signal.Signals]) -> Collection[signal.Signals]:
        """Return the signals that have arrived, with TERM for a HUP of a closed terminal.

        Called after each sleep of the master, even if no signal has arrived.
        """
        return arrived

    def say(self, text: str) -> None:
        """Show the user a line on standard error, unless the user sees it in the log."""


class ControllingTerminal(Terminal):
    """The controlling terminal of this process, if there is one.

    Create it before psched handles HUP, because it must know whether HUP is ignored.
    """

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        # None: there is no terminal, or a HUP that it sends must not stop the master.
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._expected = not ignored and _error_of_opening() is None
        self._gone_since: float | None = None
        self._hung_up: float | None = None
        self.has_window = sys.stdin is not None and sys.stdin.isatty()

    @override
    def look(self) -> None:
        # Other errors, such as EMFILE, do not tell whether the terminal is gone.
        if self._expected and _error_of_opening() in (errno.ENXIO, errno.EIO):
            self._expected = False
            self._gone_since = self._clock.monotonic()

    @override
    def translate(self, arrived: Collection[signal.Signals]) -> Collection[signal.Signals]:
        now = self._clock.monotonic()
        if signal.SIGHUP in arrived:
            self._hung_up = now
        hung_up = self._hung_up
        if hung_up is None or now - hung_up > _LONGEST_HANG_UP:
            return arrived
        self.look()
        gone = self._gone_since
        if gone is None or hung_up - gone > _LONGEST_HANG_UP:
            return arrived
        self._hung_up = None
        _log.info("the terminal was closed")
        return ({*arrived} - {signal.SIGHUP}) | {signal.SIGTERM}

    @property
    @override
    def has_user(self) -> bool:  # type: ignore[override]  # the base class has a constant
        """Whether this process is in the foreground of the terminal on standard error."""
        try:
            return os.tcgetpgrp(2) == os.getpgrp()
        except OSError:  # standard error is no terminal, or another one
            return False

    @override
    def say(self, text: str) -> None:
        if not self.has_user or (self._log.is_on_terminal and _log.isEnabledFor(logging.INFO)):
            return
        # The terminal is opened anew, because O_NONBLOCK on standard error would also apply to the
        # shell. Without O_NONBLOCK, the write would block the master while the user has stopped the
        # output by Ctrl-S, or while the window does not read it. What does not fit is dropped.
        flags = os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
        with suppress(OSError):
            descriptor = os.open("/dev/tty", flags)
            try:
                os.write(descriptor, f"psched-master: {visible(text)}\n".encode())
            finally:
                os.close(descriptor)


def _error_of_opening() -> int | None:
    """Open and close the controlling terminal; return the error's number, or None if it exists."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno
    return None


class StopNotice:
    """Tells the user, in the log and on the terminal, what a stop of the master waits for."""

    def __init__(self, workers: Workers, terminal: Terminal, clock: Clock) -> None:
        self._workers = workers
        self._terminal = terminal
        self._clock = clock
        self._begun = 0.0
        self._asked: float | None = None

    def begin(self) -> None:
        """Say until when tasks may run, and ask the workers what they run; see `step`."""
        self._begun = self._asked = self._clock.monotonic()
        ready = [worker for worker in self._workers if worker.ready]
        for worker in ready:
            worker.tell(report=True)
        if not ready:
            self.say("stopping")
            return
        timeout = max(worker.spec.graceful_timeout for worker in ready)
        limit = max(worker.spec.kill_limit for worker in ready)
        if timeout > 0:
            until = time.localtime(self._clock.wall() + timeout)
            shown = time.strftime("%H:%M:%S %Z", until)
            text = f"running tasks may finish until {shown} ({timeout:g} s), then get TERM"
        else:
            text = "running tasks get TERM now"
        how = "press Ctrl-C again" if self._terminal.has_user else "send QUIT"
        self.say(f"stopping: {text}, and KILL {limit:g} s later; {how} to stop them at once")

    def step(self) -> None:
        """Name the running tasks once, as soon as all workers have reported them."""
        asked, now = self._asked, self._clock.monotonic()
        if asked is None:
            return
        ready = [worker for worker in self._workers if worker.ready]
        if now < asked + _REPORT_TIMEOUT and any(worker.reported < asked for worker in ready):
            return
        self._asked = None
        tasks = [
            f"{task['occurrence'][:_LONGEST_NAME]} ({task['type'][:_LONGEST_NAME]},"
            f" {max(0, task['running_for']):.0f} s)"
            for worker in ready
            if worker.reported >= asked
            for task in worker.report["tasks"]
        ]
        if tasks:
            more = f" and {len(tasks) - _MOST_NAMED} more" if len(tasks) > _MOST_NAMED else ""
            self.say(f"running: {', '.join(tasks[:_MOST_NAMED])}{more}")

    def hurries(self, arrived: Collection[signal.Signals]) -> bool:
        """Return whether signals that have arrived during a stop require to stop at once; say so.

        QUIT does, and INT if it does not come from the key press that has begun the stop.
        """
        later = self._clock.monotonic() - self._begun >= _SAME_KEY_PRESS
        if signal.SIGQUIT in arrived or (signal.SIGINT in arrived and later):
            self.say("stopping at once: running tasks are stopped and released")
            return True
        if signal.SIGINT in arrived:
            self.say(
                f"a second Ctrl-C within {_SAME_KEY_PRESS:g} s does not count; press it again to"
                " stop at once"
            )
        return False

    def say(self, text: str) -> None:
        """Log a line, and show it on the terminal if the user does not see the log."""
        _log.info("%s", text)
        self._terminal.say(text)

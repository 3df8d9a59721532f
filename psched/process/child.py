"""A forked process as its parent sees it.

::

    spawn ─▶ starting ── "ready" ─▶ ready ── told to stop, too slow ─▶ on the kill ladder ─▶ reaped
                 └────────── not ready in time ──────────────────────────▶   TERM … KILL

A worker is a child of its master. A runner is treated as a child of its worker, with other time
limits, although for the kernel it is a child of the worker's fork server (see
`psched.runner.fork_server`).
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psched.process import tree
from psched.process.link import Link

if TYPE_CHECKING:
    from psched.process.kill_ladder import KillLadder


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended.

    Attributes:
        pid: the process's pid.
        status: its exit status; None: a signal killed it.
        signal: the signal that killed it; None: it exited.
    """

    pid: int
    status: int | None
    signal: int | None

    def __str__(self) -> str:
        if self.signal is not None:
            return f"was killed by {_name(self.signal)}"
        return f"exited with status {self.status}"


class Child:
    """A forked process and the link to it.

    Args:
        pid: the child's pid.
        link: the parent's end of the link.
        now: seconds of the monotonic clock.

    Attributes:
        started: when the child was forked, in seconds of the monotonic clock.
        heard: when the child's last message arrived, in seconds of the monotonic clock.
        ready: the child has reported that it is ready.
        ladder: the schedule of the signals that stop the child; None: it is not being stopped.
        exit: how the child ended; None: it has not been reaped.
        last_words: the messages of the child that were still unread when it was reaped.
        stuck: the child has ended and has left a process that survives KILL at present.
        cut_off: the child is being killed because it has sent an invalid message.
    """

    def __init__(self, pid: int, link: Link, now: float) -> None:
        self.pid = pid
        self.link = link
        self.started = now
        self.heard = now
        self.ready = False
        self.ladder: KillLadder | None = None
        self.exit: Exit | None = None
        self.last_words: list[Any] = []
        self.stuck = False
        self.cut_off = False

    def send(self, number: signal.Signals) -> None:
        """Send the child a signal; do nothing once it has been reaped: its pid may be reused."""
        if self.exit is None:
            tree.send(self.pid, number)

    def reaped(self, how: Exit) -> None:
        """Note how the child ended, and read its last messages into `last_words`."""
        self.exit = how
        try:
            self.last_words = self.link.receive_all()
        finally:
            self.link.close()


def reap() -> Iterator[Exit]:
    """Collect every child that has exited, including orphans that this process has adopted."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        yield Exit(pid, code if code >= 0 else None, -code if code < 0 else None)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"

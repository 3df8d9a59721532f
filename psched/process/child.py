"""A forked process as its parent sees it.

::

    spawn ─▶ starting ── "ready" ─▶ ready ── told to stop, too slow ─▶ on the kill ladder ─▶ reaped
                 └────────── not ready in time ──────────────────────────▶   TERM … KILL

A worker is its master's child, and a runner is its worker's, with other limits. For the kernel a
runner is the child of its worker's fork server (see `psched.runner.fork_server`).
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
        pid: the process.
        link: the parent's end of the link.
        now: seconds of the monotonic clock.

    Attributes:
        started: when it was forked.
        heard: when its last message arrived.
        ready: it has said that it is ready.
        ladder: the signals that it is being stopped with; None: it is not being stopped.
        exit: how it ended; None: it has not been reaped.
        last_words: the messages that had not been received when it was reaped.
        stuck: it has ended, and left a process that cannot be killed at present.
        cut_off: it is being killed because it has sent an invalid message.
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
        """Send the child a signal, unless it has been reaped: its pid may be reused then."""
        if self.exit is None:
            tree.send(self.pid, number)

    def reaped(self, how: Exit) -> None:
        """Note how the child ended, and keep the messages that it had sent before."""
        self.exit = how
        try:
            self.last_words = self.link.receive_all()
        finally:
            self.link.close()


def reap() -> Iterator[Exit]:
    """Collect every child that has exited, including orphans that became ours."""
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

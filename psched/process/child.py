"""One forked process as its parent sees it.

::

    spawn ─▶ starting ── "ready" ─▶ ready ── stop asked, limit passed ─▶ on the ladder ── reaped
                 └────────── not ready in time ───────────────────────────▶   TERM … KILL

Master over worker and worker over runner are this same relation with different numbers, though a
runner is its fork server's child in the eyes of the kernel (see `forkserver`).
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
        pid: the process.
        status: its exit status, or None if a signal killed it.
        signal: the signal that killed it, or None.
    """

    pid: int
    status: int | None
    signal: int | None

    def __str__(self) -> str:
        if self.signal is not None:
            return f"was killed by {_name(self.signal)}"
        return f"exited with status {self.status}"


class Child:
    """A forked process and the line to it.

    Args:
        pid: the process.
        link: this side's end of the line.
        now: seconds of the monotonic clock.

    Attributes:
        started: when it was forked.
        heard: when it last said anything.
        ready: it has said that it is ready.
        ladder: set while it is being stopped by signals.
        exit: how it ended, once it has been reaped.
        last_words: the messages that were still in the line then.
        stuck: it has left behind what cannot be killed at present.
        cut_off: it is being killed for what it has sent.
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
        """Send it a signal, if it has not been reaped: its pid may be another's by then."""
        if self.exit is None:
            tree.send(self.pid, number)

    def reaped(self, how: Exit) -> None:
        """Take down how it ended, and what it had said before."""
        self.last_words = self.link.receive_all()
        self.exit = how
        self.link.close()


def reap() -> Iterator[Exit]:
    """Collect every child that has ended, ours and adopted ones."""
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

"""A runner's side of being stopped: TERM becomes an exception, or a call, in a handler's work."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from psched.errors import ProcessStopError
from psched.supervisor.note import Reason, StopNote

_DROPPED = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
"""What may be sent to every process of a service at once, and costs no task."""


class Stop:
    """Receives TERM for the task that runs in this process.

    Args:
        note: says whether TERM is the worker's, and why it comes.
    """

    def __init__(self, note: StopNote) -> None:
        self._note = note
        self._kill: Callable[[str], object] | None = None
        self._running = False
        self._raised = False
        self._guarded = False
        self._pending = False
        signal.signal(signal.SIGTERM, self._arrived)
        for number in _DROPPED:
            # Not SIG_IGN: what a task executes would inherit that.
            signal.signal(number, lambda _number, _frame: None)
        self._mask: set[int] = set()
        os.register_at_fork(
            before=self._hold, after_in_parent=self._let_in, after_in_child=self._forget
        )

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While a task runs."""
        self._kill, self._running, self._raised, self._pending = None, True, False, False
        try:
            # It may have been stopped, and sent TERM, before it could begin.
            self._act()
            yield
        finally:
            self._running = False

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Hold TERM back: what is half read from the link must not be lost."""
        self._guarded = True
        try:
            yield
        finally:
            self._guarded = False
            if self._pending:
                self._pending = False
                self._act()

    def offer(self, kill: Callable[[str], object]) -> None:
        """The handler has a ``kill(reason)`` of its own: TERM calls that, as often as it comes.

        Otherwise it raises a `ProcessStopError`, once: what a handler does to clean up is not
        to be interrupted by the next TERM.
        """
        self._kill = kill

    def _hold(self) -> None:
        """A handler forks: what is sent to the child is not to meet our handler there."""
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))

    def _let_in(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _forget(self) -> None:
        """In the child that a handler has forked: TERM ends it, as its maker expects."""
        if signal.getsignal(signal.SIGTERM) == self._arrived:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._let_in()

    def _arrived(self, _number: int, _frame: FrameType | None) -> None:
        if self._guarded:
            self._pending = True
        else:
            self._act()

    def _act(self) -> None:
        reason = self._note.read()
        if not self._running or reason is Reason.NONE:
            return  # somebody else's, sent to everybody
        if self._kill is not None:
            self._kill(reason.name.lower())
        elif not self._raised:
            self._raised = True
            raise ProcessStopError(reason.name.lower())

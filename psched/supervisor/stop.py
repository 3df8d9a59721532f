"""A runner's side of being stopped: TERM becomes an exception, or a call, in a handler's work."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from psched.errors import ProcessStopError
from psched.supervisor.note import Reason, StopNote
from psched.supervisor.signals import is_received, receive


class Stop:
    """Receives TERM for the task that runs in this process.

    To be used in a child that was forked with the handlers of an inbox, but for CHLD: a handler's
    own children may be what it waits for. What else may be sent to every process of a service at
    once, such as HUP and USR1, is received too, and costs no task.

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
        receive(self._arrived)
        self._mask: set[int] = set()
        os.register_at_fork(
            before=self._hold, after_in_parent=self._let_in, after_in_child=self._forget
        )

    def begin(self) -> None:
        """A task runs from here on; raises if it has been stopped before it could begin."""
        self._kill, self._running, self._raised, self._pending = None, True, False, False
        self._act()

    def end(self) -> None:
        """It runs no longer."""
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
        if is_received(signal.SIGTERM):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._let_in()

    def _arrived(self, number: int) -> None:
        if number != signal.SIGTERM:
            return
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

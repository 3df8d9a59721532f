"""A runner's side of being stopped: TERM becomes an exception, or a call, in a handler's work.

Python calls some functions where no exception can leave them: the hooks of `os.register_at_fork`,
``__del__``, callbacks of weak references and of the garbage collector. It reports an exception
that is raised there to `sys.unraisablehook`, and ignores it. If TERM arrives in such a function,
the handler would never learn that it is to stop. That hook shows exactly when this has happened;
then a timer sends TERM to this process again, until it arrives where it can be raised. Whoever
has caught the exception is cleaning up, and is left alone.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from psched.base.errors import ProcessStopError
from psched.process.deadman import Timer
from psched.process.signals import is_received, receive
from psched.runner.stop_flags import Reason, StopFlags

_AGAIN = 0.05
"""Seconds until TERM comes again that came where nothing can be raised."""

_MARK = "_psched_stop"
"""The attribute of an exception that tells that TERM has raised it."""


class Stop:
    """Receives TERM for the task that runs in this process.

    To be used in a child that was forked with the handlers of an inbox, but for CHLD: a handler's
    own children may be what it waits for. What else may be sent to every process of a service at
    once, such as HUP and USR1, is received too, and costs no task.

    Args:
        note: says whether TERM is the worker's, and why it comes.
    """

    def __init__(self, note: StopFlags) -> None:
        self._note = note
        self._kill: Callable[[str], object] | None = None
        self._running = False
        self._raised = False
        self._guarded = False
        self._forking = False
        self._pending = False
        self._timer: Timer | None = None
        self._hook: object = None
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
        self._forking = True  # nothing is raised from here on
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))

    def _let_in(self) -> None:
        if not self._forking:
            return  # TERM was raised in `_hold` before it could hold anything
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        self._forking = False
        if self._pending:
            self._pending = False
            self._send_again()

    def _forget(self) -> None:
        """In the child that a handler has forked: TERM ends it, as its maker expects."""
        if is_received(signal.SIGTERM):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._pending = False  # that was for the parent
        self._let_in()

    def _arrived(self, number: int) -> None:
        if number != signal.SIGTERM:
            return
        if self._guarded or self._forking:
            self._pending = True
        else:
            self._act()

    def _act(self) -> None:
        reason = self._note.read()
        if not self._running or reason is Reason.NONE:
            return  # somebody else's, sent to everybody
        self._watch_for_the_ignored()
        try:
            self._interrupt(reason.name.lower())
        except BaseException as error:
            setattr(error, _MARK, True)
            raise

    def _interrupt(self, reason: str) -> None:
        if self._kill is not None:
            self._kill(reason)
        elif not self._raised:
            self._raised = True
            raise ProcessStopError(reason)

    def _watch_for_the_ignored(self) -> None:
        """Be told of exceptions that Python ignores, before whoever else is told of them."""
        before = sys.unraisablehook
        if before is self._hook:
            return

        def hook(unraisable: "sys.UnraisableHookArgs") -> None:
            if getattr(unraisable.exc_value, _MARK, False):
                self._was_ignored()
            else:
                before(unraisable)

        self._hook = sys.unraisablehook = hook

    def _was_ignored(self) -> None:
        """What TERM has raised was ignored: raise it again soon, where the handler gets it."""
        guarded = self._guarded
        self._guarded = True  # nor is anything to be raised in here
        self._raised = self._pending = False
        self._send_again()
        self._guarded = guarded

    def _send_again(self) -> None:
        # By the kernel: Python has nobody who could do it outside of this call but a thread.
        with suppress(OSError):  # it has no timer to give; KILL will do
            if self._timer is None:
                self._timer = Timer(signal.SIGTERM)
            self._timer.set(time.clock_gettime(time.CLOCK_BOOTTIME) + _AGAIN)

"""How a task is stopped: in its runner, TERM becomes an exception, or a call of the handler's.

Python calls some functions from which no exception can propagate: the hooks of
`os.register_at_fork`, ``__del__``, callbacks of weak references and of the garbage collector. An
exception that is raised there is reported to `sys.unraisablehook`, and ignored. If TERM arrived in
such a function, the handler would never learn that it is to stop. So that hook is watched: if it
gets the exception, a timer sends TERM to this process again, until the exception can propagate. A
handler that has caught the exception is cleaning up, and is left alone.
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
"""Seconds after which TERM is sent again, if it arrived where no exception can propagate."""

_MARK = "_psched_stop"
"""The attribute that marks an exception which TERM has raised."""


class Stop:
    """Receives TERM for the task that runs in this process.

    To be used in a child that was forked with the handlers of an inbox, except for CHLD, because a
    handler may wait for its own children. Other signals that may be sent to every process of a
    service at once, such as HUP and USR1, are received too, and do not stop the task.

    Args:
        stop_flags: tell whether the worker has sent TERM, and why.
    """

    def __init__(self, stop_flags: StopFlags) -> None:
        self._stop_flags = stop_flags
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
            before=self._before_fork,
            after_in_parent=self._after_fork,
            after_in_child=self._after_fork_in_child,
        )

    def begin(self) -> None:
        """Note that a task begins; raise if it was stopped before it could begin."""
        self._kill, self._running, self._raised, self._pending = None, True, False, False
        self._act()

    def end(self) -> None:
        """Note that the task has ended."""
        self._running = False

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Hold TERM back: a message that is half read from the link must not be lost."""
        self._guarded = True
        try:
            yield
        finally:
            self._guarded = False
            if self._pending:
                self._pending = False
                self._act()

    def offer(self, kill: Callable[[str], object]) -> None:
        """Have every TERM call the handler's own ``kill(reason)``.

        Otherwise TERM raises a `ProcessStopError`, once, because a handler that is cleaning up must
        not be interrupted by the next one.
        """
        self._kill = kill

    def _before_fork(self) -> None:
        """Block TERM while the task forks: in the child it must not run our signal handler."""
        self._forking = True  # nothing is raised from here on
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))

    def _after_fork(self) -> None:
        if not self._forking:
            return  # TERM was raised in `_before_fork`, before anything was blocked
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        self._forking = False
        if self._pending:
            self._pending = False
            self._send_again()

    def _after_fork_in_child(self) -> None:
        """In the child that a task has forked: TERM ends it, as the task expects."""
        if is_received(signal.SIGTERM):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._pending = False  # that TERM was for the parent
        self._after_fork()

    def _arrived(self, number: int) -> None:
        if number != signal.SIGTERM:
            return
        if self._guarded or self._forking:
            self._pending = True
        else:
            self._act()

    def _act(self) -> None:
        reason = self._stop_flags.read()
        if not self._running or reason is Reason.NONE:
            return  # TERM to every process of the service, not by the worker
        self._watch_unraisable()
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

    def _watch_unraisable(self) -> None:
        """Watch for ignored TERM exceptions; pass all others on to the previous hook."""
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
        """The exception that TERM has raised was ignored: raise it again soon."""
        guarded = self._guarded
        self._guarded = True  # no exception can propagate from here either
        self._raised = self._pending = False
        self._send_again()
        self._guarded = guarded

    def _send_again(self) -> None:
        # The kernel's timer does it, because in Python only a thread could act after this call.
        with suppress(OSError):  # there is no timer left, and KILL will end the task
            if self._timer is None:
                self._timer = Timer(signal.SIGTERM)
            self._timer.set(time.clock_gettime(time.CLOCK_BOOTTIME) + _AGAIN)

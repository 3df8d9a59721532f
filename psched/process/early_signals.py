"""Handles signals to a future master while that process is still loading its modules.

Without handlers, a signal would end the process as if it had crashed. A signal that asks the
process to stop makes it exit at once with status 0, because it has no workers to stop yet. Signals
that ask it to restart or to reopen the log stay pending until the process creates a `SignalInbox`.
This module imports nothing that takes long to load, so that the handlers are set early.
"""

import os
import signal
from types import FrameType

_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_LATER = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def receive() -> None:
    """Handle TERM, INT and QUIT by exiting with status 0, and keep HUP, USR1 and USR2 pending.

    Call this before everything else. The handlers stay set until a `SignalInbox` replaces them.
    """
    own_children()
    for number in _STOP:
        signal.signal(number, _leave)
    signal.pthread_sigmask(signal.SIG_SETMASK, _LATER)


def own_children() -> None:
    """Let this process wait for its children, also if its parent ignored CHLD.

    A program inherits that from the one that executed it. The kernel would then reap each child,
    and every child would seem to have succeeded.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def hold() -> None:
    """Block the signals that `receive` handles, before this process executes a program.

    The signals stay pending until that program calls `receive`.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_STOP, *_LATER))


def _leave(_number: int, _frame: FrameType | None) -> None:
    # Exit without an exception, because a module that is being imported could catch an exception.
    os._exit(0)

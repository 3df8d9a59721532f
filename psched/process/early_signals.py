"""Signals to a process that will be a master, while it is loading its modules.

Without handlers, a signal would end it as if it had crashed. As it has no workers to stop yet, it
exits at once when it is asked to stop. Requests to restart and to reopen the log stay pending until
it receives signals by a `SignalInbox`. Nothing that takes time is imported here.
"""

import os
import signal
from types import FrameType

_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_LATER = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def receive() -> None:
    """Exit with status 0 when asked to stop, and keep other signals pending.

    Call it before everything else. It lasts until a `SignalInbox` takes over.
    """
    for number in _STOP:
        signal.signal(number, _leave)
    signal.pthread_sigmask(signal.SIG_SETMASK, _LATER)


def hold() -> None:
    """Keep all signals pending for the program that this process executes; it calls `receive`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_STOP, *_LATER))


def _leave(_number: int, _frame: FrameType | None) -> None:
    # No exception is raised, because a module that is being imported could catch it.
    os._exit(0)

"""Signals to a process that is about to be a master, and has not yet loaded what it needs for that.

Without handlers they would end it, as if it had died. In its first moments a master has nothing to
stop: whoever asks it to stop is obeyed at once. A restart or a new log is for later, when it
receives signals by a `SignalInbox`. Nothing is imported here that takes time.
"""

import os
import signal
from types import FrameType

_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_LATER = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def receive() -> None:
    """Exit with status 0 when asked to stop, and keep other signals waiting.

    To be called before everything else; until a `SignalInbox` takes over.
    """
    for number in _STOP:
        signal.signal(number, _leave)
    signal.pthread_sigmask(signal.SIG_SETMASK, _LATER)


def hold() -> None:
    """Keep them waiting for the program that this process executes, which calls `receive`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_STOP, *_LATER))


def _leave(_number: int, _frame: FrameType | None) -> None:
    # Not by an exception, which whatever is being imported could catch.
    os._exit(0)

"""System calls that Python's standard library does not offer (Linux only)."""

import ctypes
import os
import signal
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_SS_DISABLE = 2

# A plain number, because a runner that uses the enumeration copies five pages of memory.
_KILL = int(signal.SIGKILL)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)


def adopt_orphans() -> None:
    """Become the subreaper of everything below this process: prctl(2)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def allow_dump(*, allowed: bool) -> None:
    """Set whether this process may be dumped, and so be read by its own user; see `secrecy`."""
    _prctl(_PR_SET_DUMPABLE, int(allowed))


def die_with_parent(parent: int, number: int = _KILL) -> None:
    """Have the kernel send this process a signal when its parent dies; see prctl(2).

    The parent must have forked from its main thread, because the kernel sends the signal when the
    thread that has forked ends.

    Args:
        parent: the parent's pid. If the parent has died before this call, the kernel would send
            nothing; this process is killed here.
        number: the signal.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        _die()


class _Stack(ctypes.Structure):
    # stack_t of <signal.h>
    _fields_ = (
        ("ss_sp", ctypes.c_void_p),
        ("ss_flags", ctypes.c_int),
        ("ss_size", ctypes.c_size_t),
    )


def handle_signals_on_the_stack() -> None:
    """Remove the alternate signal stack: sigaltstack(2).

    Python runs its signal handlers on the alternate stack if there is one, and `faulthandler` sets
    up one of a few pages. The frames of several signals that arrive at once do not fit there, and
    the kernel ends the process by SEGV.
    """
    if _libc.sigaltstack(ctypes.byref(_Stack(ss_flags=_SS_DISABLE)), None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL cannot be survived")


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

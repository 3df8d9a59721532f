"""A dead man's switch: the kernel KILLs this process unless it moves a timer in time.

A worker that is stopped, hangs in a system call or spins cannot guard its leases. A POSIX timer
does not need its cooperation: it fires in a stopped process, too, and KILL cannot be blocked. The
worker's fork server and runners die with it. The timer's clock counts suspended time.

The timer is not inherited by fork(2), and is deleted by execve(2); see timer_create(2). A `Timer`
sends any signal; a `DeadMan` sends KILL.
"""

import ctypes
import mmap
import os
import signal
import struct
import time
from contextlib import suppress
from math import inf

from typing_extensions import override

_SIGEV_SIGNAL = 0
_TIMER_ABSTIME = 1
_NANO = 1_000_000_000


class _SigEvent(ctypes.Structure):
    # struct sigevent of <asm-generic/siginfo.h>: 64 bytes in all.
    _fields_ = (
        ("sigev_value", ctypes.c_void_p),
        ("sigev_signo", ctypes.c_int),
        ("sigev_notify", ctypes.c_int),
        ("_pad", ctypes.c_char * 48),
    )


class _TimeSpec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _ITimerSpec(ctypes.Structure):
    _fields_ = (("it_interval", _TimeSpec), ("it_value", _TimeSpec))


def _library() -> ctypes.CDLL:
    # The C library is loaded by its name, so that preloaded libraries do not override it:
    # libfaketime takes every instant for a time of day, and would shift ours by its offset.
    for name in "libc.so.6", "librt.so.1":  # the second: glibc before 2.34
        with suppress(OSError):
            library = ctypes.CDLL(name, use_errno=True)
            if hasattr(library, "timer_create"):
                return library
    return ctypes.CDLL(None, use_errno=True)


class Deadline:
    """The instant at which a child's switch fires, in memory that the child shares with its parent.

    The parent cannot tell from an exit status who sent the KILL. Make it before the fork.
    """

    _FORM = struct.Struct("d")

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, self._FORM.size)
        self.write(None)

    def write(self, at: float | None) -> None:
        """In the child: note when the switch fires.

        Args:
            at: seconds of the boot-time clock; None: it does not fire.
        """
        self._FORM.pack_into(self._page, 0, inf if at is None else at)

    def has_passed(self, now: float) -> bool:
        """In the parent: whether the switch has fired.

        Args:
            now: seconds of the boot-time clock.
        """
        at: float = self._FORM.unpack_from(self._page)[0]
        return now >= at


class Timer:
    """Sends this process a signal at an instant that is set later.

    Args:
        number: the signal.

    Raises:
        OSError: the kernel cannot create another timer.
    """

    def __init__(self, number: signal.Signals) -> None:
        self._library = _library()
        self._timer = ctypes.c_void_p()
        self._at: float | None = None
        event = _SigEvent(sigev_signo=number, sigev_notify=_SIGEV_SIGNAL)
        self._call(
            "timer_create", time.CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(self._timer)
        )

    def set(self, at: float | None) -> None:
        """Send the signal at an instant, unless this is called again before then.

        Args:
            at: seconds of the boot-time clock; None: do not send it.
        """
        if at == self._at:
            return
        # Zero disarms the timer; if the instant has passed, it fires at once.
        nanoseconds = 0 if at is None else max(1, int(at * _NANO))
        value = _TimeSpec(*divmod(nanoseconds, _NANO))
        spec = _ITimerSpec(it_value=value)
        self._call("timer_settime", self._timer, _TIMER_ABSTIME, ctypes.byref(spec), None)
        self._at = at

    def _call(self, name: str, *arguments: object) -> None:
        if getattr(self._library, name)(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")


class DeadMan(Timer):
    """A timer that KILLs this process.

    Args:
        deadline: shared memory in which the instant is noted for the parent.
    """

    def __init__(self, deadline: Deadline | None = None) -> None:
        super().__init__(signal.SIGKILL)
        self._deadline = deadline

    @override
    def set(self, at: float | None) -> None:
        if self._deadline is not None:
            # Written first, because the next call does not return if the instant has passed.
            self._deadline.write(at)
        super().set(at)

    def hasten(self, at: float) -> None:
        """Be KILLed at this instant, or at the one that was set if that is earlier."""
        if self._at is None or at < self._at:
            self.set(at)

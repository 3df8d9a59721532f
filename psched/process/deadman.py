"""A dead man's switch: the kernel KILLs this process unless it moves a timer in time.

A worker that is stopped, hangs in a system call or loops cannot extend its leases. A POSIX timer
kills it without its cooperation: the timer fires even in a stopped process, and KILL cannot be
blocked. The worker's fork server and runners die with the worker. The timer's clock also counts
the time in which the machine is suspended.

A forked child does not inherit the timer, and execve(2) deletes it; see timer_create(2). A `Timer`
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
    # Load the C library by its name, so that preloaded libraries do not override its functions:
    # libfaketime treats every instant as a time of day and would shift the timer by its offset.
    for name in "libc.so.6", "librt.so.1":  # the second: glibc before 2.34
        with suppress(OSError):
            library = ctypes.CDLL(name, use_errno=True)
            if hasattr(library, "timer_create"):
                return library
    return ctypes.CDLL(None, use_errno=True)


class Deadline:
    """The instant at which a child's switch fires, in memory that the child shares with its parent.

    The parent uses it to tell who has killed the child, because the exit status does not show that.
    Create the object before the fork.
    """

    _FORM = struct.Struct("d")

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, self._FORM.size)
        self.write(None)

    def write(self, at: float | None) -> None:
        """Note when the switch fires; called by the child.

        Args:
            at: seconds of the boot-time clock; None: the switch does not fire.
        """
        self._FORM.pack_into(self._page, 0, inf if at is None else at)

    def has_passed(self, now: float) -> bool:
        """Whether the instant has passed; called by the parent.

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
        """Send the signal at an instant. A later call replaces the instant.

        Args:
            at: seconds of the boot-time clock; None: do not send the signal.
        """
        if at == self._at:
            return
        # Pass 0 only to disarm the timer. With an instant in the past, the timer fires at once.
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
            # Write the instant first: the next call does not return if the instant has passed.
            self._deadline.write(at)
        super().set(at)

    def hasten(self, at: float) -> None:
        """KILL this process at an instant, unless an earlier instant is set."""
        if self._at is None or at < self._at:
            self.set(at)

"""A dead man's switch: the kernel KILLs this process unless the process postpones a timer in time.

A worker that is stopped, hangs in a system call or loops cannot extend its leases. So a POSIX timer
kills the worker without its cooperation: the timer fires even in a stopped process, and KILL cannot
be blocked. The worker's fork server and runners die with the worker. The timer's clock advances
while the machine is suspended, so leases that end during a suspension are covered.

A forked child does not inherit the timer, and execve(2) deletes the timer; see timer_create(2). A
`Timer` sends a signal of the caller's choice; a `DeadMan` sends KILL.
"""

import ctypes
import mmap
import os
import signal
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


def library() -> ctypes.CDLL:
    """The C library."""
    # Load the C library by its name, so that preloaded libraries do not override its functions:
    # libfaketime treats every instant as a time of day and would shift the timer by its offset.
    # Before glibc 2.34, the functions are in librt.so.1.
    for name in "libc.so.6", "librt.so.1":
        with suppress(OSError):
            library = ctypes.CDLL(name, use_errno=True)
            if hasattr(library, "timer_create"):
                return library
    return ctypes.CDLL(None, use_errno=True)


class Deadline:
    """The instant at which a child's switch fires, in memory that the child shares with its parent.

    When a child has died by KILL, the parent compares the instant with the time of death to find
    out whether the switch has killed the child: the exit status does not tell who sent KILL. Create
    the object before the fork.
    """

    def __init__(self) -> None:
        page = mmap.mmap(-1, ctypes.sizeof(ctypes.c_double))
        # A C double is stored by one machine instruction, so the parent never reads half an
        # instant. struct.pack_into writes zeros before the value: a child that is killed in between
        # would leave the instant 0, and the parent would take that for an instant that has passed.
        self._at = ctypes.c_double.from_buffer(page)
        self.write(None)

    def write(self, at: float | None) -> None:
        """Store when the switch fires, by the boot-time clock, or None; the child calls this."""
        self._at.value = inf if at is None else at

    def has_passed(self, now: float) -> bool:
        """Whether the switch should have fired by now, boot-time clock; the parent calls this."""
        return now >= self._at.value


class Timer:
    """Sends this process a signal at the instant that `set` sets; before that, it sends nothing."""

    def __init__(self, number: signal.Signals) -> None:
        self._library = library()
        self._timer = ctypes.c_void_p()
        self._at: float | None = None
        event = _SigEvent(sigev_signo=number, sigev_notify=_SIGEV_SIGNAL)
        self._call(
            "timer_create", time.CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(self._timer)
        )

    def set(self, at: float | None) -> None:
        """Send the signal at this second of the boot-time clock, which a later call replaces.

        None: send no signal.
        """
        if at == self._at:
            return
        # Pass 0 only if there is no instant, because the kernel then disarms the timer. For an
        # instant at or before 0, pass 1: that is in the past, so the timer fires at once.
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
        deadline: the shared memory in which `set` stores the instant for the parent; None if the
            parent does not need the instant.
    """

    def __init__(self, deadline: Deadline | None = None) -> None:
        super().__init__(signal.SIGKILL)
        self._deadline = deadline

    @override
    def set(self, at: float | None) -> None:
        if self._deadline is not None:
            # Store the instant before setting the timer, because the timer kills this process at
            # once if the instant has passed.
            self._deadline.write(at)
        super().set(at)

    def hasten(self, at: float) -> None:
        """Set the instant at which to KILL this process, unless an earlier instant is set."""
        if self._at is None or at < self._at:
            self.set(at)

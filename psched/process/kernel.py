"""System calls that Python's standard library does not offer (Linux only), and process titles."""

import ctypes
import os
import signal
from contextlib import suppress
from typing import NoReturn

from setproctitle import setproctitle

from psched.base.texts import cut, visible

_PR_SET_PDEATHSIG = 1
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SYS_LANDLOCK_CREATE_RULESET, _SYS_LANDLOCK_RESTRICT_SELF = 444, 446
_LANDLOCK_VERSION, _SCOPE_SIGNAL = 1, 2
_SCOPES_SIGNALS = 6
"""The first version of Landlock that has scopes; that of Linux 6.12."""
_SS_DISABLE = 2

_OOM_SCORE = "/proc/self/oom_score_adj"
_HIGHEST_OOM_SCORE = 1000

_LONGEST_TITLE = 1000

# Convert the signal to a plain number here, before the fork of runners: a runner that used the
# enumeration's member would copy five pages of memory.
_KILL = int(signal.SIGKILL)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)


_SYS_WAITID = {"x86_64": 247, "aarch64": 95, "riscv64": 95}.get(os.uname().machine)
"""The number of the system call waitid; None if it is not known for this processor."""

_LONGS_OF_RUSAGE = 18
_PEAK = 4
"""The number of fields of a struct rusage, and the index of ru_maxrss. Before it are the seconds
and microseconds of two times."""

_PEEK = os.WEXITED | os.WNOHANG | os.WNOWAIT

TELLS_USAGE = _SYS_WAITID is not None and ctypes.sizeof(ctypes.c_long) == ctypes.sizeof(
    ctypes.c_int64
)
"""Whether `usage_of_zombie` can find out something on this machine."""


def usage_of_zombie(pid: int) -> tuple[int | None, int | None]:
    """The CPU time (µs) and the peak of memory (KiB) of a child that is, and remains, a zombie.

    They contain the child's own children for which it has waited; the peak is that of the largest
    of them. None stands for what is not known. The standard library has no such function:
    `os.wait4` reaps the child.
    """
    used = (ctypes.c_long * _LONGS_OF_RUSAGE)()
    call = (_SYS_WAITID, os.P_PID, pid, None, _PEEK, ctypes.byref(used))
    if not TELLS_USAGE or _libc.syscall(*call) != 0:
        return None, None
    seconds, microseconds = used[0] + used[2], used[1] + used[3]
    return seconds * 1_000_000 + microseconds, used[_PEAK]


def adopt_orphans() -> None:
    """Make this process a subreaper: orphaned descendants become its children. See prctl(2)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def leave_orphans() -> None:
    """Make this process no subreaper: its orphaned descendants become those of the next one."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def can_confine_signals() -> bool:
    """Whether the kernel has what `confine_signals` needs: Landlock, and Linux 6.12."""
    version = _libc.syscall(_SYS_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)
    return bool(version >= _SCOPES_SIGNALS)


def confine_signals() -> None:
    """Let this process and its descendants send signals only to one another; see landlock(7).

    None of them can gain privileges by executing a program, such as sudo, from now on.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    # The fields of a struct landlock_ruleset_attr: access to files, access to networks, scopes.
    rules = (ctypes.c_uint64 * 3)(0, 0, _SCOPE_SIGNAL)
    made = _libc.syscall(_SYS_LANDLOCK_CREATE_RULESET, rules, ctypes.sizeof(rules), 0)
    if made < 0 or _libc.syscall(_SYS_LANDLOCK_RESTRICT_SELF, made, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"landlock: {os.strerror(number)}")
    os.close(made)


def is_hidden() -> bool:
    """Whether other processes of its user cannot read this process's memory; see `secrecy`."""
    return bool(_libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) == 0)


def allow_dump(*, allowed: bool) -> None:
    """Set whether other processes of its user can read this process's memory; see `secrecy`."""
    _prctl(_PR_SET_DUMPABLE, int(allowed))


class OomScore:
    """How soon the kernel kills this process when memory runs out; see proc_pid_oom_score_adj(5).

    A forked process begins with the score that its parent has at that moment.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        with suppress(OSError), open(_OOM_SCORE, encoding="ascii") as file:  # noqa: PTH123  # loads less
            self._first = int(file.read())
            # The file belongs to root while this process is hidden, see `secrecy`. An open file can
            # still be written to. So other processes of the user can read this one only while the
            # file is opened: some microseconds at its beginning.
            hidden = os.stat(_OOM_SCORE).st_uid != os.geteuid()  # noqa: PTH116  # loads less
            if hidden:
                allow_dump(allowed=True)
            try:
                self._file = os.open(_OOM_SCORE, os.O_WRONLY | os.O_CLOEXEC)
            finally:
                if hidden:
                    allow_dump(allowed=False)

    def exceed(self, by: int) -> None:
        """Let the score exceed the first one, if the system allows it; 0 restores the first one."""
        if self._file is not None:
            with suppress(OSError):
                os.write(self._file, b"%d" % min(self._first + by, _HIGHEST_OOM_SCORE))

    def close(self) -> None:
        """Keep the score that was set last."""
        if self._file is not None:
            os.close(self._file)


def die_with_parent(parent: int, number: int = _KILL) -> None:
    """Have the kernel send this process a signal when its parent dies; see prctl(2).

    The parent must have forked from its main thread, because the kernel sends the signal when the
    thread that has forked ends.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        _die()


class _Stack(ctypes.Structure):
    # The fields are those of stack_t in <signal.h>.
    _fields_ = (
        ("ss_sp", ctypes.c_void_p),
        ("ss_flags", ctypes.c_int),
        ("ss_size", ctypes.c_size_t),
    )


def handle_signals_on_the_stack() -> None:
    """Remove the alternate signal stack: sigaltstack(2).

    The kernel runs Python's signal handlers on the alternate stack if there is one, and
    `faulthandler` sets up an alternate stack of a few pages. If several signals arrive at once,
    their frames do not fit on that stack, and the kernel ends the process by SEGV.
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


def set_title(text: str) -> None:
    """Show a text as this process's title, for ``ps``; it must contain nothing secret."""
    setproctitle(title_of(text))


def title_of(text: str) -> str:
    """The whole title that `set_title` shows."""
    return f"psched {visible(cut(text, _LONGEST_TITLE))}"

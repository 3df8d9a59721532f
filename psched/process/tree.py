"""Finds and kills the descendants of a process, such as all processes that a task has started.

A signal to a process does not reach its children, and a signal to its group does not reach a
daemon that has left the group by ``setsid``. But every orphan becomes the child of its nearest
living subreaper (prctl(2), PR_SET_CHILD_SUBREAPER), and masters, workers and runners are
subreapers. So a walk down the children of such a process finds its whole tree. To kill the tree,
the walk is repeated until it finds no process, because processes may be forked during a walk.
"""

import os
import signal
import time
from contextlib import suppress

_DYING = 0.02
"""Seconds for which `kill_all_below` waits until killed processes are dead, counted from the walk
that has found the last new process."""

_LONGEST = 0.25
"""The most seconds that `kill_all_below` takes if the processes continue to fork."""

_MOMENT = 0.0002
"""Seconds to sleep after a walk that has found no new process, because the killed ones need time to
die."""

_EXITING = 0x4
"""PF_EXITING, a flag in proc(5). The kernel sets the flag before an exiting process closes files or
releases anything else."""

_PAGE = 4096

_LINKS_OF_ONE_THREAD = 3
"""The links of the folder of a process's threads: two, and one for each thread."""

_GONE = (FileNotFoundError, ProcessLookupError)
"""The errors of reading /proc that mean that the process has ended. Other errors, such as a lack
of descriptors, say nothing about the process."""


def children(pid: int) -> list[int]:
    """The pids of a process's children, including zombies; empty also if the process has ended."""
    found: list[int] = []
    with suppress(*_GONE):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(*_GONE):
                found += map(int, read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def read(path: str) -> bytes:
    """The content of a file that the kernel generates."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = b""
        # Read until nothing is returned: the kernel may return fewer bytes than requested before
        # the end of such a file.
        while chunk := os.read(number, 1 << 16):
            text += chunk
        return text
    finally:
        os.close(number)


class KernelFile:
    """A file that the kernel generates, which is kept open to be read again and again.

    It belongs to the same process or cgroup forever, also if another one gets the same name. That
    takes a fifth of the time of `read`.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._number = -1

    def read(self) -> bytes:
        """The content of the file."""
        if self._number < 0:
            self._number = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        text = piece = os.pread(self._number, _PAGE, 0)
        # The kernel fills a page, but for the next line if that has no room. So less is the end.
        while len(piece) > _PAGE // 2:
            piece = os.pread(self._number, _PAGE, len(text))
            text += piece
        return text

    def close(self) -> None:
        """Close the file; `read` opens it again."""
        if self._number >= 0:
            os.close(self._number)
            self._number = -1


class Offspring:
    """Tells whether a process has any children, many times and fast.

    Args:
        pid: the process, which lives while this is called for the first time.
    """

    def __init__(self, pid: int) -> None:
        self._threads = f"/proc/{pid}/task"
        # The children of the first thread, which are all children while there is no other thread.
        self._children = KernelFile(f"{self._threads}/{pid}/children")

    @property
    def none(self) -> bool:
        """Whether the process has no child, not even a zombie; False also if that is not known."""
        with suppress(OSError):
            one_thread = os.stat(self._threads).st_nlink == _LINKS_OF_ONE_THREAD  # noqa: PTH116
            return one_thread and not self._children.read()
        return False

    def close(self) -> None:
        """Close what is open; call this when the process has ended."""
        self._children.close()


def descendants(pid: int) -> list[int]:
    """The pids of all descendants of a process; children precede grandchildren."""
    found: list[int] = []
    level = children(pid)
    while level:
        found += level
        level = [child for parent in level for child in children(parent)]
    return found


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; do nothing if the process has ended or belongs to another user now."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def send_group(group: int, number: signal.Signals) -> None:
    """Send a signal to the processes of a group, except those that this user may not signal.

    If there is no such process, do nothing.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie; true if /proc cannot be read."""
    try:
        state = _stat(pid)
    except OSError:
        return True
    # Count the threads of an apparent zombie, because the kernel shows a living process as a zombie
    # if the process's first thread has ended and other threads still run.
    return state is not None and (state[0] not in ("Z", "X") or int(state[17]) > 1)


def stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal, such as STOP; false if /proc cannot be read."""
    with suppress(OSError):
        state = _stat(pid)
        return state is not None and state[0] == "T"
    return False


def lives(pid: int, start: int) -> bool:
    """Whether the process with this pid and start time still runs.

    A zombie counts as dead: a zombie does not run, although it has its pid and start time until its
    parent reaps it, and some parents never do. An exiting process counts as dead, because it closes
    its files first, so other processes notice its end some time before it is a zombie.
    """
    state = _stat(pid)
    if state is None or int(state[19]) != start:
        return False
    is_ending = state[0] in ("Z", "X") or int(state[6]) & _EXITING
    # Count the threads, because the first thread may be a zombie while the others still run.
    return not is_ending or int(state[17]) > 1


def ending(thread: int) -> bool:
    """Whether a thread has ended, or is about to."""
    state = _stat(thread)
    return state is None or bool(int(state[6]) & _EXITING)


def start_time(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot; None if the process does not exist."""
    state = _stat(pid)
    return None if state is None else int(state[19])


def parent(pid: int) -> int | None:
    """The pid of a process's parent; None if the process has ended.

    The pid is 0 if the parent is outside of this process's pid namespace.
    """
    state = _stat(pid)
    return None if state is None else int(state[1])


def living_below(pid: int, spare: frozenset[int] = frozenset()) -> frozenset[int]:
    """The pids of a process's living descendants; incomplete if /proc cannot be read.

    Use the result only where an incomplete result does no harm, for example in log lines.
    """
    found: set[int] = set()
    with suppress(OSError):
        for child in children(pid):
            if child not in spare:
                found |= {child, *descendants(child)}
    return frozenset(filter(alive, found))


def describe(pid: int) -> str:
    """A process's pid, name and state, for a log line; and whose it is, if it may not be killed.

    State D is an uninterruptible sleep.
    """
    with suppress(OSError):
        state = _stat(pid)
        name = read(f"/proc/{pid}/comm").decode(errors="replace").strip()
        return f"{pid} ({name}, state {state[0]}{_whose(pid)})" if state else str(pid)
    return str(pid)


def _whose(pid: int) -> str:
    try:
        os.kill(pid, 0)
    except PermissionError:
        # The number is not looked up: a name service may be slow, and a worker must not wait.
        number = read(f"/proc/{pid}/status").partition(b"\nUid:")[2].split()[0].decode()
        owner = "root" if number == "0" else f"user {number}"
        return f", belongs to {owner}, may not be killed"
    return ""


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat (proc(5)), beginning with the state; None if it has ended."""
    try:
        stat = read(f"/proc/{pid}/stat").decode(errors="replace")
    except _GONE:
        return None
    # Split after the last parenthesis, because the name may contain blanks and parentheses.
    return stat.rpartition(")")[2].split()


def kill_below(
    pid: int,
    spare: frozenset[int] = frozenset(),
    dead: set[int] | None = None,
    killed: set[int] | None = None,
) -> bool:
    """KILL all descendants of a process, once; call this again until it returns False.

    True: the subreaper has a child that was in neither ``spare`` nor ``dead``, or its children
    cannot be listed. True also if this call has found all such children dead: a child can have
    forked before its death, and the orphan is then a new child of the subreaper.
    """
    dead = set() if dead is None else dead
    found = False
    try:
        listed = children(pid)
    except OSError:
        return True
    # Kill the newest child first, because a process that forks and exits repeatedly is among the
    # newest.
    for child in reversed(listed):
        if child in spare or child in dead:
            continue
        found = True
        # Kill the child before its descendants: it then cannot fork any more, and its children
        # become the subreaper's.
        send(child, signal.SIGKILL)
        below: list[int] = []
        with suppress(OSError):
            below = descendants(child)
        for victim in below:
            send(victim, signal.SIGKILL)
        if killed is not None:
            killed.update((child, *below))
        if not alive(child):
            dead.add(child)
    return found


def kill_all_below(pid: int, spare: frozenset[int] = frozenset()) -> bool:
    """KILL all descendants of a process until none is found alive; see `kill_below`.

    Return whether only zombies are left. The function does not wait for a process that dies slowly,
    for example in uninterruptible sleep or while it releases much memory: call it again soon.
    """
    dead: set[int] = set()
    killed: set[int] = set()
    known, began = 0, time.monotonic()
    newest = began
    while kill_below(pid, spare, dead, killed):
        now = time.monotonic()
        if len(killed) > known:
            known, newest = len(killed), now
        elif now > newest + _DYING:
            return False
        else:
            time.sleep(_MOMENT)
        if now > began + _LONGEST:
            return False
    return True

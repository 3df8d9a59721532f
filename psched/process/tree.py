"""The processes below another one: what a task has forked, and what those processes have forked.

A signal to a process does not reach what it has forked, and a signal to its group does not reach a
daemon that has left the group by ``setsid``. But every orphan becomes the child of its nearest
living subreaper (prctl(2), PR_SET_CHILD_SUBREAPER), and masters, workers and runners are
subreapers. So a walk down the children of such a process finds its whole tree. To kill the tree,
the walk is repeated until it finds nothing: the next walk finds what was forked during this one.
"""

import os
import signal
import time
from contextlib import suppress

_DYING = 0.02
"""Seconds that killed processes are given to die, counted from when the last new one was found."""

_LONGEST = 0.25
"""Seconds for which processes that go on forking may hold up the caller."""

_MOMENT = 0.0002
"""Seconds between two walks that find the same processes, which need time in order to die."""

_EXITING = 0x4
"""PF_EXITING, one of the flags in proc(5): set before an exiting process releases anything."""

_GONE = (FileNotFoundError, ProcessLookupError)
"""What reading /proc raises for a process that has ended. Other errors, such as having no
descriptor left, say nothing about the process."""


def children(pid: int) -> list[int]:
    """The children of a process, zombies included; none if it is gone.

    Raises:
        OSError: /proc cannot be read.
    """
    found: list[int] = []
    with suppress(*_GONE):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(*_GONE):
                found += map(int, read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def read(path: str) -> bytes:
    """The content of a file that the kernel generates.

    Raises:
        OSError: it does not exist or cannot be read.
    """
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = b""
        # A read of such a file may return less than was asked for before the end of the file.
        while chunk := os.read(number, 1 << 16):
            text += chunk
        return text
    finally:
        os.close(number)


def descendants(pid: int) -> list[int]:
    """All processes below another one, nearest first.

    Raises:
        OSError: /proc cannot be read.
    """
    found: list[int] = []
    level = children(pid)
    while level:
        found += level
        level = [child for parent in level for child in children(parent)]
    return found


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal. A process that is gone, or has become another user's, is no error."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def send_group(group: int, number: signal.Signals) -> None:
    """Send a signal to those processes of a group that may be sent one; none is no error."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie; true if /proc cannot be read."""
    try:
        state = _stat(pid)
    except OSError:
        return True
    # If its first thread has ended before the others, the process is shown as a zombie.
    return state is not None and (state[0] not in ("Z", "X") or int(state[17]) > 1)


def lives(pid: int, start: int) -> bool:
    """Whether the process that was started at this time still runs.

    A zombie counts as dead: it does not run, though it keeps its pid and start time until its
    parent reaps it, which may be never. So does an exiting process: it closes its files first, so
    others learn of its end some time before it is a zombie.

    Args:
        pid: the process.
        start: its `start_time`.

    Raises:
        OSError: /proc cannot be read.
    """
    state = _stat(pid)
    if state is None or int(state[19]) != start:
        return False
    is_ending = state[0] in ("Z", "X") or int(state[6]) & _EXITING
    # The first thread may be a zombie while the others still run.
    return not is_ending or int(state[17]) > 1


def start_time(pid: int) -> int | None:
    """When a process was started, in the kernel's ticks; None if there is no such process.

    Raises:
        OSError: /proc cannot be read.
    """
    state = _stat(pid)
    return None if state is None else int(state[19])


def parent(pid: int) -> int | None:
    """The pid of a process's parent, or None if the process is gone.

    It is 0 if the parent is outside of this pid namespace.

    Raises:
        OSError: /proc cannot be read.
    """
    state = _stat(pid)
    return None if state is None else int(state[1])


def living_below(pid: int, spare: frozenset[int] = frozenset()) -> frozenset[int]:
    """The processes below another one that are alive, as far as /proc can be read.

    That is good enough for log lines, and to decide which processes not to wait for.

    Args:
        pid: the process.
        spare: children of it that are left out, with everything below them.
    """
    found: set[int] = set()
    with suppress(OSError):
        for child in children(pid):
            if child not in spare:
                found |= {child, *descendants(child)}
    return frozenset(filter(alive, found))


def describe(pid: int) -> str:
    """A process in a log line: its pid, name and state; D is an uninterruptible sleep."""
    with suppress(OSError):
        state = _stat(pid)
        name = read(f"/proc/{pid}/comm").decode(errors="replace").strip()
        return f"{pid} ({name}, state {state[0]})" if state else str(pid)
    return str(pid)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on, see proc(5); None: the process is gone."""
    try:
        stat = read(f"/proc/{pid}/stat").decode(errors="replace")
    except _GONE:
        return None
    # Split after the last parenthesis, because the name may itself contain blanks and parentheses.
    return stat.rpartition(")")[2].split()


def kill_below(
    pid: int,
    spare: frozenset[int] = frozenset(),
    dead: set[int] | None = None,
    killed: set[int] | None = None,
) -> bool:
    """KILL all processes below another one, once; call it again until it returns False.

    Args:
        pid: a subreaper; it is not killed itself.
        spare: children of it that are left alone, with everything below them.
        dead: children of it that are known to be dead, but not reaped. Others are added.
        killed: the pids that were sent KILL are added to it.

    Returns:
        Whether there may have been a child that was not known to be dead. A child that is found
        dead now counts as well: it may have forked before, and its child have become one of ours
        since we listed them.
    """
    dead = set() if dead is None else dead
    found = False
    try:
        listed = children(pid)
    except OSError:
        return True
    # The newest child first, because a process that forks and exits again and again is found there.
    for child in reversed(listed):
        if child in spare or child in dead:
            continue
        found = True
        # The child is killed before its descendants, because a dead process cannot fork any more,
        # and its children become ours.
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
    """KILL all processes below another one until none is found; see `kill_below`.

    It does not wait for a process that takes long to die, because it is in uninterruptible sleep
    or has much memory to release.

    Returns:
        Whether nothing but zombies is left. If not, call it again soon.
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

"""The processes below one: what a task forked, and what those forked, wherever they hid.

Neither a signal to a process nor one to its group is enough: a daemon that has left the group
by ``setsid`` survives both. But every orphan of a tree comes to its nearest living subreaper
(prctl(2), PR_SET_CHILD_SUBREAPER), and master, workers and runners are all that. So the tree of
a process is what one finds by walking down its children, and killing it means walking again
until nothing is found: a process that forks while we look is met on the next walk.
"""

import os
import signal
import time
from contextlib import suppress

_DYING = 0.02
"""Seconds that those who were sent KILL are given to be gone, while no new ones are found."""

_LONGEST = 0.25
"""Seconds that a loop is held up by a storm of processes before it sees to other things."""

_MOMENT = 0.0002
"""Seconds between two walks that find the same: the processor is theirs, to die."""

_EXITING = 0x4
"""PF_EXITING, among the flags that proc(5) shows: set before a process lets go of anything."""

_GONE = (FileNotFoundError, ProcessLookupError)
"""What /proc says of a process that has ended. Any other error says nothing of it: we may just
have no descriptor left to look with."""


def children(pid: int) -> list[int]:
    """The children of a process, zombies included; none if it is gone.

    Raises:
        OSError: one cannot look.
    """
    found: list[int] = []
    with suppress(*_GONE):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(*_GONE):
                found += map(int, read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def read(path: str) -> bytes:
    """What a file says that the kernel writes when it is read.

    Raises:
        OSError: it is not there, or cannot be read.
    """
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = b""
        # Such a file may give less than it has, at any time but at its end.
        while chunk := os.read(number, 1 << 16):
            text += chunk
        return text
    finally:
        os.close(number)


def descendants(pid: int) -> list[int]:
    """All processes below one, nearest first.

    Raises:
        OSError: one cannot look.
    """
    found: list[int] = []
    level = children(pid)
    while level:
        found += level
        level = [child for parent in level for child in children(parent)]
    return found


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that is gone, or that has become another user's, is no error."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def send_group(group: int, number: signal.Signals) -> None:
    """Send a signal to a process group; to those of it that are there and may be sent one."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie; true if one cannot look."""
    try:
        state = _stat(pid)
    except OSError:
        return True
    # Its first thread may have ended before the others: it shows as a zombie then.
    return state is not None and (state[0] not in ("Z", "X") or int(state[17]) > 1)


def lives(pid: int, start: int) -> bool:
    """Whether the process that was started at this time still runs.

    A zombie keeps its pid and its start time until its parent reaps it, which may be never. It
    does not run, so it counts as dead. So does a process that is on its way out: it closes its
    files first, and others learn of its end by that, some time before it is a zombie.

    Args:
        pid: the process.
        start: its `start_time`.

    Raises:
        OSError: one cannot look.
    """
    state = _stat(pid)
    if state is None or int(state[19]) != start:
        return False
    is_ending = state[0] in ("Z", "X") or int(state[6]) & _EXITING
    # Its first thread may have ended before the others.
    return not is_ending or int(state[17]) > 1


def start_time(pid: int) -> int | None:
    """When a process was started, in the kernel's ticks; None if there is no such process.

    Raises:
        OSError: one cannot look.
    """
    state = _stat(pid)
    return None if state is None else int(state[19])


def parent(pid: int) -> int | None:
    """The pid of a process's parent, 0 if that is in no namespace of ours; None: it is gone.

    Raises:
        OSError: one cannot look.
    """
    state = _stat(pid)
    return None if state is None else int(state[1])


def living_below(pid: int, spare: frozenset[int] = frozenset()) -> frozenset[int]:
    """All processes below one that are alive, but for some children and all below them.

    As far as one can look: an answer for people, and for who is not to be waited for.
    """
    found: set[int] = set()
    with suppress(OSError):
        for child in children(pid):
            if child not in spare:
                found |= {child, *descendants(child)}
    return frozenset(filter(alive, found))


def describe(pid: int) -> str:
    """A process for people: its pid, name and state; D is an uninterruptible sleep."""
    with suppress(OSError):
        state = _stat(pid)
        name = read(f"/proc/{pid}/comm").decode(errors="replace").strip()
        return f"{pid} ({name}, state {state[0]})" if state else str(pid)
    return str(pid)


def _stat(pid: int) -> list[str] | None:
    """What /proc/PID/stat says from the state on; see proc(5)."""
    try:
        stat = read(f"/proc/{pid}/stat").decode(errors="replace")
    except _GONE:
        return None
    # The name, which may hold blanks and parentheses itself, stands before.
    return stat.rpartition(")")[2].split()


def kill_below(
    pid: int,
    spare: frozenset[int] = frozenset(),
    dead: set[int] | None = None,
    killed: set[int] | None = None,
) -> bool:
    """KILL all processes below one, once; call it again until nothing was left to kill.

    Args:
        pid: the process whose tree is meant, a subreaper; it is not killed itself.
        spare: children of it that are left alone, with all below them.
        dead: children of it that are known to be dead, not reaped; it is added to.
        killed: whoever was sent KILL is added to it.

    Returns:
        Whether there was a child that was not known to be dead, or may have been. That a child is
        found dead says little: it may have forked before, and its own child have come to us since
        we looked.
    """
    dead = set() if dead is None else dead
    found = False
    try:
        listed = children(pid)
    except OSError:
        return True
    # The newest first: who flees from pid to pid is there.
    for child in reversed(listed):
        if child in spare or child in dead:
            continue
        found = True
        # From the top: what is dead cannot fork, and what it has forked moves up to us.
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
    """KILL all processes below one until nothing is found; see `kill_below`.

    It does not wait for what takes long to die: a process in uninterruptible sleep, or one with
    much memory to give back.

    Returns:
        Whether nothing is left but zombies. If not, it is to be called again soon.
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

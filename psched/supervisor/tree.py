"""The processes below one: what a task forked, and what those forked, wherever they hid.

Neither a signal to a process nor one to its group is enough: a daemon that has left the group
by ``setsid`` survives both. But every orphan of a tree comes to its nearest living subreaper
(prctl(2), PR_SET_CHILD_SUBREAPER), and master, workers and runners are all that. So the tree of
a process is what one finds by walking down its children, and killing it means walking again
until nothing is found: a process that forks while we look is met on the next walk.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

_ROUNDS = 1000
"""A walk takes some tens of microseconds per process; no fork storm outruns this many."""


def children(pid: int) -> list[int]:
    """The children of a process, zombies included; none if it is gone."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                listed = Path(f"/proc/{pid}/task/{thread}/children").read_text("ascii")
                found += map(int, listed.split())
    return found


def descendants(pid: int) -> list[int]:
    """All processes below one, nearest first."""
    found: list[int] = []
    level = children(pid)
    while level:
        found += level
        level = [child for parent in level for child in children(parent)]
    return found


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that is gone is no error."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def send_group(group: int, number: signal.Signals) -> None:
    """Send a signal to a process group; one that is gone is no error."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return False
    # The state stands after the name, which may hold blanks and parentheses itself.
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def kill_below(pid: int, spare: frozenset[int] = frozenset(), dead: set[int] | None = None) -> bool:
    """KILL all processes below one, once; call it again until nothing was left to kill.

    Args:
        pid: the process whose tree is meant, a subreaper; it is not killed itself.
        spare: children of it that are left alone, with all below them.
        dead: children of it that are known to be dead, not reaped; it is added to.

    Returns:
        Whether there was a child that was not known to be dead. That a child is found dead says
        little: it may have forked before, and its own child have come to us since we looked.
    """
    dead = set() if dead is None else dead
    found = False
    # The newest first: who flees from pid to pid is there.
    for child in reversed(children(pid)):
        if child in spare or child in dead:
            continue
        found = True
        # From the top: what is dead cannot fork, and what it has forked moves up to us.
        send(child, signal.SIGKILL)
        for victim in descendants(child):
            send(victim, signal.SIGKILL)
        if not alive(child):
            dead.add(child)
    return found


def kill_all_below(pid: int, spare: frozenset[int] = frozenset()) -> None:
    """KILL all processes below one until nothing is found; see `kill_below`."""
    dead: set[int] = set()
    for _ in range(_ROUNDS):
        if not kill_below(pid, spare, dead):
            return

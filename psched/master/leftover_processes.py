"""What tasks of dead masters have left running, found by a mark in its environment.

When a master and all its workers are killed at once, nobody is left to kill what their tasks had
started. Where the tasks had cgroups, the next master finds it there (see `cgroup`). Everywhere
else it finds the programs among it: each inherits the variable ``PSCHED_MASTER``, which names the
master by its pid, its start time, its pid namespace and its user. What a handler forks and does
not execute shows the environment of the dead master, which has no mark, and is not found.

A process is killed only if both are true:

- Its mark names a master of this user, in this pid namespace, that does not live.
- It is an orphan: its parent is process 1, or one of those above this master, which is where
  orphans go. A task may have handed work to a batch system or to ``at``, with all its environment:
  such a process has a parent of that system's. What belongs to a worker that still lives has a
  parent of psched's, and is that worker's to kill.
"""

import logging
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from psched.process import tree

_log = logging.getLogger("psched.master")

_VARIABLE = "PSCHED_MASTER"

_MARK = re.compile(rb"PSCHED_MASTER=([0-9]+)\.([0-9]+)\.([0-9]+)\.([0-9]+)")

_DIE = 5.0
"""Seconds that a start waits for what it has killed."""

_MOMENT = 0.005
"""Seconds between two looks."""


@contextmanager
def marked() -> Iterator[None]:
    """Mark what this process, a master, starts meanwhile, with all that comes of it."""
    pid = os.getpid()
    os.environ[_VARIABLE] = f"{pid}.{tree.start_time(pid)}.{_namespace()}.{os.geteuid()}"
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)


def kill() -> None:
    """KILL the orphans of dead masters' tasks, and all below them; wait until they are dead."""
    with suppress(OSError):  # one cannot look, or has no descriptor left to look with
        above = _above()
        until = time.monotonic() + _DIE
        told: set[int] = set()
        # What they have forked becomes an orphan in turn.
        while found := [pid for pid in _processes() if _is_stray(pid, above)]:
            new = [pid for pid in found if pid not in told]
            if new:
                there = ", ".join(map(tree.describe, new))
                _log.warning("left by a task of a master that is dead; killing it: %s", there)
                told.update(new)
            if time.monotonic() > until:
                _log.error("it does not die: %s", ", ".join(map(tree.describe, found)))
                return
            for pid in found:
                _kill(pid, above)
            time.sleep(_MOMENT)


def _kill(pid: int, above: frozenset[int]) -> None:
    with suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            # Now it cannot be another process any more that gets the signal.
            if _is_stray(pid, above):
                below = tree.descendants(pid)
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                for each in below:
                    tree.send(each, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _is_stray(pid: int, above: frozenset[int]) -> bool:
    try:
        if pid in above or tree.parent(pid) not in above:
            return False
        # A zombie has no environment any more.
        environment = tree.read(f"/proc/{pid}/environ").split(b"\0")
    except OSError:  # it is gone, or another user's
        return False
    marks = filter(None, map(_MARK.fullmatch, environment))
    master = next((tuple(map(int, mark.groups())) for mark in marks), None)
    if master is None or master[2:] != (_namespace(), os.geteuid()):
        return False
    return not tree.lives(*master[:2])


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _above() -> frozenset[int]:
    """This process, all above it, and process 1."""
    above = {1}
    pid: int | None = os.getpid()
    while pid:
        above.add(pid)
        pid = tree.parent(pid)
    return frozenset(above)


def _namespace() -> int:
    """The number of this process's pid namespace; a pid means nothing in another one."""
    return Path("/proc/self/ns/pid").stat().st_ino

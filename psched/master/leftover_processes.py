"""Kills processes that tasks of dead masters have left running, by a mark in their environment.

When a master and all its workers are killed at once, no process is left to kill the processes that
their tasks had started. If the tasks ran in cgroups, the next master finds those processes in the
cgroups (see `cgroup`). Otherwise it finds only the processes that have executed a program, because
they have inherited the variable ``PSCHED_MASTER``, which identifies the master by pid, start time,
pid namespace and user. If a handler has forked a process without executing a program, the kernel
shows the environment of the dead master for it. That environment does not contain the variable, so
the process is not found.

A process is killed only if both are true:

- Its mark identifies a dead master of this user and this pid namespace.
- It is an orphan: its parent is process 1 or one of the ancestors of this master, or the master.
  This spares processes of a batch system or of ``at``, to which a task may have passed its
  environment: their parent belongs to that system. It also spares processes that a living worker
  has to kill: their parent belongs to psched.
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

_KILL_TIMEOUT = 5.0
"""Seconds for which a starting master waits until the processes that it has killed have ended."""

_INTERVAL = 0.005
"""Seconds between two searches of /proc."""


@contextmanager
def marked() -> Iterator[None]:
    """Within the block, mark the processes that this master starts, and all their descendants."""
    pid = os.getpid()
    os.environ[_VARIABLE] = f"{pid}.{tree.start_time(pid)}.{_namespace()}.{os.geteuid()}"
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)


def kill() -> None:
    """KILL the orphans of dead masters' tasks and all their descendants, and wait until they end.

    After `_KILL_TIMEOUT` seconds, log those that are still alive and return.
    """
    with suppress(OSError):  # if /proc cannot be read, nothing is killed
        above = _above()
        until = time.monotonic() + _KILL_TIMEOUT
        logged: set[int] = set()
        # Search again after each KILL: the children of a killed process become orphans, too.
        while found := [
            int(name)
            for name in os.listdir("/proc")
            if name.isdecimal() and _is_stray(int(name), above)
        ]:
            new = [pid for pid in found if pid not in logged]
            if new:
                there = ", ".join(map(tree.describe, new))
                _log.warning("left by a task of a master that is dead; killing it: %s", there)
                logged.update(new)
            if time.monotonic() > until:
                _log.error("it does not die: %s", ", ".join(map(tree.describe, found)))
                return
            for pid in found:
                _kill(pid, above)
            time.sleep(_INTERVAL)


def _kill(pid: int, above: frozenset[int]) -> None:
    with suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            # Check again, because the pid may have been reused before the descriptor was opened.
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
        # The environment of a zombie is empty, so a zombie is never a stray.
        environment = tree.read(f"/proc/{pid}/environ").split(b"\0")
    except OSError:  # the process has ended or belongs to another user
        return False
    marks = filter(None, map(_MARK.fullmatch, environment))
    master = next((tuple(map(int, mark.groups())) for mark in marks), None)
    if master is None or master[2:] != (_namespace(), os.geteuid()):
        return False
    return not tree.lives(*master[:2])


def _above() -> frozenset[int]:
    """The pids of this process, all its ancestors and process 1: possible parents of an orphan."""
    above = {1}
    pid: int | None = os.getpid()
    while pid:
        above.add(pid)
        pid = tree.parent(pid)
    return frozenset(above)


def _namespace() -> int:
    """The inode number of this process's pid namespace; pids are valid only inside of it."""
    return Path("/proc/self/ns/pid").stat().st_ino

"""The processes that tasks of dead masters have left running, found by a mark in the environment.

When a master and all its workers are killed at once, nobody is left to kill what their tasks had
started. Where the tasks had cgroups, the next master finds the processes there (see `cgroup`).
Elsewhere it finds those that have executed a program: they have inherited the variable
``PSCHED_MASTER``, which names the master by pid, start time, pid namespace and user. A process
that a handler has forked, and that executes nothing, shows the environment of the dead master,
which has no such variable. It is not found.

A process is killed only if both are true:

- Its mark names a master of this user, in this pid namespace, that is dead.
- It is an orphan: its parent is process 1 or one of the processes above this master. A task may
  have handed work to a batch system or to ``at``, together with its environment: the parent of
  such a process belongs to that system. The parent of what a living worker has to kill belongs to
  psched.
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
"""Seconds that a start waits for the end of what it has killed."""

_INTERVAL = 0.005
"""Seconds between two searches."""


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
    """KILL the orphans of dead masters' tasks, with all below them, and wait for their end."""
    with suppress(OSError):  # /proc cannot be read, or no descriptor is left
        above = _above()
        until = time.monotonic() + _KILL_TIMEOUT
        logged: set[int] = set()
        # What the killed ones had forked becomes orphans, which the next search finds.
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
            # Checked again, because the pid may have been reused before the descriptor was opened.
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
        # The environment of a zombie is empty.
        environment = tree.read(f"/proc/{pid}/environ").split(b"\0")
    except OSError:  # the process is gone, or another user's
        return False
    marks = filter(None, map(_MARK.fullmatch, environment))
    master = next((tuple(map(int, mark.groups())) for mark in marks), None)
    if master is None or master[2:] != (_namespace(), os.geteuid()):
        return False
    return not tree.lives(*master[:2])


def _above() -> frozenset[int]:
    """This process, all processes above it, and process 1: an orphan's parent is one of these."""
    above = {1}
    pid: int | None = os.getpid()
    while pid:
        above.add(pid)
        pid = tree.parent(pid)
    return frozenset(above)


def _namespace() -> int:
    """The number of this process's pid namespace, outside of which its pids mean nothing."""
    return Path("/proc/self/ns/pid").stat().st_ino

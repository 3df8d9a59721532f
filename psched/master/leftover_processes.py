"""Kills processes that tasks of dead masters have left running.

When a master and all its workers are killed at once, no process is left to kill the processes that
their tasks had started. If the tasks ran in cgroups, the next master finds those processes in the
cgroups (see `cgroup`). If the tasks did not run in cgroups, the next master searches the
environments of all processes for a mark: the variable ``PSCHED_MASTER``. Each master sets this
variable for the programs that its tasks execute. The variable's value identifies the master by pid,
start time, pid namespace and user.

A process that a handler has forked is not found if it has executed no program. For such a process,
the kernel shows the environment with which the dead master was started. The variable is missing
from this environment, because the master has set it only later.

A process is killed only if both conditions are true:

- Its mark identifies a dead master of this user and this pid namespace.
- It is an orphan: its parent is process 1, this master or an ancestor of this master. A task might
  have passed its environment to a batch system or to ``at``; processes of such a system are not
  killed, because their parent belongs to that system. Processes of a task whose worker is still
  alive are not killed either, because their parent belongs to psched and the worker kills them.

A worker that is suspended while its master is killed lives on, until its lease timer kills it. Then
its tasks' processes become orphans. So `search` is repeated while a dead master's worker lives.
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

_KILL_TIMEOUT = 5.0  # the most seconds for which `kill` waits until the killed processes have ended
_INTERVAL = 0.005  # seconds between two searches of /proc

PAUSE = 0.25
"""Seconds between two calls of `search`. A lease timer fires more than a second before the end of
the lease, and by then the processes must be killed."""

_HOLDERS = b"psched worker ", b"psched fork ser", b"psched runner"
"""The names of the processes whose descendants are not orphans yet; the kernel cuts names off."""


@contextmanager
def marked() -> Iterator[None]:
    """Within the block, set ``PSCHED_MASTER`` for all processes that this master starts."""
    pid = os.getpid()
    os.environ[_VARIABLE] = f"{pid}.{tree.start_time(pid)}.{_namespace()}.{os.geteuid()}"
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)


def search() -> bool:
    """Kill what the tasks of dead masters have left; return whether to do so after `PAUSE`."""
    # Look for workers first: what one leaves that ends in between is found below, or next time.
    goes_on = _outlives_its_master()
    kill(PAUSE)
    return goes_on


def _outlives_its_master() -> bool:
    """Whether a worker of a dead master lives, or one of its processes that end after it."""
    with suppress(OSError):
        # Workers of this master, and of one in whose task this master runs, have their master.
        above = _above() - {os.getpid()}
        adopters = {each for each in above if not _is_named(each, b"psched master")}
        return any(
            _is_named(pid, *_HOLDERS) and tree.alive(pid) and tree.parent(pid) in adopters
            for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))
        )
    return False


def _is_named(pid: int, *names: bytes) -> bool:
    """Whether a process has a title that begins so; also while it ends, and still has children."""
    try:
        return tree.read(f"/proc/{pid}/comm").startswith(names)
    except OSError:  # the process has ended
        return False


def kill(timeout: float = _KILL_TIMEOUT) -> None:
    """KILL orphans of dead masters and their descendants; log those alive after ``timeout`` s."""
    with suppress(OSError):  # if /proc cannot be read, kill nothing
        above = _above()
        until = time.monotonic() + timeout
        logged: set[int] = set()
        # Search again after the KILLs, because the children of a killed process become orphans.
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
            # Check again, because another process might have received the pid before the
            # descriptor was opened.
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
        # The environment of a zombie is empty, so no mark is found in it below.
        environment = tree.read(f"/proc/{pid}/environ").split(b"\0")
    except OSError:  # the process has ended or belongs to another user
        return False
    marks = filter(None, map(_MARK.fullmatch, environment))
    master = next((tuple(map(int, mark.groups())) for mark in marks), None)
    if master is None or master[2:] != (_namespace(), os.geteuid()):
        return False
    return not tree.lives(*master[:2])


def _above() -> frozenset[int]:
    """The pids of possible parents of an orphan: this process, its ancestors and process 1."""
    above = {1}
    pid: int | None = os.getpid()
    while pid:
        above.add(pid)
        pid = tree.parent(pid)
    return frozenset(above)


def _namespace() -> int:
    """The inode number of the pid namespace, in which alone a pid identifies a process."""
    return Path("/proc/self/ns/pid").stat().st_ino

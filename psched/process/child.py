"""A forked process as its parent sees it, and the interface by which it is forked and reaped.

::

    spawn ─▶ starting ── "ready" ─▶ ready ── stops too slowly ─▶ on the kill ladder ─▶ reaped
                 └────────── not ready in time ────────────────────▶  TERM … KILL

    See `KillLadder` for the signals that stop a child, and `OrphanReaper` for the processes that it
    leaves behind.
A worker is a child of its master. A runner is treated as a child of its worker, with other time
limits, although for the kernel it is a child of the worker's fork server (see
`psched.runner.fork_server`).
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from psched.base.clock import Clock
from psched.process import tree
from psched.process.cgroup import Cgroup
from psched.process.link import Link
from psched.process.spawn import spawn

_AGAIN = 1.0
"""Seconds between two KILLs. KILL is repeated while the process has not died yet."""


@dataclass(slots=True)
class KillLadder:
    """Says when to send TERM, which is repeated, and when to send KILL, which is repeated, too.

    Args:
        started: when the first signal is due, in seconds of the monotonic clock.
        interval: seconds between two TERMs.
        limit: seconds from ``started`` to the first KILL.

    Attributes:
        killing: whether `due` has returned KILL.
    """

    started: float
    interval: float
    limit: float
    _next: float = field(init=False)
    killing: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._next = self.started

    @property
    def wakes(self) -> float:
        """When the next signal is due, in seconds of the monotonic clock."""
        return self._next if self.killing else min(self._next, self.started + self.limit)

    def due(self, now: float) -> signal.Signals | None:
        """The signal to send now; None if none is due. The next one is due an interval later."""
        if now < self.wakes:
            return None
        self.killing = now >= self.started + self.limit
        self._next = now + (_AGAIN if self.killing else self.interval)
        return signal.SIGKILL if self.killing else signal.SIGTERM

    def hasten(self, now: float, limit: float) -> None:
        """Send the first KILL ``limit`` seconds after ``now``, unless it is due earlier anyway."""
        self.limit = min(self.limit, now + limit - self.started)


_STOPPED = 0.25
"""The part of its limit for which a child must be silent until it is found out whether it is
stopped. Children that work are not silent for so long."""

_CONTINUED = 2.0
"""Seconds after which a child that was found stopped must have been continued."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended.

    Attributes:
        pid: the process's pid.
        status: the process's exit status; None if a signal killed the process.
        signal: the number of the signal that killed the process; None if the process exited.
        cpu_us: the CPU time of the process and of those children for which it has waited, in
            microseconds; None if it is not known.
        peak_kb: the peak of memory of the largest of them, in KiB; None if it is not known.
    """

    pid: int
    status: int | None
    signal: int | None
    cpu_us: int | None = None
    peak_kb: int | None = None

    def __str__(self) -> str:
        if self.signal is not None:
            return f"was killed by {_name(self.signal)}"
        return f"exited with status {self.status}"


class ProcessTable(Protocol):
    """Examines and kills the descendants of this process, whose children include all orphans."""

    def kill_all(self, spare: frozenset[int]) -> bool:
        """KILL all descendants of this process; see `tree.kill_all_below`."""
        ...

    def living_below(self, spare: frozenset[int]) -> frozenset[int]:
        """The pids of this process's living descendants, except some children's."""
        ...

    def is_alive(self, pid: int) -> bool:
        """Whether a process exists and is not a zombie."""
        ...

    def is_stopped(self, pid: int) -> bool:
        """Whether a process is stopped by a signal, so that it does nothing until it gets CONT."""
        ...

    def describe(self, pid: int) -> str:
        """A short description of a process, for a log line."""
        ...


class Child:
    """A forked process and the link to it.

    Attributes:
        started: when the child was forked, in seconds of the monotonic clock.
        heard: when the child's last message arrived, in seconds of the monotonic clock.
        ready: whether the child has reported that it is ready.
        ladder: the schedule of the signals that stop the child; None if no signal is to stop it.
        exit: how the child ended; None until the child is reaped.
        last_words: the messages of the child that were still unread when the child was reaped.
        stuck: True if the child has ended, but one of its descendants has not died by KILL yet.
        cut_off: True if the child is being killed because it has sent an invalid message.
    """

    def __init__(self, pid: int, link: Link, now: float) -> None:
        self.pid = pid
        self.link = link
        self.started = now
        self.heard = now
        self.ready = False
        self.ladder: KillLadder | None = None
        self.exit: Exit | None = None
        self.last_words: list[Any] = []
        self.stuck = False
        self.cut_off = False
        self._was_stopped = False
        self._look_at = now

    def send(self, number: signal.Signals) -> None:
        """Send the child a signal.

        Do nothing if the child has been reaped, because its pid might belong to another process.
        """
        if self.exit is None:
            tree.send(self.pid, number)

    def is_stopped(self, now: float, limit: float, processes: ProcessTable) -> bool:
        """Whether the child is silent because a signal has stopped it, so that it is to be killed.

        It is not awaited like a child that hangs, which it would be after ``limit`` seconds of
        silence, because it can hold a lock of the database.
        """
        if now < self.next_look(limit):
            return False
        # Look twice: who has stopped all processes continues them one after the other.
        was_stopped = self._was_stopped and self.heard < self._look_at - _CONTINUED
        self._was_stopped = processes.is_stopped(self.pid)
        self._look_at = now + _CONTINUED
        return was_stopped and self._was_stopped

    def next_look(self, limit: float) -> float:
        """When to call `is_stopped` again, in seconds of the monotonic clock."""
        return max(self.heard + _STOPPED * limit, self._look_at)

    def reaped(self, how: Exit) -> None:
        """Store how the child ended, read its last messages into `last_words`, close the link."""
        self.exit = how
        try:
            self.last_words = self.link.receive_all()
        finally:
            self.link.close()


def reap() -> Iterator[Exit]:
    """Reap every child that has exited, including adopted orphans; yield how each one ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield exit_of(pid, status)


def exit_of(pid: int, status: int) -> Exit:
    """How a process has ended, from the result of waitpid(2)."""
    code = os.waitstatus_to_exitcode(status)
    return Exit(pid, code if code >= 0 else None, -code if code < 0 else None)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


class Spawner(ProcessTable, Protocol):
    """Forks children, signals them and collects their exit statuses."""

    def spawn(self, main: Callable[[Link], int], *, keep: Iterable[int]) -> tuple[int, Link]:
        """Fork a child that exits with what ``main`` returns; return its pid and our end of a link.

        The child keeps standard output, standard error and the descriptors ``keep``. An OSError
        says that the system has no process, memory or descriptor left.
        """
        ...

    def reap(self) -> Iterator[Exit]:
        """Reap every child that has exited, including adopted orphans; see `child.reap`."""
        ...

    def send(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a process; do nothing if the process has ended."""
        ...

    def children(self) -> frozenset[int]:
        """This process's children."""
        ...


class SystemSpawner:
    """Forks, examines and signals real processes, by the kernel's system calls."""

    spawn = staticmethod(spawn)
    reap = staticmethod(reap)
    send = staticmethod(tree.send)
    is_alive = staticmethod(tree.alive)
    is_stopped = staticmethod(tree.stopped)
    describe = staticmethod(tree.describe)

    def children(self) -> frozenset[int]:
        """This process's children, zombies included."""
        return frozenset(tree.children(os.getpid()))

    def kill_all(self, spare: frozenset[int]) -> bool:
        """KILL all descendants of this process; see `tree.kill_all_below`."""
        return tree.kill_all_below(os.getpid(), spare)

    def living_below(self, spare: frozenset[int]) -> frozenset[int]:
        """The pids of this process's living descendants; see `tree.living_below`."""
        return tree.living_below(os.getpid(), spare)


_SOON = 0.05
_LATER = 0.25
"""Seconds between two sweeps while a process survives KILL: `_SOON` after the first sweep that
finds such a process, `_LATER` after each further sweep."""

_NEVER = float("inf")

_LONG = 2.0
"""Seconds after a child's exit at which its surviving descendants are reported as `late`."""

C = TypeVar("C", bound=Child)


@dataclass(slots=True, eq=False)
class _Orphans(Generic[C]):
    """The processes that one exited child has left behind.

    Attributes:
        child: the child, which has exited.
        cgroup: the child's own cgroup; None if the child had none.
        others: pids of orphans that are not this child's, because they are older than this child.
        since: when `OrphanReaper.add` was called, in seconds of the monotonic clock.
        late: whether the surviving processes have been reported, because they take long to die.
        populated: whether a process was in the cgroup when the cgroup was last examined.
    """

    child: C
    cgroup: Cgroup | None
    others: frozenset[int]
    since: float
    late: bool = False
    populated: bool = False

    def is_populated(self) -> bool:
        """Examine whether a living process is in the cgroup; store the result in `populated`."""
        self.populated = self.cgroup is not None and self.cgroup.populated
        return self.populated


class OrphanReaper(Generic[C]):
    """Kills the processes that exited children of this process have left running.

    A child's descendants can survive the child's exit. The descendants are all dead when a walk
    (see `tree`) finds none of them, and the child's cgroup (see `cgroup`), if it had one, is empty.
    Usually the first sweep kills them all. More sweeps are needed if a process cannot be killed
    now, for example in uninterruptible sleep on an unavailable file server. `sweep` does not wait
    for such a process; the caller calls it again later.

    Args:
        clock: the clock by which `due` and `younger_than` measure time.
        processes: finds and kills the processes below this one; None means the kernel's processes,
            and tests pass simulated ones.

    Attributes:
        late: exited children whose descendants take long to die, each with a description of these
            descendants. The owner of this object reports the children and empties the list.
        wakes: when to call `sweep` again, in seconds of the monotonic clock; infinity means never.
    """

    def __init__(self, clock: Clock, processes: ProcessTable | None = None) -> None:
        self.late: list[tuple[C, str]] = []
        self._clock = clock
        self._processes = SystemSpawner() if processes is None else processes
        self._orphans: list[_Orphans[C]] = []
        self.wakes = _NEVER
        self._pause = 0.0
        self._left: frozenset[int] = frozenset()
        # The keys are the pids of living children. The values are the orphans that are known to
        # be of other children, so that they do not count when the child's own orphans are killed.
        self._not_theirs: dict[int, frozenset[int]] = {}

    def born(self, child: C) -> None:
        """Note that a child was forked; call this at once after the fork.

        Orphans that exist already cannot be this child's descendants.
        """
        self._not_theirs[child.pid] = self._left

    @property
    def due(self) -> bool:
        """Whether it is time to call `sweep` again."""
        return self._clock.monotonic() >= self.wakes

    def younger_than(self, seconds: float) -> bool:
        """Whether a child that exited less than ``seconds`` ago might have living descendants."""
        since = self._clock.monotonic() - seconds
        return any(orphans.since > since for orphans in self._orphans)

    def add(self, child: C, cgroup: Cgroup | None) -> None:
        """Note that a child has exited and been reaped."""
        others = self._not_theirs.pop(child.pid, frozenset())
        self._orphans.append(_Orphans(child, cgroup, others, self._clock.monotonic()))

    def sweep(self, spare: frozenset[int]) -> list[C]:
        """KILL all descendants of this process, except some children and their descendants.

        Return the exited children whose descendants are all dead, each only once.
        """
        before = self._left
        for orphans in self._orphans:
            if orphans.is_populated() and orphans.cgroup is not None:
                orphans.cgroup.kill()
        clean = self._processes.kill_all(spare)
        left = frozenset() if clean else self._processes.living_below(spare)
        # Store the orphans only for living children. A child that is dead but not yet reaped might
        # have left some of these orphans itself.
        alive = filter(self._processes.is_alive, spare if left else ())
        self._not_theirs = dict.fromkeys(alive, left)
        self._left = left
        gone = [orphans for orphans in self._orphans if self._is_gone(orphans, spare, clean=clean)]
        self._orphans = [orphans for orphans in self._orphans if orphans not in gone]
        now = self._clock.monotonic()
        if clean and not self._orphans:
            self._pause, self.wakes = 0.0, _NEVER
        else:
            # Sweep again without a pause if new processes have appeared since the last sweep.
            storm = not clean and not (left and left <= before)
            self._pause = 0.0 if storm else _LATER if self._pause else _SOON
            self.wakes = now + self._pause
        for orphans in self._orphans:
            orphans.others &= left
            if not orphans.late and now > orphans.since + _LONG:
                orphans.late = orphans.child.stuck = True
                pids = left - orphans.others | frozenset(
                    orphans.cgroup.pids if orphans.cgroup else ()
                )
                what = ", ".join(map(self._processes.describe, sorted(pids)))
                self.late.append((orphans.child, what))
        return [orphans.child for orphans in gone]

    def _is_gone(self, orphans: _Orphans[C], spare: frozenset[int], *, clean: bool) -> bool:
        # Examine a populated cgroup again, because `sweep` has just killed its processes.
        if orphans.populated and orphans.is_populated():
            return False
        # If processes survive, ignore those that other children have left: this child's
        # descendants are dead if everything else is.
        others = orphans.others
        return clean or bool(others and self._processes.kill_all(spare | others))

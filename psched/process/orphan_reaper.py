"""Kills processes that exited children have left running, repeatedly until none is left.

A child's descendants can survive the child's exit. The descendants are all dead when a walk (see
`tree`) finds none of them, and the child's cgroup (see `cgroup`), if it had one, is empty. Usually
the first sweep kills them all. More sweeps are needed if a process cannot be killed now, for
example in uninterruptible sleep on an unavailable file server. `OrphanReaper.sweep` does not wait
for such a process; the caller calls `sweep` again later.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from psched.base.clock import Clock
from psched.process.cgroup import Cgroup
from psched.process.child import Child, ProcessTable, SystemSpawner

_SOON = 0.05
_LATER = 0.25
"""Seconds between two sweeps while a process survives KILL: `_SOON` after the first sweep that
finds such a process, `_LATER` after each further sweep."""

_NEVER = float("inf")

_LONG = 2.0
"""Seconds after a child's exit at which its surviving descendants are reported as `late`."""

C = TypeVar("C", bound=Child)


@dataclass(slots=True, eq=False)
class _Tree(Generic[C]):
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
        self._trees: list[_Tree[C]] = []
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
        return any(tree.since > since for tree in self._trees)

    def add(self, child: C, cgroup: Cgroup | None) -> None:
        """Note that a child has exited and been reaped."""
        others = self._not_theirs.pop(child.pid, frozenset())
        self._trees.append(_Tree(child, cgroup, others, self._clock.monotonic()))

    def sweep(self, spare: frozenset[int]) -> list[C]:
        """KILL all descendants of this process, except some children and their descendants.

        Returns:
            The exited children whose descendants are all dead; each child is returned only once.
        """
        before = self._left
        for tree in self._trees:
            if tree.is_populated() and tree.cgroup is not None:
                tree.cgroup.kill()
        clean = self._processes.kill_all(spare)
        left = frozenset() if clean else self._processes.living_below(spare)
        # Store the orphans only for living children. A child that is dead but not yet reaped might
        # have left some of these orphans itself.
        alive = filter(self._processes.is_alive, spare if left else ())
        self._not_theirs = dict.fromkeys(alive, left)
        self._left = left
        gone = [tree for tree in self._trees if self._is_gone(tree, spare, clean=clean)]
        self._trees = [tree for tree in self._trees if tree not in gone]
        now = self._clock.monotonic()
        if clean and not self._trees:
            self._pause, self.wakes = 0.0, _NEVER
        else:
            # Sweep again without a pause if new processes have appeared since the last sweep.
            storm = not clean and not (left and left <= before)
            self._pause = 0.0 if storm else _LATER if self._pause else _SOON
            self.wakes = now + self._pause
        for tree in self._trees:
            tree.others &= left
            if not tree.late and now > tree.since + _LONG:
                tree.late = tree.child.stuck = True
                pids = left - tree.others | frozenset(tree.cgroup.pids if tree.cgroup else ())
                what = ", ".join(map(self._processes.describe, sorted(pids)))
                self.late.append((tree.child, what))
        return [tree.child for tree in gone]

    def _is_gone(self, tree: _Tree[C], spare: frozenset[int], *, clean: bool) -> bool:
        # Examine a populated cgroup again, because `sweep` has just killed its processes.
        if tree.populated and tree.is_populated():
            return False
        # If processes survive, ignore those that other children have left: this child's
        # descendants are dead if everything else is.
        others = tree.others
        return clean or bool(others and self._processes.kill_all(spare | others))

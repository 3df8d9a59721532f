"""Kills processes that exited children have left running, repeatedly until none is left.

A child's descendants may survive its exit. The child's tree is gone when a walk (see `tree`) finds
no process of the tree, and the child's cgroup (see `cgroup`), if it had one, is empty. Usually the
first sweep achieves this. More sweeps are needed if a process cannot be killed now, for example in
uninterruptible sleep on an unavailable file server. `OrphanReaper.sweep` does not wait for such a
process; the caller calls it again later.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from psched.base.clock import Clock
from psched.process.cgroup import Cgroup
from psched.process.child import Child
from psched.process.spawner import ProcessTable, SystemSpawner

_SOON = 0.05
_LATER = 0.25
"""Seconds between two sweeps while a process does not die: first `_SOON`, then `_LATER`."""

_NEVER = float("inf")

_LONG = 2.0
"""Seconds after which a tree with processes that do not die is reported."""

C = TypeVar("C", bound=Child)


@dataclass(slots=True, eq=False)
class _Tree(Generic[C]):
    """The processes that one exited child has left behind.

    Attributes:
        child: the child, which has exited.
        cgroup: the child's own cgroup, with its tree; None: the child had none.
        others: processes that are known to belong to another child.
        since: when the child's exit was noted, in seconds of the monotonic clock.
        late: the tree has been reported because it takes long to die.
        populated: a process was in the cgroup when the cgroup was last examined.
    """

    child: C
    cgroup: Cgroup | None
    others: frozenset[int]
    since: float
    late: bool = False
    populated: bool = False

    def is_populated(self) -> bool:
        """Examine the cgroup: whether a process is in it."""
        self.populated = self.cgroup is not None and self.cgroup.populated
        return self.populated


class OrphanReaper(Generic[C]):
    """The trees of those children of this process that have exited.

    Args:
        clock: says when to sweep again.
        processes: those below this process; None: the kernel's.

    Attributes:
        late: children whose trees take long to die, each with a description of what is left. The
            owner reports them and empties the list.
    """

    def __init__(self, clock: Clock, processes: ProcessTable | None = None) -> None:
        self.late: list[tuple[C, str]] = []
        self._clock = clock
        self._processes = SystemSpawner() if processes is None else processes
        self._trees: list[_Tree[C]] = []
        self._wakes = _NEVER
        self._pause = 0.0
        self._left: frozenset[int] = frozenset()
        # By the pid of each living child: the orphans that were there before it was forked, so that
        # they belong to the trees of other children.
        self._not_theirs: dict[int, frozenset[int]] = {}

    def born(self, child: C) -> None:
        """Note that a child was forked: orphans that exist already cannot be of its tree."""
        self._not_theirs[child.pid] = self._left

    @property
    def wakes(self) -> float:
        """When to call `sweep` again, in seconds of the monotonic clock."""
        return self._wakes

    @property
    def due(self) -> bool:
        """Whether it is time to call `sweep` again."""
        return self._clock.monotonic() >= self._wakes

    def younger_than(self, seconds: float) -> bool:
        """Whether something is left of a child that exited less than so many seconds ago."""
        since = self._clock.monotonic() - seconds
        return any(tree.since > since for tree in self._trees)

    def add(self, child: C, cgroup: Cgroup | None) -> None:
        """Note that a child has exited and been reaped.

        Args:
            child: the child.
            cgroup: the one that it was in.
        """
        others = self._not_theirs.pop(child.pid, frozenset())
        self._trees.append(_Tree(child, cgroup, others, self._clock.monotonic()))

    def sweep(self, spare: frozenset[int]) -> list[C]:
        """KILL everything below this process.

        Args:
            spare: children that are left alone, with everything below them.

        Returns:
            The children that have exited and of whose trees nothing is left, each once.
        """
        before = self._left
        for tree in self._trees:
            if tree.is_populated() and tree.cgroup is not None:
                tree.cgroup.kill()
        clean = self._processes.kill_all(spare)
        left = frozenset() if clean else self._processes.living_below(spare)
        # Leave out dead children that are not reaped: some of these orphans may be theirs.
        alive = filter(self._processes.is_alive, spare if left else ())
        self._not_theirs = dict.fromkeys(alive, left)
        self._left = left
        gone = [tree for tree in self._trees if self._is_gone(tree, spare, clean=clean)]
        self._trees = [tree for tree in self._trees if tree not in gone]
        now = self._clock.monotonic()
        if clean and not self._trees:
            self._pause, self._wakes = 0.0, _NEVER
        else:
            # If new processes keep appearing, the next sweep follows without a pause.
            storm = not clean and not (left and left <= before)
            self._pause = 0.0 if storm else _LATER if self._pause else _SOON
            self._wakes = now + self._pause
        for tree in self._trees:
            tree.others &= left
            if not tree.late and now > tree.since + _LONG:
                tree.late = tree.child.stuck = True
                pids = left - tree.others | frozenset(tree.cgroup.pids if tree.cgroup else ())
                what = ", ".join(map(self._processes.describe, sorted(pids)))
                self.late.append((tree.child, what))
        return [tree.child for tree in gone]

    def _is_gone(self, tree: _Tree[C], spare: frozenset[int], *, clean: bool) -> bool:
        # A cgroup that was populated has just been killed; it is examined again.
        if tree.populated and tree.is_populated():
            return False
        # Processes that another child has left, and that cannot be killed, do not count.
        others = tree.others
        return clean or bool(others and self._processes.kill_all(spare | others))

"""What ended children have left running: killed, looked at again, and told when it is gone.

A child's end says nothing of what it had forked. Its tree is empty when a walk (see `tree`) finds
nothing of it, and its cgroup, if it had one (see `cgroup`), holds no process. Mostly that is so
at once. It is not while there is a process that cannot be killed now: in uninterruptible sleep,
say, on a file server that is away. Whoever asks is not made to wait for that.
"""

import os
from dataclasses import dataclass
from typing import Generic, TypeVar

from psched.base.clock import Clock
from psched.process import tree
from psched.process.cgroup import Cgroup
from psched.process.child import Child

_SOON = 0.05
_LATER = 0.25
"""Seconds until what does not die is looked at again, the first time and then."""

_NEVER = float("inf")

_LONG = 2.0
"""Seconds after which it is time to tell somebody."""

C = TypeVar("C", bound=Child)


@dataclass(slots=True, eq=False)
class _Tree(Generic[C]):
    """What one child has left.

    Attributes:
        child: which has ended.
        cgroup: the one it was in, with its tree.
        others: processes that are known to be another child's.
        since: when it ended.
        late: somebody was told.
        populated: there was a process in its cgroup when it was looked at last.
    """

    child: C
    cgroup: Cgroup | None
    others: frozenset[int]
    since: float
    late: bool = False
    populated: bool = False

    def look(self) -> bool:
        """See whether there is a process in its cgroup."""
        self.populated = self.cgroup is not None and self.cgroup.populated
        return self.populated


class OrphanReaper(Generic[C]):
    """The trees of this process's ended children.

    Args:
        clock: this host's clocks.

    Attributes:
        late: children whose tree takes long to be gone, and what is left of it, in a line; for
            the owner to take and to tell.
    """

    def __init__(self, clock: Clock) -> None:
        self.late: list[tuple[C, str]] = []
        self._clock = clock
        self._trees: list[_Tree[C]] = []
        self._wakes = _NEVER
        self._pause = 0.0
        self._left: frozenset[int] = frozenset()
        # For children that were alive then, or forked since: what cannot be theirs.
        self._not_theirs: dict[int, frozenset[int]] = {}

    def born(self, child: C) -> None:
        """A child has been forked: what was left before cannot be its."""
        self._not_theirs[child.pid] = self._left

    @property
    def wakes(self) -> float:
        """When `look` is to be called again, seconds of the monotonic clock."""
        return self._wakes

    @property
    def due(self) -> bool:
        """Whether it is time to look again."""
        return self._clock.monotonic() >= self._wakes

    def younger_than(self, seconds: float) -> bool:
        """Whether something is left of a child that ended less than so many seconds ago."""
        since = self._clock.monotonic() - seconds
        return any(each.since > since for each in self._trees)

    def add(self, child: C, cgroup: Cgroup | None) -> None:
        """A child has ended; it has been reaped."""
        others = self._not_theirs.pop(child.pid, frozenset())
        self._trees.append(_Tree(child, cgroup, others, self._clock.monotonic()))

    def look(self, spare: frozenset[int]) -> list[C]:
        """KILL what is below this process.

        Args:
            spare: children that are left alone, with all below them.

        Returns:
            The ended children of whom nothing is left, each once.
        """
        pid, before = os.getpid(), self._left
        for each in self._trees:
            if each.look() and each.cgroup is not None:
                each.cgroup.kill()
        clean = tree.kill_all_below(pid, spare)
        left = frozenset() if clean else tree.living_below(pid, spare)
        # Of one that has died meanwhile orphans may have come to us already.
        self._not_theirs = {child: left for child in spare if left and tree.alive(child)}
        self._left = left
        gone = [each for each in self._trees if self._is_gone(each, spare, clean=clean)]
        self._trees = [each for each in self._trees if each not in gone]
        now = self._clock.monotonic()
        if clean and not self._trees:
            self._pause, self._wakes = 0.0, _NEVER
        else:
            # What goes on forking is not left alone for a moment.
            storm = not clean and not (left and left <= before)
            self._pause = 0.0 if storm else _LATER if self._pause else _SOON
            self._wakes = now + self._pause
        for each in self._trees:
            each.others &= left
            if not each.late and now > each.since + _LONG:
                each.late = each.child.stuck = True
                there = left - each.others | frozenset(each.cgroup.pids if each.cgroup else ())
                self.late.append((each.child, ", ".join(map(tree.describe, sorted(there)))))
        return [each.child for each in gone]

    def _is_gone(self, each: _Tree[C], spare: frozenset[int], *, clean: bool) -> bool:
        # If there was one, it was killed a moment ago.
        if each.populated and each.look():
            return False
        # What another has left, and cannot be killed, does not count.
        others = each.others
        return clean or bool(others and tree.kill_all_below(os.getpid(), spare | others))

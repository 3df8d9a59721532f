"""The interface by which a parent forks, signals and reaps processes; a test can replace it.

`SystemSpawner` uses the kernel; `psched.testing.ManualSpawner` serves tests and simulations.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from psched.process import tree
from psched.process.child import Exit, reap
from psched.process.link import Link
from psched.process.spawn import spawn


class ProcessTable(Protocol):
    """The processes below this one, which is a subreaper: orphans become its children."""

    def kill_all(self, spare: frozenset[int]) -> bool:
        """KILL everything below this process; see `tree.kill_all_below`.

        Args:
            spare: children that are left alone, with everything below them.

        Returns:
            Whether nothing but zombies is left. If not, call again soon.
        """
        ...

    def living_below(self, spare: frozenset[int]) -> frozenset[int]:
        """The processes below this one that are alive, except below some children.

        Args:
            spare: the children that do not count, nor what is below them.
        """
        ...

    def is_alive(self, pid: int) -> bool:
        """Whether a process exists and is not a zombie."""
        ...

    def describe(self, pid: int) -> str:
        """A process in a few words, for a log line."""
        ...


class Spawner(ProcessTable, Protocol):
    """Forks children, signals them and collects their exit statuses."""

    def spawn(self, main: Callable[[Link], int], *, keep: Iterable[int]) -> tuple[int, Link]:
        """Fork a child that runs ``main`` with its end of a new link.

        Args:
            main: the child's whole life; what it returns is its exit status.
            keep: descriptors that the child needs besides standard input, output and error.

        Returns:
            The child's pid, and the parent's end of the link.

        Raises:
            OSError: the system has no process, memory or descriptor left.
        """
        ...

    def reap(self) -> Iterator[Exit]:
        """Collect every child that has exited, orphans included."""
        ...

    def send(self, pid: int, number: signal.Signals) -> None:
        """Send a signal; a process that is gone is no error."""
        ...

    def children(self) -> frozenset[int]:
        """This process's children."""
        ...


class SystemSpawner:
    """The kernel's processes."""

    spawn = staticmethod(spawn)
    reap = staticmethod(reap)
    send = staticmethod(tree.send)
    is_alive = staticmethod(tree.alive)
    describe = staticmethod(tree.describe)

    def children(self) -> frozenset[int]:
        """This process's children, zombies included."""
        return frozenset(tree.children(os.getpid()))

    def kill_all(self, spare: frozenset[int]) -> bool:
        """KILL everything below this process; see `tree.kill_all_below`."""
        return tree.kill_all_below(os.getpid(), spare)

    def living_below(self, spare: frozenset[int]) -> frozenset[int]:
        """The processes below this one that are alive; see `tree.living_below`."""
        return tree.living_below(os.getpid(), spare)

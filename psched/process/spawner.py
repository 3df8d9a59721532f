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
    """Examines and kills the descendants of this process, whose children include all orphans."""

    def kill_all(self, spare: frozenset[int]) -> bool:
        """KILL all descendants of this process; see `tree.kill_all_below`.

        Args:
            spare: the pids of children that are not killed, nor are their descendants.

        Returns:
            Whether only zombies are left. If not, call the method again soon.
        """
        ...

    def living_below(self, spare: frozenset[int]) -> frozenset[int]:
        """The pids of this process's living descendants, except some children's.

        Args:
            spare: the pids of children that are left out, together with their descendants.
        """
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


class Spawner(ProcessTable, Protocol):
    """Forks children, signals them and collects their exit statuses."""

    def spawn(self, main: Callable[[Link], int], *, keep: Iterable[int]) -> tuple[int, Link]:
        """Fork a child that calls ``main`` with the child's end of a new link.

        Args:
            main: the function that the child calls; the child exits with the status that ``main``
                returns.
            keep: descriptors that the child needs besides standard output and standard error.

        Returns:
            The child's pid, and the parent's end of the link.

        Raises:
            OSError: the system has no process, memory or descriptor left.
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

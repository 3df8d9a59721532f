"""Replacements for child processes: objects that do what a test decides."""

import itertools
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from psched.process.child import Exit, Spawner
from psched.process.link import Link


class ManualChild:
    """A child of a `ManualSpawner`, which is not a process.

    KILL ends the child at once, unless `stuck` is set. Other signals are only added to `signals`.

    Attributes:
        pid: the child's number, which the parent uses as a pid.
        main: the function that the parent wants the child to run. Nothing calls it, except a
            simulation.
        link: the child's end of a real link to the parent.
        received: the parent's messages that `receive` has read, in order.
        signals: the signals that the parent has sent to the child, in order.
        stuck: whether the child ignores KILL, like a process in uninterruptible sleep; set by the
            test.
        stopped: whether the child seems to be stopped by the signal STOP; set by the test.
        exit: how the child has ended; None while it is alive.
    """

    def __init__(self, pid: int, main: Callable[[Link], int], link: Link) -> None:
        self.pid = pid
        self.main = main
        self.link = link
        self.received: list[Mapping[str, Any]] = []
        self.signals: list[signal.Signals] = []
        self.stuck = self.stopped = False
        self.exit: Exit | None = None

    @property
    def lives(self) -> bool:
        """Whether the child has not ended."""
        return self.exit is None

    def say(self, **message: object) -> None:
        """Send a message from the child to its parent."""
        self.link.send(message)

    def receive(self) -> list[Mapping[str, Any]]:
        """Read and return the parent's messages that have arrived since the last call."""
        messages = self.link.receive()
        self.received += messages
        return messages

    def exits(self, status: int = 0) -> None:
        """End the child, as if it had exited with this status."""
        self._end(Exit(self.pid, status, None))

    def dies(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the child, as if this signal had killed it."""
        self._end(Exit(self.pid, None, number))

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the child; KILL ends it unless it is `stuck`."""
        self.signals.append(number)
        if number == signal.SIGKILL and not self.stuck:
            self.dies()

    def _end(self, how: Exit) -> None:
        if self.exit is None:
            self.receive()
            self.exit = how
            self.link.close()


class ManualSpawner(Spawner):
    """A `psched.process.child.Spawner` whose children are not processes; a test ends them.

    Attributes:
        born: every child that was spawned, in the order of creation.
        refusal: the error that `spawn` raises; None if `spawn` succeeds. A test sets it.
        orphans: pids of processes that were started by children which have ended. KILL does not end
            these processes. A test adds and removes their pids.
    """

    def __init__(self) -> None:
        self.born: list[ManualChild] = []
        self.refusal: OSError | None = None
        self.orphans: set[int] = set()
        self._pids = itertools.count(1000)
        self._by_pid: dict[int, ManualChild] = {}

    @property
    def living(self) -> list[ManualChild]:
        """The children that have not ended."""
        return [child for child in self.born if child.lives]

    def spawn(self, main: Callable[[Link], int], *, keep: Iterable[int]) -> tuple[int, Link]:
        """Create a child that does not run ``main``; return its pid and the parent's end of a link.

        Raises:
            OSError: the test has set `refusal`.
        """
        del keep
        if self.refusal is not None:
            raise self.refusal
        ours, theirs = Link.pair()
        child = ManualChild(next(self._pids), main, theirs)
        self.born.append(child)
        self._by_pid[child.pid] = child
        return child.pid, ours

    def reap(self) -> Iterator[Exit]:
        """For each child that has ended since the last call, yield how it has ended."""
        for pid, child in [*self._by_pid.items()]:
            if child.exit is not None:
                del self._by_pid[pid]
                yield child.exit

    def send(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to the child with this pid; do nothing if no such child is alive."""
        if (child := self._by_pid.get(pid)) is not None and child.lives:
            child.send(number)

    def children(self) -> frozenset[int]:
        """The pids of the children whose end `reap` has not reported."""
        return frozenset(self._by_pid)

    def kill_all(self, spare: frozenset[int]) -> bool:
        """Kill nothing; return whether ``spare`` contains all orphans."""
        return not self.orphans - spare

    def living_below(self, spare: frozenset[int]) -> frozenset[int]:
        """The pids of the orphans, except those in ``spare``."""
        return frozenset(self.orphans - spare)

    def is_alive(self, pid: int) -> bool:
        """Whether a process is an orphan, or a child that has not ended."""
        child = self._by_pid.get(pid)
        return pid in self.orphans or (child is not None and child.lives)

    def is_stopped(self, pid: int) -> bool:
        """Whether the child is `stopped`."""
        return pid in self._by_pid and self._by_pid[pid].stopped

    def describe(self, pid: int) -> str:
        """The process's pid, as text."""
        return str(pid)

    def close(self) -> None:
        """Close the ends of all links that belong to the children."""
        for child in self.born:
            child.link.close()

"""Child processes that exist only in a test, which decides what they do."""

import itertools
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from psched.process.child import Exit
from psched.process.link import Link
from psched.process.spawner import Spawner


class ManualChild:
    """A child of a `ManualSpawner`.

    It dies of KILL at once, unless `stuck` is set. Other signals are only noted.

    Attributes:
        pid: its number.
        main: what its parent wants it to run. A simulation may call it; a test need not.
        link: the child's end of a real link.
        received: the messages that it has read from its parent, by `receive`.
        signals: the signals that it was sent.
        stuck: it is in uninterruptible sleep: KILL takes effect when this is set back.
        exit: how it ended; None: it lives.
    """

    def __init__(self, pid: int, main: Callable[[Link], int], link: Link) -> None:
        self.pid = pid
        self.main = main
        self.link = link
        self.received: list[Mapping[str, Any]] = []
        self.signals: list[signal.Signals] = []
        self.stuck = False
        self.exit: Exit | None = None

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self.exit is None

    def say(self, **message: object) -> None:
        """Send the child's parent a message."""
        self.link.send(message)

    def receive(self) -> list[Mapping[str, Any]]:
        """Read the messages that have arrived since the last call."""
        messages = self.link.receive()
        self.received += messages
        return messages

    def exits(self, status: int = 0) -> None:
        """End the child by an exit status."""
        self._end(Exit(self.pid, status, None))

    def dies(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the child by a signal."""
        self._end(Exit(self.pid, None, number))

    def send(self, number: signal.Signals) -> None:
        """Send the child a signal."""
        self.signals.append(number)
        if number == signal.SIGKILL and not self.stuck:
            self.dies()

    def _end(self, how: Exit) -> None:
        if self.exit is None:
            self.receive()
            self.exit = how
            self.link.close()


class ManualSpawner(Spawner):
    """A `psched.process.spawner.Spawner` whose processes a test makes, watches and ends.

    Attributes:
        born: every child that was spawned, in order.
        refusal: the error that `spawn` raises instead of forking; None: `spawn` succeeds.
        orphans: processes that dead children have left and that cannot be killed yet. A test adds
            and removes their pids.
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
        """Make a child, which runs nothing."""
        del keep
        if self.refusal is not None:
            raise self.refusal
        ours, theirs = Link.pair()
        child = ManualChild(next(self._pids), main, theirs)
        self.born.append(child)
        self._by_pid[child.pid] = child
        return child.pid, ours

    def reap(self) -> Iterator[Exit]:
        """Collect the children that have ended, each once."""
        for pid, child in [*self._by_pid.items()]:
            if child.exit is not None:
                del self._by_pid[pid]
                yield child.exit

    def send(self, pid: int, number: signal.Signals) -> None:
        """Send a child a signal."""
        if (child := self._by_pid.get(pid)) is not None and child.lives:
            child.send(number)

    def children(self) -> frozenset[int]:
        """The pids of the children that have not been reaped."""
        return frozenset(self._by_pid)

    def kill_all(self, spare: frozenset[int]) -> bool:
        """Kill nothing; return whether there are no orphans, which survive KILL in a test."""
        return not self.orphans - spare

    def living_below(self, spare: frozenset[int]) -> frozenset[int]:
        """The orphans."""
        return frozenset(self.orphans - spare)

    def is_alive(self, pid: int) -> bool:
        """Whether a process is an orphan, or a child that has not ended."""
        child = self._by_pid.get(pid)
        return pid in self.orphans or (child is not None and child.lives)

    def describe(self, pid: int) -> str:
        """A process's pid, as text."""
        return str(pid)

    def close(self) -> None:
        """Close the children's ends of their links."""
        for child in self.born:
            child.link.close()

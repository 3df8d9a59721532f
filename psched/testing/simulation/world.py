"""One event heap on which simulated processes run psched's real code, one at a time.

Each process is a greenlet. It runs until it waits, for a reply of the store or in its main loop;
then the world runs whatever is due next. Time passes only between two events, so an hour costs as
much as what happens in it. The order of events depends on nothing but the seed.
"""

import random
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from greenlet import GreenletExit, getcurrent, greenlet
from typing_extensions import override

from psched.base.clock import Clock

START = 1_900_000_000.0  # the time at which a simulation begins, in Unix seconds


_SHORTEST = 0.001  # the shortest wait of a process, in seconds


class KilledError(GreenletExit):
    """Raised in a process that was killed. It is a ``BaseException``, as nothing may catch it."""


class World:
    """The time, and what happens when."""

    def __init__(self, seed: int) -> None:
        self.now = START  # the true time, in Unix seconds
        self.events = 0  # how many events have happened
        # The greenlet that runs the world, and from which processes are resumed.
        self.main = getcurrent()
        self._seed = seed
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()

    def rng(self, purpose: str) -> random.Random:
        """A source of random numbers of its own, so that a fault more or less shifts no others."""
        return random.Random(f"{self._seed} {purpose}")  # noqa: S311  # no secret

    def at(self, time: float, call: Callable[[], object]) -> None:
        """Have a function called at a time; now, if that time has passed."""
        heappush(self._heap, (max(time, self.now), next(self._numbers), call))

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Have a function called some seconds from now."""
        self.at(self.now + seconds, call)

    def run(self, until: float) -> None:
        """Have everything happen up to a time."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, call = heappop(self._heap)
            self.events += 1
            call()
        self.now = until


class Host:
    """The clocks of one host, ahead by ``wall`` seconds, and faster by the factor ``rate``."""

    def __init__(self, world: World, name: str, *, wall: float = 0.0, rate: float = 1.0) -> None:
        self.world = world
        self.name = name
        self.wall = wall
        self.rate = rate
        self.suspended = 0.0  # for how many seconds the host was suspended

    @property
    def uptime(self) -> float:
        """The seconds of the boot-time clock."""
        return (self.world.now - START) * self.rate + 1000


class HostClock(Clock):
    """The clocks of a host, as one of its processes reads them."""

    def __init__(self, host: Host, pause: Callable[[float], object]) -> None:
        self._host = host
        self._pause = pause

    @override
    def monotonic(self) -> float:
        return self._host.uptime - self._host.suspended

    @override
    def boottime(self) -> float:
        return self._host.uptime

    @override
    def wall(self) -> float:
        return self._host.uptime + START - 1000 + self._host.wall

    @override
    def sleep(self, seconds: float) -> None:
        self._pause(seconds)


class Process:
    """A simulated process, which waits by `pause` only. ``ended`` is told None if it was killed."""

    def __init__(
        self, host: Host, main: Callable[[], int], ended: Callable[[int | None], object]
    ) -> None:
        self.host = host
        self.clock = HostClock(host, self.pause)  # the clocks that it reads
        self.lives = True  # whether it has not ended
        self.frozen = 0  # whether it is stopped, by the signal STOP or with its host
        self._ended = ended
        self._world = host.world
        self._greenlet = greenlet(main, host.world.main)
        self._woken = False
        self._listens = False
        self._round = 0
        self._late: int | None = None
        self._world.after(0.0, self._resume)

    def pause(self, seconds: float, *, listens: bool = False) -> bool:
        """Wait for some seconds of the host's clocks; return whether `wake` has ended the wait."""
        if not self.lives:
            raise KilledError
        if listens and self._woken:
            self._woken = False
            return True
        self._listens = listens
        self._round += 1
        this = self._round
        # As poll(2) does, it waits for a millisecond at least.
        seconds = max(seconds, _SHORTEST) / self.host.rate
        self._world.after(seconds, lambda: self._resume(this))
        self._world.main.switch()
        self._listens = False
        woken, self._woken = self._woken, self._woken and not listens
        return listens and woken

    def wake(self) -> None:
        """End the wait of a process that listens; the next one, if it does not wait now."""
        if not self._woken:
            self._woken = True
            if self._listens:
                this = self._round
                self._world.after(0.0, lambda: self._resume(this))

    def freeze(self) -> None:
        """Stop the process, until `thaw` was called as often as this."""
        self.frozen += 1

    def thaw(self) -> None:
        """Have the process go on, and do now what it would have done meanwhile."""
        self.frozen = max(0, self.frozen - 1)
        if not self.frozen and self._late is not None:
            this, self._late = self._late, None
            self._world.after(0.0, lambda: self._resume(this))

    def kill(self) -> None:
        """End the process as the signal KILL does, wherever it waits."""
        if not self.lives:
            return
        self.lives = False
        if getcurrent() is self._greenlet:
            self._ended(None)
            raise KilledError
        # Its ``finally`` blocks run, as they do not in a process that is killed. They can do no
        # harm: each of its requests raises this error, too. Then the killer goes on.
        self._greenlet.parent = getcurrent()
        self._greenlet.throw(KilledError)
        self._ended(None)

    def _resume(self, this: int = 0) -> None:
        if not self.lives or this != self._round:
            return
        if self.frozen:
            self._late = this
            return
        result = self._greenlet.switch()
        if self._greenlet.dead and self.lives:
            self.lives = False
            self._ended(result)

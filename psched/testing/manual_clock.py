"""A clock that moves only when a test moves it."""

from typing_extensions import override

from psched.base.clock import Clock


class ManualClock(Clock):
    """A `psched.base.clock.Clock` for tests and simulations: time passes only by its methods.

    Args:
        monotonic: seconds of running time at the start.
        boottime: seconds since boot at the start.
        wall: Unix seconds at the start.

    Attributes:
        slept: how many seconds each call of `sleep` has asked for.
    """

    def __init__(
        self, *, monotonic: float = 1_000.0, boottime: float = 5_000.0, wall: float = 1.8e9
    ) -> None:
        self._monotonic = monotonic
        self._boottime = boottime
        self._wall = wall
        self.slept: list[float] = []

    @override
    def monotonic(self) -> float:
        return self._monotonic

    @override
    def boottime(self) -> float:
        return self._boottime

    @override
    def wall(self) -> float:
        return self._wall

    @override
    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass on all three clocks."""
        self._monotonic += seconds
        self.suspend(seconds)

    def suspend(self, seconds: float) -> None:
        """Suspend the machine for some time: its monotonic clock stands still meanwhile."""
        self._boottime += seconds
        self._wall += seconds

    def step(self, seconds: float) -> None:
        """Set the time of day forward, or back if negative; the other clocks do not notice."""
        self._wall += seconds

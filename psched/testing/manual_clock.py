"""A clock that moves only when a test moves it."""

from typing_extensions import override

from psched.base.clock import Clock


class ManualClock(Clock):
    """A `psched.base.clock.Clock` for tests and simulations: only its methods move the time.

    Args:
        monotonic: what `monotonic` returns at the start, in seconds.
        boottime: what `boottime` returns at the start, in seconds.
        wall: what `wall` returns at the start, in Unix seconds.

    Attributes:
        slept: the seconds that were passed to `sleep`, one number for each call.
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
        """Move all three clocks forward."""
        self._monotonic += seconds
        self.suspend(seconds)

    def suspend(self, seconds: float) -> None:
        """Move all clocks except the monotonic one, as if the machine was suspended."""
        self._boottime += seconds
        self._wall += seconds

    def step(self, seconds: float) -> None:
        """Set only the time of day forward, or back if ``seconds`` is negative."""
        self._wall += seconds

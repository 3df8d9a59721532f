"""The store's clock, estimated without a request."""

from math import inf
from typing import NamedTuple

from psched.base.clock import Clock


class Reading(NamedTuple):
    """One reading of a `StoreClock`.

    Attributes:
        milliseconds: the time of the store's clock, in Unix milliseconds.
        boottime: the time of this host's boot-time clock, in seconds.
    """

    milliseconds: int
    boottime: float


NEVER = Reading(0, 0.0)
"""Stands for a reading that was not taken yet."""


_LONGEST = 1.0
"""A request that takes up to so many seconds is good enough, see
`psched.core.history.verify.findings.TOLERANCE`."""


class StoreClock:
    """Estimates the present time of the store's clock.

    The estimate is the time of the last answer that contained the store's time, plus the time that
    has passed since on this host's boot-time clock. It is wrong by at most half the duration of
    that request, as long as nobody sets the store's clock. So a request that took longer than
    `_LONGEST`, for example because this process was stopped meanwhile, does not replace a better
    one.

    Args:
        clock: this host's clocks.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.wall() - clock.boottime()
        self._took = inf

    def read(self, now: float, sent: float, answered: float) -> None:
        """Note that the store has told its time.

        Args:
            now: the time of the store's clock, in Unix seconds.
            sent: when the request was sent, seconds of the boot-time clock.
            answered: when the answer arrived, seconds of the boot-time clock.
        """
        took = answered - sent
        if took <= max(_LONGEST, self._took):
            self._took, self._offset = took, now - (sent + answered) / 2

    def milliseconds(self) -> int:
        """The present time of the store's clock, in Unix milliseconds."""
        return round((self._clock.boottime() + self._offset) * 1000)

    def host_offset(self) -> int:
        """By how many milliseconds this host's wall clock is ahead of the store's clock."""
        return round(self._clock.wall() * 1000) - self.milliseconds()

    def reading(self) -> Reading:
        """The present time of both clocks."""
        return Reading(self.milliseconds(), self._clock.boottime())

    def after(self, earlier: Reading) -> int:
        """The present time in Unix milliseconds: an earlier reading plus the time since then.

        So the difference of the two is exact, even if the store has told its time in between.
        """
        elapsed = self._clock.boottime() - earlier.boottime
        return earlier.milliseconds + round(elapsed * 1000)

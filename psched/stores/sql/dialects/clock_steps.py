"""Measures how long ago this host's clock was last set, by a user or by time synchronization."""

from psched.base.clock import Clock
from psched.base.lease_times import LONGEST_ALIVE_TIME

_SMALLEST_STEP = 1.0
"""The smallest change, in seconds, that counts as setting the clock.

psched compares the readings of two clocks. Smaller changes are ignored, because on a busy machine
nearly a second can pass between the two readings.
"""


class ClockSteps:
    """Detects when somebody sets this host's clock, which a store on this host uses for leases.

    After the clock was set, a lease can seem to have expired although its worker is alive. The
    worker soon extends the lease, which corrects the end of the lease. So a lease that seems to
    have expired must not be taken over until the clock was set longer ago than the lease is long:
    by then, a living worker has extended its lease.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.wall() - clock.boottime()
        self._last = -2.0 * LONGEST_ALIVE_TIME

    def seconds_since(self) -> float:
        """Return the seconds since the clock was last set.

        If the clock was never set, return more than the length of the longest lease.
        """
        boot = self._clock.boottime()
        offset = self._clock.wall() - boot
        if abs(offset - self._offset) > _SMALLEST_STEP:
            self._last = boot
        self._offset = offset
        return boot - self._last

"""For how long this host's time of day has run evenly: as its boot-time clock does."""

from psched.base.clock import Clock
from psched.base.lease_times import LONGEST_ALIVE_TIME

_STEP = 1.0
"""Seconds; two readings of two clocks may be as far apart on a busy machine."""


class ClockSteps:
    """Sees when somebody sets the clock by which a store on this host judges leases.

    Whoever holds a lease at that moment either extends it, and its end is right again, or is
    gone within the lease's length: until then, none that seems to have ended is to be taken over.

    Args:
        clock: this host's clocks.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.wall() - clock.boottime()
        self._since = -2.0 * LONGEST_ALIVE_TIME

    def seconds(self) -> float:
        """For how long the clock has not been set; longer than any lease if it never was."""
        boot = self._clock.boottime()
        offset = self._clock.wall() - boot
        if abs(offset - self._offset) > _STEP:
            self._since = boot
        self._offset = offset
        return boot - self._since

"""How long ago this host's time of day was last set, by hand or in a step."""

from psched.base.clock import Clock
from psched.base.lease_times import LONGEST_ALIVE_TIME

_SMALLEST_STEP = 1.0
"""Seconds; on a busy machine, this much time can pass between the readings of two clocks."""


class ClockSteps:
    """Notices when somebody sets the clock by which a store on this host judges leases.

    A worker that holds a lease at that moment either extends it, which corrects the lease's end, or
    is dead before the length of the lease has passed. Until then, no lease that seems to have
    expired may be taken over.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.wall() - clock.boottime()
        self._last = -2.0 * LONGEST_ALIVE_TIME

    def seconds_since(self) -> float:
        """Seconds since the clock was last set; longer than any lease if it never was."""
        boot = self._clock.boottime()
        offset = self._clock.wall() - boot
        if abs(offset - self._offset) > _SMALLEST_STEP:
            self._last = boot
        self._offset = offset
        return boot - self._last

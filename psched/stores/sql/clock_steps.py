"""How long ago this host's clock was last set, by a user or by a step of time synchronization."""

from psched.base.clock import Clock
from psched.base.lease_times import LONGEST_ALIVE_TIME

_SMALLEST_STEP = 1.0
"""The smallest change, in seconds, that counts as setting the clock.

Smaller differences are ignored, because on a busy machine that much time can pass between the
readings of two clocks.
"""


class ClockSteps:
    """Notices when somebody sets this host's clock, by which a store on this host judges leases.

    A worker that holds a lease at that moment either extends the lease, which corrects the lease's
    end, or is dead. After the length of the lease, one of the two is certain. Until then, a lease
    that seems to have expired must not be taken over.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.wall() - clock.boottime()
        self._last = -2.0 * LONGEST_ALIVE_TIME

    def seconds_since(self) -> float:
        """Seconds since the clock was last set; more than any lease if it has not been set."""
        boot = self._clock.boottime()
        offset = self._clock.wall() - boot
        if abs(offset - self._offset) > _SMALLEST_STEP:
            self._last = boot
        self._offset = offset
        return boot - self._last

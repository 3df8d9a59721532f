"""How long this process has seen leases unchanged, by a clock that nobody sets.

A service without a clock cannot tell when a lease ends. Its holder stops counting ``alive_time``
after the instant at which it *sent* the request that wrote the lease. Whoever has seen the lease,
and sees it unchanged ``alive_time`` later, began to count after that instant. So the holder has
stopped by then, whatever the clocks of the two hosts show: they only need to run equally fast.

An old answer of the index does no harm: what it shows had been written before it was seen. The
write that takes the lease over is conditional on ``beat``, so that the lease was not extended.
"""

from psched.base.clock import Clock
from psched.stores.conditional.items import Item

_MOST = 20_000
"""How many leases are remembered. Of more, the oldest are forgotten, and must be seen anew."""


class Observations:
    """When this process has first seen each lease, or hold, as it is now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[object, float]] = {}

    def left(self, item: Item) -> float:
        """For how many seconds the lease, or the hold, must still be seen unchanged."""
        row = item.row
        if row.owner is None and row.held_by is None:
            self._seen.pop(row.key, None)
            return 0.0
        state = row.owner, row.fence, row.held_by, item.beat
        now = self._clock.boottime()
        known, since = self._seen.get(row.key, (None, now))
        if known != state:
            since = now
            self._seen.pop(row.key, None)  # so that the new entry is the last one
            self._seen[row.key] = state, now
            if len(self._seen) > _MOST:
                del self._seen[next(iter(self._seen))]
        return max(0.0, item.lease - (now - since))

    def forget(self, key: str) -> None:
        """Forget a row that was removed, so that it does not displace another."""
        self._seen.pop(key, None)

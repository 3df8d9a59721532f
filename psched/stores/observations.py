"""How long this process has seen leases unchanged, by a clock that nobody sets.

Who takes leases over in this way asks no clock of a server, or of a host, when a lease ends. Its
holder stops counting ``alive_time`` after the instant at which it *sent* the request that wrote the
lease. Whoever has seen the lease, and sees it unchanged ``alive_time`` later, began to count after
that instant. So the holder has stopped by then, whatever the clocks show: those of the two hosts
only need to run equally fast.

An old answer of an index does no harm: what it shows had been written before it was seen. The write
that takes the lease over is conditional on what was seen, so that the lease was not extended. Each
extension changes what is seen: it writes ``beat``, or a later end than before.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from math import inf
from typing import NamedTuple

from psched.base.clock import Clock
from psched.base.lease_times import lease_time

MOST = 20_000
"""How many leases are remembered. Of more, the others are remembered when there is room."""

_STALE = 600.0
"""Seconds. Who was not looked at for so long gives way to another; looks are not so far apart."""

FACT = ("leases are taken over", "when they were seen unchanged for their whole length")
"""What `psched check` says of a store that takes leases over so."""

_LOOK_INTERVAL = 10.0
"""Seconds after which leases are looked at again, if an eighth of a lease is not shorter."""


class _Seen(NamedTuple):
    state: Hashable
    since: float
    looked_at: float


class Observations:
    """When this process has first seen each lease, or hold, as it is now.

    If there are more than `MOST`, those that are remembered stay, because if they displaced each
    other, none might ever be seen for its whole length.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # What was looked at last is the last one.
        self._seen = OrderedDict[str, _Seen]()

    def left(self, key: str, state: Hashable, length: float) -> float:
        """For how many seconds the lease, or the hold, of a row must still be seen unchanged."""
        now = self._clock.boottime()
        known = self._seen.pop(key, None)
        since = known.since if known is not None and known.state == state else now
        if known is not None or self._has_room(now):
            self._seen[key] = _Seen(state, since, now)
        return max(0.0, length - (now - since))

    def _has_room(self, now: float) -> bool:
        if len(self._seen) < MOST:
            return True
        key, oldest = next(iter(self._seen.items()))
        if now - oldest.looked_at < _STALE:
            return False
        del self._seen[key]
        return True

    def forget(self, key: str) -> None:
        """Forget a row that nobody holds, so that there is room for another."""
        self._seen.pop(key, None)


class Lease(NamedTuple):
    """A lease, or a hold, that has ended by the store's clock.

    Attributes:
        key: of the row.
        owner: who has leased or held the row.
        fence: that of the lease; None for a hold.
        end: the end by the store's clock. No extension writes the same one.
        alive_time: the row's own, which is the same for each lease of the row.
    """

    key: str
    owner: str
    fence: int | None
    end: int
    alive_time: int | None


class Takeover:
    """Finds the leases that may be taken over in a store that has a clock, which is not trusted.

    Args:
        ended: reads the leases that have ended by the store's clock and that this host may claim,
            and the holds that have ended.
    """

    def __init__(self, ended: Callable[[], Iterable[Lease]], clock: Clock) -> None:
        self._ended = ended
        self._clock = clock
        self._observed = Observations(clock)
        self._next_look = -inf
        self._over = deque[Lease]()

    @property
    def is_due(self) -> bool:
        """Whether `next` has something to do."""
        return bool(self._over) or self._clock.boottime() >= self._next_look

    def next(self, most: int, *, alive_time: int, shortest: int) -> Sequence[Lease]:
        """Some leases that were seen unchanged for their whole length; each is returned once."""
        if not self._over and self.is_due:
            self._look(alive_time, shortest)
        return [self._over.popleft() for _ in range(min(most, len(self._over)))]

    def _look(self, alive_time: int, shortest: int) -> None:
        wait = min(_LOOK_INTERVAL, alive_time / 8)
        for lease in islice(self._ended(), MOST):
            length = lease_time(lease.alive_time, alive_time, shortest)
            left = self._observed.left(lease.key, lease, length)
            wait = min(wait, left or wait)
            if not left:
                self._over.append(lease)
        self._next_look = self._clock.boottime() + wait

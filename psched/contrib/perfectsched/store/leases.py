"""What this process knows of the leases it holds: the table has no column for that."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from psched.contrib.perfectsched.store.rows import Stored, as_row
from psched.core.model import Row, Token

_MOST = 10_000
"""Leases that are remembered, if they are over."""


@dataclass(slots=True)
class Lease:
    """A lease, and what is known about it.

    Attributes:
        token: what its holder names.
        next_time: the occurrence, as the table has it.
        attempt: 1 if nobody has leased it before, else 2: the table does not count.
        timeout: its end, the last one that we know to have been written.
        second: the latest second of the store's clock from which an end of it was worked out.
        tried: ends that may have been written.
        endings: next_time and timeout that a settle of ours may have left; None: the row removed.
        over: it was settled.
    """

    token: Token
    next_time: object
    attempt: int
    timeout: int
    second: int
    tried: set[int] = field(default_factory=set)
    endings: list[tuple[object, int] | None] = field(default_factory=list)
    over: bool = False

    def extending(self, timeout: int, second: int) -> None:
        """An end that was worked out in this second is about to be written."""
        self.tried.add(timeout)
        self.second = max(self.second, second)

    def extended(self, timeout: int) -> None:
        """It is known to end then."""
        self.timeout = timeout
        self.tried.clear()

    def stands(self, row: Stored, now: float) -> bool:
        """Whether the row is as we have left it.

        An extend of unknown outcome is found out here: it was applied if the row has its value;
        but once the lease has run out, another worker may have written the same.
        """
        if self.over or row.next_time != self.next_time:
            return False
        if row.timeout == self.timeout:
            return True
        if row.timeout in self.tried and now < self.timeout:
            self.extended(row.timeout)
            return True
        return False

    def ended_as(self, row: Stored | None) -> bool:
        """Whether the row is as a settle of ours would have left it."""
        return (None if row is None else (row.next_time, row.timeout)) in self.endings


class Leases:
    """The leases of one store in one process."""

    def __init__(self) -> None:
        self._by_key: dict[str, Lease] = {}

    def begin(self, row: Stored, owner: str, timeout: int, second: int) -> Lease:
        """We have claimed a row until ``timeout``, by a look at it in that second."""
        if len(self._by_key) >= _MOST:
            self._by_key = {key: lease for key, lease in self._by_key.items() if not lease.over}
        attempt = 1 if row.untouched else 2
        # The same occurrence is never claimed twice in a second; different ones may be.
        fence = second << 31 | max(row.occurrence, 0)
        lease = Lease(Token(owner, fence), row.next_time, attempt, timeout, second)
        self._by_key[row.id] = lease
        return lease

    def of(self, key: str, token: Token) -> Lease | None:
        """The lease with this token, if it has not been lost."""
        lease = self._by_key.get(key)
        return lease if lease is not None and lease.token == token else None

    def by(self, owner: str) -> Iterator[str]:
        """The keys of the leases that have this owner and are not over."""
        for key, lease in self._by_key.items():
            if lease.token.owner == owner and not lease.over:
                yield key

    def row(self, stored: Stored, now: float) -> Row:
        """What a row is to psched, with our lease of it, if that stands."""
        lease = self._by_key.get(stored.id)
        if lease is None or not lease.stands(stored, now):
            return as_row(stored)
        return as_row(stored, lease.token, lease.attempt)

    def lose(self, key: str) -> None:
        """A lease is another's, or nobody's."""
        self._by_key.pop(key, None)


def is_leased(row: Stored, now: float, longest: float) -> bool:
    """Whether somebody may hold this row.

    A row that waits for a retry looks like a leased one. But nobody runs an occurrence whose
    time is still to come, and no lease ends later than the longest one would.

    Args:
        row: the row.
        now: the store's clock.
        longest: seconds; no lease of anybody's ends later than this from now.
    """
    return row.occurrence <= now < row.until <= now + longest and not row.untouched

"""The leases that this process holds: the table has no columns for an owner or a fence."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from psched.contrib.perfectsched.store.rows import StoredRow, as_row
from psched.core.model import Row, Token

_CAPACITY = 10_000
"""The number of leases from which on settled ones are forgotten."""


@dataclass(slots=True)
class Lease:
    """A lease, with all that this process knows about its row in the table.

    Attributes:
        token: the token that its holder names in every request.
        next_time: the occurrence, as the table has it.
        attempt: 1 if nobody has leased the occurrence before, else 2: the table does not count.
        timeout: the end of the lease that was written last, as far as that is confirmed.
        second: the latest second of the store's clock from which an end was computed.
        unconfirmed: ends that were sent, but whose write has not been answered.
        results: for each settle that was sent, the ``next_time`` and ``timeout`` that it would
            leave in the row; None if it would delete the row.
        settled: whether a settle was applied.
    """

    token: Token
    next_time: object
    attempt: int
    timeout: int
    second: int
    unconfirmed: set[int] = field(default_factory=set)
    results: list[tuple[object, int] | None] = field(default_factory=list)
    settled: bool = False

    def note_extension(self, timeout: int, second: int) -> None:
        """Note an end before it is sent; it was computed in this second of the store's clock."""
        self.unconfirmed.add(timeout)
        self.second = max(self.second, second)

    def confirm_extension(self, timeout: int) -> None:
        """Note that this end is in the table."""
        self.timeout = timeout
        self.unconfirmed.clear()

    def holds(self, row: StoredRow, now: float) -> bool:
        """Whether the lease is still held: the row has the values that this process wrote.

        If the row has the end of an unanswered extension, that extension was applied. This is
        certain only before the previous end of the lease: after it, another worker may have claimed
        the row and written the same end.
        """
        if self.settled or row.next_time != self.next_time:
            return False
        if row.timeout == self.timeout:
            return True
        if row.timeout in self.unconfirmed and now < self.timeout:
            self.confirm_extension(row.timeout)
            return True
        return False

    def has_left(self, row: StoredRow | None) -> bool:
        """Whether the row, or its absence, is the result of one of this lease's settles."""
        return (None if row is None else (row.next_time, row.timeout)) in self.results


class HeldLeases:
    """The leases of one store in one process, by the keys of their rows."""

    def __init__(self) -> None:
        self._by_key: dict[str, Lease] = {}

    def add(self, row: StoredRow, owner: str, timeout: int, second: int) -> Lease:
        """Note that a row was claimed.

        Args:
            row: the row as it was before the claim.
            owner: the owner that the claim names.
            timeout: the end of the lease.
            second: the second of the store's clock in which the row was read.
        """
        if len(self._by_key) >= _CAPACITY:
            self._by_key = {key: each for key, each in self._by_key.items() if not each.settled}
        attempt = 1 if row.never_leased else 2
        # One occurrence is never claimed twice in one second, but several occurrences of one row
        # may be.
        fence = second << 31 | max(row.occurrence, 0)
        lease = Lease(Token(owner, fence), row.next_time, attempt, timeout, second)
        self._by_key[row.id] = lease
        return lease

    def get(self, key: str, token: Token) -> Lease | None:
        """The lease with this token; None if it was lost."""
        lease = self._by_key.get(key)
        return lease if lease is not None and lease.token == token else None

    def keys_of(self, owner: str) -> Iterator[str]:
        """The keys of an owner's leases that were not settled."""
        for key, lease in self._by_key.items():
            if lease.token.owner == owner and not lease.settled:
                yield key

    def as_row(self, stored: StoredRow, now: float) -> Row:
        """Convert a row of the table, with this process's lease of it if that is still held."""
        lease = self._by_key.get(stored.id)
        if lease is None or not lease.holds(stored, now):
            return as_row(stored)
        return as_row(stored, lease.token, lease.attempt)

    def drop(self, key: str) -> None:
        """Forget a lease that was lost."""
        self._by_key.pop(key, None)


def may_be_leased(row: StoredRow, now: float, longest: float) -> bool:
    """Whether any worker, including PerfectSched's, may hold this row.

    A row that waits for a retry looks like a leased one. But nobody runs an occurrence before its
    time, and no lease ends more than ``longest`` seconds from now.

    Args:
        row: the row.
        now: the store's clock.
        longest: the length of the longest lease of any worker, seconds.
    """
    return row.occurrence <= now < row.until <= now + longest and not row.never_leased

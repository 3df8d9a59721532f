"""Keeps the leases that this process holds in memory: the table has no columns for tokens."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from psched.contrib.perfectsched.store.rows import StoredRow, as_row
from psched.core.model import Row, Token

_CAPACITY = 10_000
"""The number of leases in memory from which on settled leases are forgotten."""


@dataclass(slots=True)
class Lease:
    """A lease, and what this process has written to its row in the table.

    Attributes:
        token: the token that the lease's holder sends in every request.
        next_time: the row's ``next_time`` when it was claimed: the time of the occurrence.
        attempt: 1 if nobody has leased the occurrence before, else 2, because the table does not
            count attempts.
        timeout: the end of the lease that was written last, as far as the store has answered.
        second: the latest second of the store's clock from which an end of the lease was computed.
        unconfirmed: ends of the lease that were sent in requests without an answer so far.
        results: for each settle that was sent, the ``next_time`` and the ``timeout`` that the
            settle writes; None for a settle that deletes the row.
        settled: whether one of the settles in ``results`` is known to have been applied.
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
        """Record a new end of the lease before it is sent."""
        self.unconfirmed.add(timeout)
        self.second = max(self.second, second)

    def confirm_extension(self, timeout: int) -> None:
        """Record that the row in the table has this end of the lease as its ``timeout``."""
        self.timeout = timeout
        self.unconfirmed.clear()

    def holds(self, row: StoredRow, now: float) -> bool:
        """Whether the lease is still held: the row has the values that this process wrote.

        If the row's ``timeout`` is an end from an unanswered extend, this extend was applied, and
        the lease is held. After the previous end of the lease, this conclusion is not certain,
        because another worker might have claimed the row and written the same end. So from then on
        the result is False.
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
        """Whether one of this lease's settles has left the row in its present state."""
        return (None if row is None else (row.next_time, row.timeout)) in self.results


class HeldLeases:
    """The leases of one store in one process, by the keys of their rows."""

    def __init__(self) -> None:
        self._by_key: dict[str, Lease] = {}

    def add(self, row: StoredRow, owner: str, timeout: int, second: int) -> Lease:
        """Record that a row was claimed."""
        if len(self._by_key) >= _CAPACITY:
            self._by_key = {key: each for key, each in self._by_key.items() if not each.settled}
        attempt = 1 if row.never_leased else 2
        # The fence contains the second and the occurrence, so that each claim of a row has another
        # fence: two occurrences of a row can be claimed in the same second, but no occurrence is
        # claimed twice in one second.
        fence = second << 31 | max(row.occurrence, 0)
        lease = Lease(Token(owner, fence), row.next_time, attempt, timeout, second)
        self._by_key[row.id] = lease
        return lease

    def get(self, key: str, token: Token) -> Lease | None:
        """The lease of this row with this token; None if this process holds no such lease."""
        lease = self._by_key.get(key)
        return lease if lease is not None and lease.token == token else None

    def keys_of(self, owner: str) -> Iterator[str]:
        """The keys of the rows whose leases this owner holds and has not settled."""
        for key, lease in self._by_key.items():
            if lease.token.owner == owner and not lease.settled:
                yield key

    def as_row(self, stored: StoredRow, now: float) -> Row:
        """Convert a row of the table; if this process holds its lease, add the lease's values."""
        lease = self._by_key.get(stored.id)
        if lease is None or not lease.holds(stored, now):
            return as_row(stored)
        return as_row(stored, lease.token, lease.attempt)

    def drop(self, key: str) -> None:
        """Forget the lease of this row, because it was lost."""
        self._by_key.pop(key, None)


def may_be_leased(row: StoredRow, now: float, longest: float) -> bool:
    """Whether a worker, psched's or PerfectSched's, might hold a lease of this row.

    The result is True for a row that waits for a retry, because the table does not distinguish such
    a row from a leased one. A row is not leased before its ``next_time``, unless its ``timeout`` is
    even earlier, because its first run was given an earlier time; nor if its ``timeout`` is more
    than ``longest`` seconds from now.
    """
    may_run = row.occurrence <= now or row.until < row.occurrence
    return may_run and now < row.until <= now + longest and not row.never_leased

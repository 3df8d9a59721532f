"""The protocol of a store, on rows that are read and written as a whole.

For stores of one's own that are small: whoever can lock, read and write a mapping of rows has a
store. It is also the shortest statement of what every store does.
"""

import abc
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from math import floor, inf

from psched.base.errors import AlreadyExistsError, NotFoundError
from psched.base.lease_times import lease_time
from psched.core.model import DELETING, MARKS, Row, Settlement, Token
from psched.core.store_protocol import Claimed, Settled

Rows = MutableMapping[str, Row]
"""All rows of a store, by their keys."""

_DECLARED = (
    *("key", "type", "data", "cron", "timezone", "delay", "next_time", "next_run_time"),
    *("alive_time", "options"),
)
_SETTLED = ("next_time", "attempt", "status", "reason")


class PlainStore(abc.ABC):
    """All of `psched.core.store_protocol.Store`, but for three methods.

    What `all` raises, every method does: it must be one of the errors that are named there.
    """

    only: Collection[str] = ()
    """The types of rows that claims take; none: all."""

    @abc.abstractmethod
    def all(self) -> AbstractContextManager[Rows]:
        """All rows, for us alone until the end of the block, which writes what it has changed.

        What is changed is written as a whole, or, if the block raises, not at all. The rows
        themselves are not to be changed, but replaced.
        """

    @abc.abstractmethod
    def now(self) -> float:
        """See `Backend.now`: the same clock for all who share the store."""

    @abc.abstractmethod
    def examine(self) -> Sequence[tuple[str, str]]:
        """See `Backend.examine`."""

    def init(self) -> Sequence[str]:
        """See `Backend.init`."""
        with self.all():
            return []

    def try_rights(self) -> None:
        """See `Backend.try_rights`."""
        self.init()

    def disconnect(self) -> None:  # noqa: B027  # there may be nothing to close
        """See `Backend.disconnect`."""

    def add(self, rows: Sequence[Row], *, nonce: str) -> None:
        """See `Backend.add`."""
        with self.all() as found:
            taken = [row.key for row in rows if row.key in found]
            if taken:
                raise AlreadyExistsError(f"the key {taken[0]!r} is taken")
            now = floor(self.now())
            for row in rows:
                declared = {name: getattr(row, name) for name in _DECLARED}
                found[row.key] = Row(**declared, settled_by=nonce, created_at=now)

    def look(self, keys: Sequence[str]) -> Mapping[str, Row]:
        """See `Backend.look`."""
        with self.all() as found:
            return {key: found[key] for key in keys if key in found}

    def get(self, key: str) -> Row | None:
        """See `Backend.get`."""
        return self.look([key]).get(key)

    def rows(self) -> Iterator[Row]:
        """See `Backend.rows`."""
        with self.all() as found:
            return iter(sorted(found.values(), key=_by_time))

    def marked(self, keys: Sequence[str]) -> Mapping[str, str]:
        """See `Backend.marked`."""
        return {key: row.status for key, row in self.look(keys).items() if row.status in MARKS}

    def replace(self, seen: Row, new: Row) -> bool:
        """See `Backend.replace`."""
        with self.all() as found:
            row = found.get(seen.key)
            if row is None or (row.version, row.token) != (seen.version, seen.token):
                return False
            if row.status != seen.status:
                return False
            # A lease's end may have moved meanwhile; a free row's due time may not.
            if row.owner is None and row.next_run_time != seen.next_run_time:
                return False
            found[row.key] = replace(
                new,
                owner=row.owner,
                fence=row.fence,
                settled_by=row.settled_by,
                created_at=row.created_at if new.created_at is None else new.created_at,
                next_run_time=new.next_run_time if row.owner is None else row.next_run_time,
                version=row.version + 1,
            )
            return True

    def delete(self, key: str) -> bool:
        """See `Backend.delete`."""
        with self.all() as found:
            if key not in found:
                raise NotFoundError(f"no schedule has the key {key!r}")
            row = found[key]
            if row.owner is None or row.next_run_time is None or row.next_run_time <= self.now():
                del found[key]
                return True
            if row.status != DELETING:
                found[key] = replace(row, status=DELETING, version=row.version + 1)
            return False

    def claim(
        self, owner: str, *, limit: int, alive_time: int, shortest: int, horizon: float
    ) -> Claimed:
        """See `Backend.claim`."""
        with self.all() as found:
            now = self.now()
            ours = (row for row in found.values() if not self.only or row.type in self.only)
            near = sorted((row for row in ours if _time(row) <= now + horizon), key=_by_time)
            due = [row for row in near if _time(row) <= floor(now)]
            for row in due[:limit]:
                end = floor(now) + lease_time(row.alive_time, alive_time, shortest) + 1
                found[row.key] = replace(
                    row,
                    owner=owner,
                    fence=row.fence + 1,
                    attempt=row.attempt + 1,
                    next_run_time=end,
                )
            return Claimed(
                rows=[found[row.key] for row in due[:limit]],
                expired=frozenset(row.key for row in due[:limit] if row.owner is not None),
                now=now,
                next_due=near[len(due)].next_run_time if len(due) < len(near) else None,
                more=len(due) >= limit,
            )

    def held(self, owner: str, keys: Sequence[str]) -> Sequence[Row]:
        """See `Backend.held`."""
        with self.all() as found:
            held = [r for r in found.values() if r.owner == owner and self.now() < _time(r) < inf]
            return [row for row in held if not keys or row.key in keys]

    def extend(
        self, leases: Mapping[str, Token], *, alive_time: int, shortest: int
    ) -> frozenset[str]:
        """See `Backend.extend`."""
        with self.all() as found:
            held = [key for key, token in leases.items() if _holds(found.get(key), token)]
            for key in held:
                length = lease_time(found[key].alive_time, alive_time, shortest)
                found[key] = replace(found[key], next_run_time=floor(self.now()) + length + 1)
            return frozenset(held)

    def settle(self, settlements: Sequence[Settlement]) -> Mapping[str, Settled]:
        """See `Backend.settle`."""
        with self.all() as found:
            return {end.key: _settle(found, end, floor(self.now())) for end in settlements}

    def update_data(self, key: str, token: Token, data: str) -> bool:
        """See `Backend.update_data`."""
        with self.all() as found:
            if not _holds(found.get(key), token):
                return False
            found[key] = replace(found[key], data=data, version=found[key].version + 1)
            return True

    def purge(self, limit: int) -> int:
        """See `Backend.purge`."""
        with self.all() as found:
            resting = [row for row in found.values() if row.next_run_time is None]
            over = [row.key for row in resting if _until(row) <= self.now()][:limit]
            for key in over:
                del found[key]
            return len(over)

    def recover(self, nonce: str, *, alive_time: int, retry_wait: float) -> Sequence[str]:
        """See `Backend.recover`."""
        with self.all() as found:
            now, freed = floor(self.now()), []
            for row in [*found.values()]:
                dead = row.owner is not None and row.owner.startswith(f"{nonce}.")
                if dead and now < _time(row) <= now + alive_time + 1:
                    wait = floor(retry_wait) + 1 if row.attempt > 1 else 0
                    found[row.key] = replace(
                        row, owner=None, next_run_time=now + wait, reason="its worker died"
                    )
                    freed.append(row.key)
            return freed


def _settle(found: Rows, end: Settlement, now: int) -> Settled:
    row = found.get(end.key)
    if row is None or not _holds(row, end.token):
        repeated = end.remove if row is None else row.settled_by == str(end.token)
        return Settled.DONE if repeated else Settled.PREEMPTED
    if row.version != end.version or end.seen_status not in {None, row.status}:
        return Settled.REDEFINED
    if end.remove:
        del found[end.key]
        return Settled.DONE
    # The clock was read to the second that has begun.
    by_outcome = now + end.wait + 1 if end.wait else now
    found[end.key] = replace(
        row,
        **{name: getattr(end, name) for name in _SETTLED},
        owner=None,
        settled_by=str(end.token),
        next_run_time=None if end.rest else max(end.not_before or 0, by_outcome),
        retain_until=None if end.retain is None else now + end.retain,
    )
    return Settled.DONE


def _holds(row: Row | None, token: Token) -> bool:
    return row is not None and row.owner is not None and row.token == token


def _time(row: Row) -> float:
    return inf if row.next_run_time is None else row.next_run_time


def _until(row: Row) -> float:
    return inf if row.retain_until is None else row.retain_until


def _by_time(row: Row) -> tuple[float, str]:
    return _time(row), row.key

"""A base class for small stores, which read and write all their rows at once.

A subclass only has to lock, read and write a mapping of rows. This module is also the shortest
description, in code, of what each method of a store does.
"""

import abc
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from math import ceil, floor, inf
from typing import Any

from typing_extensions import override

from psched.base.errors import AlreadyExistsError, NotFoundError
from psched.base.lease_times import lease_time
from psched.core.attempts import told_of_death, wait_after_death
from psched.core.hosts import serves
from psched.core.model import DELETING, MARKS, TOLD, Row, Settlement, Token
from psched.core.operations.pauses import active_rules
from psched.core.selection import EVERY_ROW, SelectedRows, Selection
from psched.core.store_protocol import (
    Backlog,
    Claimed,
    ExpiredLease,
    HoldsSchedules,
    Settled,
    Store,
)

Rows = MutableMapping[str, Row]
"""All rows of a store, by their keys."""

_DECLARED = (
    *("key", "type", "data", "cron", "timezone", "delay", "next_time", "next_run_time"),
    *("alive_time", "options", "local_time", "label", "lane", "run_as"),
)
_FREE: Mapping[str, Any] = {"held_by": None, "held_until": None}
_SETTLED = ("next_time", "attempt", "status", "reason", *TOLD)


class PlainStore(Store, abc.ABC):
    """A store whose subclasses have to define only the methods `all`, `now` and `examine`.

    Every method passes on the exceptions of `all`. So `all` must raise only exceptions that
    `psched.core.store_protocol.Store` documents.
    """

    @property
    def holds(self) -> HoldsSchedules:  # type: ignore[override]  # nobody sets it
        """The store itself."""
        return self

    only: Collection[str] = ()
    """The types of the rows that `claim` leases; empty means all types."""

    host_names: Sequence[str] = ()
    """The name and the labels of this host, see `psched.core.hosts`; `claim` leases what they may
    run."""

    @abc.abstractmethod
    def all(self) -> AbstractContextManager[Rows]:
        """Return a context manager that locks the store and yields a mapping of keys to rows.

        At the end of its block, the context manager must write all changes of the mapping, or none
        if the block raises an exception. A caller changes a row by replacing it in the mapping.
        """

    @override
    @abc.abstractmethod
    def now(self) -> float:
        """The store's clock in Unix seconds; all hosts of the store must read the same clock."""

    @override
    @abc.abstractmethod
    def examine(self) -> Sequence[tuple[str, str]]: ...

    @override
    def init(self, *, force: bool = False) -> Sequence[str]:
        with self.all():
            return []

    @override
    def try_rights(self) -> None:
        self.init()

    @override
    def disconnect(self) -> None:
        pass  # subclasses that keep something open override this method

    @override
    def add(self, rows: Sequence[Row], *, nonce: str) -> None:
        with self.all() as found:
            taken = [row.key for row in rows if row.key in found]
            if taken:
                raise AlreadyExistsError(f"the key {taken[0]!r} is taken")
            now = floor(self.now())
            for row in rows:
                declared = {name: getattr(row, name) for name in _DECLARED}
                found[row.key] = Row(**declared, settled_by=nonce, created_at=now)

    @override
    def look(self, keys: Sequence[str]) -> Mapping[str, Row]:
        with self.all() as found:
            return {key: found[key] for key in keys if key in found}

    @override
    def get(self, key: str) -> Row | None:
        return self.look([key]).get(key)

    @override
    def rows(self, selection: Selection = EVERY_ROW) -> Iterator[Row]:
        with self.all() as found:
            key = by_key if selection.sorted_by_key else by_time
            return SelectedRows(iter(sorted(found.values(), key=key)), selection, self.now())

    @override
    def count(self) -> int:
        with self.all() as found:
            return len(found)

    @override
    def marked(self, keys: Sequence[str]) -> Mapping[str, str]:
        return {key: row.status for key, row in self.look(keys).items() if row.status in MARKS}

    @override
    def replace(self, seen: Row, new: Row) -> bool:
        with self.all() as found:
            row = found.get(seen.key)
            if row is None or (row.version, row.token) != (seen.version, seen.token):
                return False
            if row.status != seen.status:
                return False
            # The next_run_time of a leased row is the end of its lease, which its worker may have
            # extended since the row was read. So next_run_time is compared only in free rows.
            if row.owner is None and row.next_run_time != seen.next_run_time:
                return False
            found[row.key] = replace(
                new,
                owner=row.owner,
                fence=row.fence,
                settled_by=row.settled_by,
                held_by=row.held_by,
                held_until=row.held_until,
                created_at=row.created_at if new.created_at is None else new.created_at,
                next_run_time=new.next_run_time if row.owner is None else row.next_run_time,
                version=row.version + 1,
            )
            return True

    @override
    def delete(self, key: str) -> bool:
        with self.all() as found:
            if key not in found:
                raise NotFoundError(f"no schedule has the key {key!r}")
            row, now = found[key], self.now()
            if row.is_held(now):
                if row.owner is None and _time(row) > now:
                    # So the row is claimed and removed when the hold has ended.
                    row = found[key] = replace(row, next_run_time=floor(now))
            elif row.owner is None or row.next_run_time is None or row.next_run_time <= now:
                del found[key]
                return True
            if row.status != DELETING:
                found[key] = replace(row, status=DELETING, version=row.version + 1)
            return False

    @override
    def claim(
        self, owner: str, *, limit: int, alive_time: int, shortest: int, horizon: float
    ) -> Claimed:
        with self.all() as found:
            now = self.now()
            ours = self._claimable(found, now)
            near = sorted((row for row in ours if _time(row) <= now + horizon), key=by_time)
            late = [row for row in near if _time(row) <= floor(now)]
            due = [row for row in late if not row.is_held(now)]
            for row in due[:limit]:
                end = floor(now) + lease_time(row.alive_time, alive_time, shortest) + 1
                found[row.key] = replace(
                    row,
                    owner=owner,
                    fence=row.fence + 1,
                    attempt=row.attempt + 1,
                    next_run_time=end,
                    claimed_at=floor(now),
                    **_FREE,
                )
            return Claimed(
                rows=[
                    replace(found[row.key], next_run_time=row.next_run_time) for row in due[:limit]
                ],
                expired={
                    row.key: ExpiredLease(row.token, row.claimed_at)
                    for row in due[:limit]
                    if row.owner is not None
                },
                now=now,
                next_due=near[len(late)].next_run_time if len(late) < len(near) else None,
                more=len(due) >= limit,
            )

    def hold(self, holds: Mapping[str, str], *, alive_time: int, shortest: int) -> frozenset[str]:
        """Hold schedules for extra runs, as `HoldsSchedules.hold` describes."""
        with self.all() as found:
            now, held = floor(self.now()), []
            for key, holder in holds.items():
                row = found.get(key)
                if row is None or row.owner is not None:
                    continue
                if row.held_by != holder and (row.status in MARKS or row.is_held(now)):
                    continue
                until = now + lease_time(row.alive_time, alive_time, shortest) + 1
                found[key] = replace(row, held_by=holder, held_until=until)
                held.append(key)
            return frozenset(held)

    def release(self, holds: Mapping[str, str]) -> None:
        """End holds, as `HoldsSchedules.release` describes."""
        with self.all() as found:
            for key, holder in holds.items():
                if key in found and found[key].held_by == holder:
                    found[key] = replace(found[key], **_FREE)

    @override
    def backlog(self, limit: int) -> Backlog:
        with self.all() as found:
            now = self.now()
            ours = self._claimable(found, now)
            times = sorted(_time(row) for row in ours if not row.is_held(now))
            times = [time for time in times if time <= floor(now)]
            return Backlog(due=len(times[:limit]), late=now - times[0]) if times else Backlog()

    def _claimable(self, found: Rows, now: float) -> Sequence[Row]:
        """The rows of the types that `claim` leases, which no rule pauses, and this host runs."""
        # A subclass can store rules.
        rules = () if self.pauses is None else self.pauses.pause_rules()
        return [
            row
            for row in found.values()
            if (not self.only or row.type in self.only)
            and serves(self.host_names, row.lane)
            and not active_rules(rules, row.type, now)
        ]

    @override
    def lanes(self, most: int) -> Sequence[str]:
        with self.all() as found:
            return sorted({row.lane for row in found.values() if row.lane is not None})[:most]

    @override
    def held(self, owner: str, keys: Sequence[str]) -> Sequence[Row]:
        with self.all() as found:
            held = [r for r in found.values() if r.owner == owner and self.now() < _time(r) < inf]
            return [row for row in held if not keys or row.key in keys]

    @override
    def extend(
        self, leases: Mapping[str, Token], *, alive_time: int, shortest: int
    ) -> frozenset[str]:
        with self.all() as found:
            held = [key for key, token in leases.items() if _holds(found.get(key), token)]
            for key in held:
                length = lease_time(found[key].alive_time, alive_time, shortest)
                found[key] = replace(found[key], next_run_time=floor(self.now()) + length + 1)
            return frozenset(held)

    @override
    def settle(self, settlements: Sequence[Settlement]) -> Mapping[str, Settled]:
        with self.all() as found:
            return {end.key: _settle(found, end, floor(self.now())) for end in settlements}

    @override
    def update_data(self, key: str, token: Token, data: str) -> bool:
        with self.all() as found:
            if not _holds(found.get(key), token):
                return False
            found[key] = replace(found[key], data=data, version=found[key].version + 1)
            return True

    @override
    def purge(self, limit: int) -> int:
        with self.all() as found:
            now = self.now()
            resting = [r for r in found.values() if r.next_run_time is None and not r.is_held(now)]
            over = [row.key for row in resting if _until(row) <= now][:limit]
            for key in over:
                del found[key]
            return len(over)

    @override
    def recover(self, nonce: str, *, alive_time: int, retry_wait: float) -> Sequence[str]:
        with self.all() as found:
            now, freed = floor(self.now()), []
            for row in [*found.values()]:
                if row.held_by is not None and row.held_by.startswith(f"{nonce}."):
                    found[row.key] = replace(row, **_FREE)
                    continue
                dead = row.owner is not None and row.owner.startswith(f"{nonce}.")
                if dead and now < _time(row) <= now + alive_time + 1:
                    wait = ceil(wait_after_death(row.attempt, retry_wait))
                    found[row.key] = replace(
                        row,
                        owner=None,
                        claimed_at=None,
                        settled_by=str(row.token),
                        # One second is added, because ``now`` is rounded down.
                        next_run_time=now + wait + 1 if wait else now,
                        **told_of_death(row),
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
    # One second is added, because ``now`` is rounded down and the wait would otherwise end early.
    by_outcome = now + end.wait + 1 if end.wait else now
    found[end.key] = replace(
        row,
        **{name: getattr(end, name) for name in _SETTLED},
        owner=None,
        claimed_at=None,
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


def by_time(row: Row) -> tuple[float, str]:
    """The order of rows by time; those without a next run are last."""
    return _time(row), row.key


def by_key(row: Row) -> str:
    """The order of rows by key."""
    return row.key

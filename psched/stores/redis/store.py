"""Schedules in a Redis server: `psched.core.store_protocol`, each request one script."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace as changed
from functools import partial
from math import ceil
from typing import Any, TypeVar

from psched.base.clock import Clock
from psched.base.compression import compress
from psched.base.errors import (
    AlreadyExistsError,
    NotFoundError,
    NotSupportedError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from psched.config import redis_urls
from psched.config.tls import Tls
from psched.core.model import MARKS, Row, Settlement, Token
from psched.core.store_protocol import Claimed, ClaimUnknownError, Settled
from psched.stores.redis import diagnostics, encoding, readings, scripts
from psched.stores.redis.claiming import CLAIM
from psched.stores.redis.connector import VERSION, Connector
from psched.stores.redis.encoding import Argument
from psched.stores.redis.lua import Script

T = TypeVar("T")

BATCH = 200
"""Rows in one script at most: nobody else is served while it runs."""

MOST_ADDED = 10_000
"""Rows that can be added at once, all or none: nobody else is served for some 0.3 s."""

LARGEST_ADDED = 256 * 2**20
"""Bytes of payload that can be; a server breaks off what has 1 GB."""

_SETTLED = {
    scripts.DONE: Settled.DONE,
    scripts.REDEFINED: Settled.REDEFINED,
    scripts.PREEMPTED: Settled.PREEMPTED,
}


class RedisStore:
    """Schedules in one database of a Redis server.

    Args:
        url: see `psched.config.redis_urls`.
        table: what the names of all keys begin with.
        timeout: seconds; bound of every wait for the server.
        clock: this host's clocks.
        tls: how connections are encrypted; None: as the url will.
        compress_above: bytes; larger payloads are compressed. 0: none are.
        only: the types of task that are claimed; none: all.
        replicas: so many must have a write before it counts as done.
    """

    def __init__(
        self,
        url: str,
        *,
        table: str,
        timeout: float,
        clock: Clock,
        tls: Tls | None = None,
        compress_above: int = 0,
        only: Sequence[str] = (),
        replicas: int = 0,
    ) -> None:
        address = redis_urls.parse(url)
        self._connect = partial(
            Connector,
            address,
            table=table,
            timeout=timeout,
            clock=clock,
            tls=tls,
            replicas=replicas,
        )
        self._connector = self._connect()
        self._pack = partial(compress, above=compress_above, form=bytes)
        self._clock = clock
        self._table = table
        self._only = [encoding.text(kind) for kind in only]

    @property
    def shown(self) -> str:
        """The server that was connected to last, for people."""
        return self._connector.shown

    def init(self) -> Sequence[str]:
        """See `Backend.init`."""
        connector = self._connect(checks=False)
        try:
            found = connector.run(scripts.INIT, VERSION)
            if found is None:
                return [f"prepared {self._table} on {connector.shown}"]
            connector.check(found)
            return []
        finally:
            connector.disconnect()

    def now(self) -> float:
        """See `Backend.now`."""
        return _seconds(*self._connector.ask("TIME"))

    def add(self, rows: Sequence[Row], *, nonce: str) -> None:
        """See `Backend.add`.

        Raises:
            NotSupportedError: they are too many for one script.
        """
        size = sum(len(row.data or "") + len(row.options or "") for row in rows)
        if len(rows) > MOST_ADDED or size > LARGEST_ADDED:
            raise NotSupportedError(
                f"{len(rows)} schedules with {size} characters of data cannot be added to Redis all"
                f" or none; add at most {MOST_ADDED} at once, and {LARGEST_ADDED} characters"
            )
        stored = (changed(row, data=self._pack(row.data)) if row.data else row for row in rows)
        taken = self._connector.run(
            scripts.ADD, encoding.text(nonce), *_flat(map(encoding.inserted, stored))
        )
        if taken is not None:
            raise AlreadyExistsError(f"the key {taken.decode(errors='replace')!r} is taken")

    def get(self, key: str) -> Row | None:
        """See `Backend.get`."""
        return self.look([key]).get(key)

    def rows(self) -> Iterator[Row]:
        """See `Backend.rows`."""
        return encoding.Pages(partial(self._connector.run, readings.PAGE, writing=False))

    def try_rights(self) -> None:
        """See `Backend.try_rights`."""
        self._connector.try_rights()

    def replace(self, seen: Row, new: Row) -> bool:
        """See `Backend.replace`."""
        new = changed(new, data=new.data and self._pack(new.data))
        return bool(self._connector.run(scripts.REPLACE, *encoding.replaced(seen, new)))

    def delete(self, key: str) -> bool:
        """See `Backend.delete`."""
        done = self._connector.run(scripts.DELETE, encoding.text(key))
        if done == scripts.MISSING:
            raise NotFoundError(f"no schedule has the key {key!r}")
        return bool(done == scripts.REMOVED)

    def claim(
        self, owner: str, *, limit: int, alive_time: int, shortest: int, horizon: float
    ) -> Claimed:
        """See `Backend.claim`."""
        lease = (alive_time, shortest, ceil(horizon))
        try:
            answer = self._connector.run(
                CLAIM, encoding.text(owner), min(limit, BATCH), *lease, *self._only
            )
        except UnknownOutcomeError as error:
            raise ClaimUnknownError(owner, ()) from error
        seconds, microseconds, found, expired, next_due, more = answer
        leased = [encoding.row_of(each) for each in found]
        return Claimed(
            rows=leased,
            expired=frozenset(row.key for row, was in zip(leased, expired, strict=True) if was),
            now=_seconds(seconds, microseconds),
            next_due=None if next_due is None else int(float(next_due)),
            more=bool(more),
        )

    def held(self, owner: str, keys: Sequence[str]) -> Sequence[Row]:
        """See `Backend.held`."""
        try:
            # What it finds is relied on like the answer to a claim: it may not be lost, either.
            found = self._connector.run(readings.HELD, encoding.text(owner), writing=True)
        except UnknownOutcomeError as error:
            raise StoreUnavailableError(str(error)) from None
        found = map(encoding.row_of, found)
        return [row for row in found if not keys or row.key in keys]

    def extend(
        self, leases: Mapping[str, Token], *, alive_time: int, shortest: int
    ) -> frozenset[str]:
        """See `Backend.extend`."""

        def extend(batch: Sequence[str]) -> Mapping[str, int]:
            tokens = (
                (encoding.text(k), encoding.text(leases[k].owner), leases[k].fence) for k in batch
            )
            held = self._connector.run(scripts.EXTEND, alive_time, shortest, *_flat(tokens))
            return dict(zip(batch, held, strict=True))

        return frozenset(key for key, held in _in_batches([*leases], extend).items() if held)

    def settle(self, settlements: Sequence[Settlement]) -> Mapping[str, Settled]:
        """See `Backend.settle`."""

        def settle(batch: Sequence[Settlement]) -> Mapping[str, Settled]:
            results = self._connector.run(scripts.SETTLE, *_flat(map(encoding.settled, batch)))
            pairs = zip(batch, results, strict=True)
            return {end.key: _SETTLED[result] for end, result in pairs}

        return _in_batches(settlements, settle)

    def update_data(self, key: str, token: Token, data: str) -> bool:
        """See `Backend.update_data`."""
        stored = self._pack(data)
        content = encoding.text(stored) if isinstance(stored, str) else stored
        lease = (encoding.text(key), encoding.text(token.owner), token.fence)
        return bool(self._connector.run(scripts.UPDATE_DATA, *lease, content))

    def marked(self, keys: Sequence[str]) -> Mapping[str, str]:
        """See `Backend.marked`."""
        if not keys:
            return {}
        found = self._read(readings.MARKED, *map(encoding.text, keys))
        marks = {
            key: mark.decode(errors="replace")
            for key, mark in zip(keys, found, strict=True)
            if mark
        }
        return {key: mark for key, mark in marks.items() if mark in MARKS}

    def purge(self, limit: int) -> int:
        """See `Backend.purge`."""
        return int(self._connector.run(scripts.PURGE, min(limit, BATCH)))

    def look(self, keys: Sequence[str]) -> Mapping[str, Row]:
        """See `Backend.look`."""
        found: dict[str, Row] = {}
        for start in range(0, len(keys), BATCH):
            batch = keys[start : start + BATCH]
            for answer in self._read(readings.LOOK, *map(encoding.text, batch)):
                row = encoding.row_of(answer)
                found[row.key] = row
        return found

    def recover(self, nonce: str, *, alive_time: int, retry_wait: float) -> Sequence[str]:
        """See `Backend.recover`."""
        # A second that has begun is not to count.
        wait = ceil(retry_wait) + 1 if retry_wait else 0
        released: list[str] = []
        after: Any = b""
        while True:
            keys, after = self._connector.run(
                scripts.RECOVER, encoding.text(nonce), alive_time, wait, after, BATCH
            )
            released += (key.decode(errors="replace") for key in keys)
            if not after:
                return released

    def examine(self) -> Sequence[tuple[str, str]]:
        """See `Backend.examine`."""
        return diagnostics.examine(self._connector, self.now, self._clock)

    def disconnect(self) -> None:
        """See `Backend.disconnect`."""
        self._connector.disconnect()

    def _read(self, script: Script, *arguments: Argument) -> Any:  # noqa: ANN401
        return self._connector.run(script, *arguments, writing=False)


def _in_batches(
    items: Sequence[Any], write: Callable[[Sequence[Any]], Mapping[str, T]]
) -> dict[str, T]:
    """Write items a batch at a time; what became of each, by key."""
    answered: dict[str, T] = {}
    for start in range(0, len(items), BATCH):
        try:
            answered |= write(items[start : start + BATCH])
        except UnknownOutcomeError:
            raise
        except StoreUnavailableError as error:
            if not answered:
                raise
            raise UnknownOutcomeError(str(error)) from None  # of some it is known, of all it is not
    return answered


def _flat(groups: Iterable[Sequence[Argument]]) -> Iterator[Argument]:
    return (argument for group in groups for argument in group)


def _seconds(seconds: bytes, microseconds: bytes) -> float:
    return int(seconds) + int(microseconds) / 1e6

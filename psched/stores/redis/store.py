"""The store on a Redis server: each request is one Lua script."""

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace as changed
from functools import partial
from math import ceil
from operator import attrgetter
from typing import Any, TypeVar

from typing_extensions import override

from psched.base.clock import Clock
from psched.base.compression import compress
from psched.base.errors import (
    AlreadyExistsError,
    NotFoundError,
    NotSupportedError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from psched.config import Config
from psched.config.urls import redis_address
from psched.core.definition import history_setting
from psched.core.history.recording import record_of_death
from psched.core.history.records import GONE_AFTER, RunRecord, WorkerRecord
from psched.core.hosts import AFTER_LANES, MOST_PATTERNS, PATTERNS, ROWS_OF_HOSTS
from psched.core.model import MARKS, Row, Settlement, Token
from psched.core.selection import EVERY_ROW, SelectedRows, Selection
from psched.core.store_protocol import (
    Backlog,
    Claimed,
    ClaimUnknownError,
    ExpiredLease,
    Settled,
    Store,
)
from psched.stores.lanes import Lanes
from psched.stores.observations import FACT, Lease, Takeover
from psched.stores.pages import Page, Pages, batched
from psched.stores.redis import diagnostics, encoding, history
from psched.stores.redis.alerts import RedisAlerts
from psched.stores.redis.connector import VERSION, Connector
from psched.stores.redis.encoding import Argument
from psched.stores.redis.glances import RedisGlances
from psched.stores.redis.history import RedisHistory, record_arguments, size_of_record
from psched.stores.redis.output import RedisOutput
from psched.stores.redis.pauses import RedisPauses
from psched.stores.redis.side_store import batches
from psched.stores.upgrading import refuse_older

T = TypeVar("T")
R = TypeVar("R")

BATCH = 200
"""The most rows that one run of a script claims, changes or looks up, except in `add`.

The number is small because the server serves no other client while a script runs.
"""

MOST_ADDED = 10_000
"""The most rows that one `add` accepts.

One run of a script adds all rows, or none. With so many rows, the script runs for about 0.3 s,
during which the server serves no other client.
"""

LARGEST_ADDED = 256 * 2**20
"""The most characters of payload that one `add` accepts.

The limit is necessary because a server closes a connection that sends 1 GB in one request.
"""


class RedisStore(Store):
    """Schedules in one database of a Redis server."""

    history: RedisHistory

    def __init__(self, settings: Config, *, clock: Clock, rng: random.Random) -> None:
        del rng  # this store repeats nothing after a random pause
        self._connect = partial(
            Connector,
            redis_address(settings.url),
            table=settings.table,
            timeout=settings.driver_timeout,
            clock=clock,
            tls=settings.tls,
            replicas=settings.wait_replicas,
            observed=settings.observes_leases,
        )
        self._takeover = Takeover(self._ended, clock) if settings.observes_leases else None
        self._connector = connector = self._connect()
        self._history_of = partial(history_setting, settings=settings)
        self.history = RedisHistory(connector, settings)
        self.output = RedisOutput(connector, settings)
        self.alerts = RedisAlerts(connector)
        self.pauses = RedisPauses(connector)
        self.light_reads = RedisGlances(connector)
        self.announcements = connector
        self.holds = self.recorded_changes = self
        self._pack = partial(compress, above=settings.compress_above, form=bytes)
        self._clock = clock
        self._table = settings.table
        self._only = [encoding.text(kind) for kind in settings.only]
        self._lanes = Lanes(settings.host_names, self._pattern_lanes, clock)

    @override
    def init(self, *, force: bool = False) -> Sequence[str]:
        connector = self._connect(checks=False)
        try:
            found, workers = connector.run("init", VERSION, GONE_AFTER, int(force))
            if found is None:
                return [f"prepared {self._table} on {connector.shown}"]
            refuse_older(self._table, [encoding.decoded(each) for each in workers])
            if found != b"upgrading":
                connector.check(found)
                return []
            labels: Sequence[encoding.Argument] = ()
            for part in "rest", "due", "end":
                cursor, is_first = b"0", True
                while is_first or cursor != b"0":
                    cursor, labelled = connector.run(
                        "upgrade", cursor, BATCH, VERSION, part, *labels
                    )
                    labels, is_first = encoding.labels(labelled), False
            return [f"upgraded {self._table} on {connector.shown} to layout {VERSION}"]
        finally:
            connector.disconnect()

    @override
    def now(self) -> float:
        return encoding.seconds_of(*self._connector.ask("TIME"))

    @override
    def add(self, rows: Sequence[Row], *, nonce: str) -> None:
        size = sum(len(row.data or "") + len(row.options or "") for row in rows)
        if len(rows) > MOST_ADDED or size > LARGEST_ADDED:
            raise NotSupportedError(
                f"{len(rows)} schedules with {size} characters of data cannot be added to Redis all"
                f" or none; add at most {MOST_ADDED} at once, and {LARGEST_ADDED} characters"
            )
        stored = (changed(row, data=self._pack(row.data)) if row.data else row for row in rows)
        taken = self._connector.run(
            "add", encoding.text(nonce), *_flat(map(encoding.add_arguments, stored))
        )
        if taken is not None:
            raise AlreadyExistsError(f"the key {taken.decode(errors='replace')!r} is taken")

    @override
    def get(self, key: str) -> Row | None:
        return self.look([key]).get(key)

    @override
    def rows(self, selection: Selection = EVERY_ROW) -> Iterator[Row]:
        """The rows of a selection: first waiting and leased ones, then those without a next run.

        The server looks at every row, and returns those that match. It has no set of rows that is
        sorted by key, so for this order all of them are read at once.
        """
        if selection.template or selection.lanes is not None:
            if selection.template:
                of = selection.template, *ROWS_OF_HOSTS
                keys = self._connector.run("keys_of_template", *map(encoding.text, of))
            else:
                lanes = selection.lanes or ()
                keys = self._connector.run("keys_of_lanes", *map(encoding.text, lanes))
            rows = self.look([*map(encoding.decoded, keys)]).values()
            return SelectedRows(iter(sorted(rows, key=attrgetter("key"))), selection)
        wanted = encoding.filter_of(selection)

        def read(place: Any, most: int) -> Page[Row]:  # noqa: ANN401  # a set, and a row in it
            part, *after = place or ("due", "", "")
            rows, done, *after = self._connector.run("page", part, most, *after, wanted)
            following: Any = (part, *after)
            if done:
                following = None if selection.due or part == "rest" else ("rest", "", "")
            return Page([*map(encoding.row_of, rows)], following)

        size = encoding.FILTERED_PAGE if wanted else encoding.PAGE
        found: Iterator[Row] = Pages(read, None, size)
        if selection.sorted_by_key:
            found = iter(sorted(found, key=lambda row: row.key))
        return SelectedRows(found, selection)

    @override
    def count(self) -> int:
        return int(self._connector.run("count"))

    @override
    def try_rights(self) -> None:
        self._connector.try_rights()

    @override
    def replace(self, seen: Row, new: Row) -> bool:
        replaced, _, _ = self._connector.run("replace", *self._replacement(seen, new))
        return bool(replaced)

    def replace_and_record(self, seen: Row, new: Row, records: Sequence[RunRecord]) -> bool:
        """Replace a row and write records, as `ReplacesAndRecords` describes."""
        if self.history.refused or not records:
            return self.replace(seen, new)
        values = (*self._replacement(seen, new), *self.history.limits, *record_arguments(records))
        replaced, *lost = self._connector.run("replace_and_record", *values)
        self.history.losses.note(*lost)
        return bool(replaced)

    @override
    def delete(self, key: str) -> bool:
        done = self._connector.run("delete", encoding.text(key))
        if done == b"missing":
            raise NotFoundError(f"no schedule has the key {key!r}")
        return bool(done == b"removed")

    @override
    def claim(
        self, owner: str, *, limit: int, alive_time: int, shortest: int, horizon: float
    ) -> Claimed:
        lease, chosen = (alive_time, shortest, ceil(horizon)), self._chosen()
        limit = min(limit, BATCH)
        over = self._over(limit, alive_time, shortest)
        try:
            answer = self._connector.run(
                "claim", encoding.text(owner), limit, *lease, len(over), *_flat(over), *chosen
            )
        except UnknownOutcomeError as error:
            raise ClaimUnknownError(owner, ()) from error
        if answer is None:
            self._connector.check(None)
        seconds, microseconds, found, expired, claimed, next_due, more = answer
        leased = [encoding.row_of(each) for each in found]
        return Claimed(
            rows=leased,
            expired={
                row.key: ExpiredLease(
                    Token(encoding.decoded(was), row.fence - 1), encoding.whole(since)
                )
                for row, was, since in zip(leased, expired, claimed, strict=True)
                if was
            },
            now=encoding.seconds_of(seconds, microseconds),
            next_due=None if next_due is None else int(float(next_due)),
            more=bool(more),
        )

    def _over(self, most: int, alive_time: int, shortest: int) -> Sequence[Sequence[Argument]]:
        """The leases that the next claim may take over, though their rows are leased."""
        if self._takeover is None:
            return ()
        leases = self._takeover.next(most, alive_time=alive_time, shortest=shortest)
        parts = [(each.key, each.owner, each.fence, each.end) for each in leases]
        holds = [
            (encoding.text(key), encoding.text(owner), end)
            for key, owner, fence, end in parts
            if fence is None
        ]
        if holds:
            self._connector.run("release_over", *_flat(holds))
        return [
            (encoding.text(key), encoding.text(owner), fence, end)
            for key, owner, fence, end in parts
            if fence is not None
        ]

    def _ended(self) -> Iterator[Lease]:
        """The leases and holds that have ended by the server's clock."""
        after: Argument | None = ""
        chosen = self._chosen()
        while after is not None:
            found, after = self._connector.run("ended", after, encoding.PAGE, *chosen)
            for key, owner, fence, end, own in found:
                yield Lease(
                    encoding.decoded(key),
                    encoding.decoded(owner),
                    encoding.whole(fence),
                    int(float(end)),
                    encoding.whole(own),
                )

    def _chosen(self) -> Sequence[Argument]:
        """What the scripts that find due rows get: the lanes of this host, and the types."""
        lanes = [*map(encoding.text, self._lanes.look())]
        return (len(lanes), *lanes, *self._only)

    def _pattern_lanes(self, after: str) -> Sequence[str]:
        """Lanes of several names and of patterns that come next."""
        return self._lanes_between(after, PATTERNS[1], MOST_PATTERNS)

    @override
    def lanes(self, most: int) -> Sequence[str]:
        return self._lanes_between("", AFTER_LANES, most)

    def _lanes_between(self, after: str, before: str, most: int) -> Sequence[str]:
        return [*map(encoding.decoded, self._connector.run("lanes", after, before, most))]

    def hold(self, holds: Mapping[str, str], *, alive_time: int, shortest: int) -> frozenset[str]:
        """Hold schedules for extra runs, as `HoldsSchedules.hold` describes."""

        def hold(batch: Sequence[str]) -> Mapping[str, int]:
            holders = _flat((encoding.text(key), encoding.text(holds[key])) for key in batch)
            marks = " ".join(MARKS)
            held = self._connector.run("hold", alive_time, shortest, marks, *holders)
            return dict(zip(batch, held, strict=True))

        held = _in_batches(hold, batched([*holds], BATCH))
        return frozenset(key for key, is_held in held.items() if is_held)

    def release(self, holds: Mapping[str, str]) -> None:
        """End holds, as `HoldsSchedules.release` describes."""
        for batch in batched([*holds.items()], BATCH):
            holders = _flat([*map(encoding.text, hold)] for hold in batch)
            self._connector.run("release", *holders)

    @override
    def backlog(self, limit: int) -> Backlog:
        due, late = self._connector.run("backlog", min(limit, BATCH), *self._chosen())
        return Backlog(due=due, late=float(late))

    @override
    def held(self, owner: str, keys: Sequence[str]) -> Sequence[Row]:
        try:
            # The script only reads. But ``writing`` is true, so that `Connector.run` checks for a
            # failover afterwards, because an answer of a replaced primary must not be used.
            found = self._connector.run("held", encoding.text(owner), writing=True)
        except UnknownOutcomeError as error:
            raise StoreUnavailableError(str(error)) from None
        found = map(encoding.row_of, found)
        return [row for row in found if not keys or row.key in keys]

    @override
    def extend(
        self, leases: Mapping[str, Token], *, alive_time: int, shortest: int
    ) -> frozenset[str]:

        def extend(batch: Sequence[str]) -> Mapping[str, int]:
            tokens = (
                (encoding.text(k), encoding.text(leases[k].owner), leases[k].fence) for k in batch
            )
            held = self._connector.run("extend", alive_time, shortest, *_flat(tokens))
            return dict(zip(batch, held, strict=True))

        held = _in_batches(extend, batched([*leases], BATCH))
        return frozenset(key for key, is_held in held.items() if is_held)

    @override
    def settle(self, settlements: Sequence[Settlement]) -> Mapping[str, Settled]:

        def settle(batch: Sequence[Settlement]) -> Mapping[str, Settled]:
            found = self._settle(batch)
            return {
                end.key: Settled(result.decode()) for end, result in zip(batch, found, strict=True)
            }

        return _in_batches(settle, batches(settlements, _size_of_records))

    @override
    def update_data(self, key: str, token: Token, data: str) -> bool:
        stored = self._pack(data)
        content = encoding.text(stored) if isinstance(stored, str) else stored
        lease = (encoding.text(key), encoding.text(token.owner), token.fence)
        return bool(self._connector.run("update_data", *lease, content))

    @override
    def marked(self, keys: Sequence[str]) -> Mapping[str, str]:
        if not keys:
            return {}
        found = self._connector.run("marked", *map(encoding.text, keys))
        marks = {key: encoding.decoded(mark) for key, mark in zip(keys, found, strict=True) if mark}
        return {key: mark for key, mark in marks.items() if mark in MARKS}

    @override
    def purge(self, limit: int) -> int:
        return int(self._connector.run("purge", min(limit, BATCH)))

    @override
    def look(self, keys: Sequence[str]) -> Mapping[str, Row]:
        found: dict[str, Row] = {}
        for batch in batched(keys, BATCH):
            for answer in self._connector.run("rows", *map(encoding.text, batch)):
                row = encoding.row_of(answer)
                found[row.key] = row
        return found

    @override
    def recover(self, nonce: str, *, alive_time: int, retry_wait: float) -> Sequence[str]:
        wait = ceil(retry_wait)
        released: list[str] = []
        after = b""
        while True:
            fields = history.WORKER_FIELDS
            milliseconds, worker, leases = self._connector.run(
                "dead", encoding.text(nonce), after, BATCH, *fields
            )
            if not leases:
                self._connector.run("release", encoding.text(nonce))
                return released
            known = history.known_worker(nonce, worker)
            dead = [
                (member, None if row is None else encoding.row_of(row)) for member, row in leases
            ]
            records = [self._lost_record(row, int(milliseconds), known) for _, row in dead]
            recorded = {
                row.key for (_, row), record in zip(dead, records, strict=True) if row and record
            }
            named = [
                (member, row.fence if row else 0, record)
                for (member, row), record in zip(dead, records, strict=True)
            ]
            limits = (alive_time, wait, *self.history.limits)
            (keys,) = self.history.run_recording(
                ("recover_and_record", (*limits, *_flat(named))),
                ("recover", (*limits, *_flat((m, fence, b"") for m, fence, _ in named))),
                partial(_count_among, recorded),
            )
            released += (encoding.decoded(key) for key in keys)
            after = leases[-1][0]

    def _lost_record(self, row: Row | None, ended: int, worker: WorkerRecord | None) -> bytes:
        """The record of a dead worker's attempt; empty if there is none."""
        if self.history.refused or row is None:
            return b""
        record = record_of_death(row, ended, worker, self._history_of(row))
        return b"" if record is None else history.encode_run(record)

    @override
    def examine(self) -> Sequence[tuple[str, str]]:
        facts = diagnostics.examine(self._connector, self.now, self._clock)
        return facts if self._takeover is None else [*facts, FACT]

    @override
    def disconnect(self) -> None:
        self._connector.disconnect()

    def _replacement(self, seen: Row, new: Row) -> Sequence[Argument]:
        packed = changed(new, data=new.data and self._pack(new.data))
        return encoding.replace_arguments(seen, packed)

    def _settle(self, batch: Sequence[Settlement]) -> Sequence[bytes]:
        """Run the script that ends leases; return its result for each settlement."""

        def lost(answer: Sequence[Sequence[bytes]]) -> int:
            pairs = zip(batch, answer[0], strict=True)
            return sum(len(end.records) for end, result in pairs if result == b"done")

        plain = ("settle", self._settle_arguments(batch, recording=False))
        if not self.history.refused and any(end.records for end in batch):
            recording = ("settle_and_record", self._settle_arguments(batch, recording=True))
            (results,) = self.history.run_recording(recording, plain, lost)
        else:
            results, _, _ = self._connector.run(plain[0], *plain[1])
        found: Sequence[bytes] = results
        return found

    def _settle_arguments(
        self, batch: Sequence[Settlement], *, recording: bool
    ) -> Iterator[Argument]:
        yield from self.history.limits
        for end in batch:
            yield from encoding.settle_arguments(end)
            records = end.records if recording else ()
            yield len(records)
            yield from map(history.encode_run, records)


def _in_batches(
    write: Callable[[Sequence[R]], Mapping[str, T]], parts: Iterable[Sequence[R]]
) -> dict[str, T]:
    """Write items a batch at a time; return the result of each item by the item's key."""
    answered: dict[str, T] = {}
    for batch in parts:
        try:
            answered |= write(batch)
        except StoreUnavailableError as error:
            if not answered:
                raise
            # The batches before this one were written, so the outcome of the whole call is unknown.
            raise UnknownOutcomeError(str(error)) from None
    return answered


def _count_among(recorded: Collection[str], answer: Sequence[Any]) -> int:
    """Count the released rows, in the answer of ``recover``, that have a record."""
    return sum(encoding.decoded(key) in recorded for key in answer[0])


def _size_of_records(end: Settlement) -> int:
    return sum(map(size_of_record, end.records))


def _flat(groups: Iterable[Sequence[Argument]]) -> Iterator[Argument]:
    return (argument for group in groups for argument in group)

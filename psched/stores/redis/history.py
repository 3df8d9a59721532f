"""The run history in Redis, beside the rows; ``lua/prelude.lua`` describes the layout."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from dataclasses import replace as changed
from math import inf
from typing import Any, NamedTuple, Self, TypeVar

from typing_extensions import override

from psched.config import Config
from psched.core.history.protocol import (
    EVERY_RUN,
    FIRST_FAILURES,
    AuditSelection,
    KeepsHistory,
    NewFailures,
    RunSelection,
)
from psched.core.history.records import (
    FAILED_FATES,
    FAILURES,
    AuditRecord,
    RunRecord,
    WorkerRecord,
    texts_of,
)
from psched.stores.pages import Page, Pages, batched
from psched.stores.redis.connector import Connector
from psched.stores.redis.encoding import Argument, decoded, decoded_or_none, text, whole
from psched.stores.redis.errors import MemoryFullError
from psched.stores.redis.side_store import BATCH, TRIMMED, Losses, SideStore, batches

MOST_RUNS = 100_000
"""The number of records of all keys together that are kept, about.

They take about 40 MB, see docs/redis.md.
"""

MOST_CHANGES = 10_000
"""The number of changes of schedules that are kept, about."""

_SEARCHED = 2000
"""The most records that one run of a script searches for failures."""

_LOOKED_AT = 5
"""How many records of a key are looked at for each of its durations that is wanted."""

_FAILED = json.dumps({"outcome": sorted(FAILURES), "fate": sorted(FAILED_FATES)})

_CLOCKS_DIFFER = 3_600_000
"""Milliseconds by which a record's ``ended`` can be later than the time when it was written.

It is large, because the server's clock may have been set.
"""

Request = tuple[str, Iterable[Argument]]
"""The name of a script, and its arguments."""

T = TypeVar("T", RunRecord, AuditRecord)

_TIMES = ("seen", "started", "ended")
_GIVEN = [each.name for each in fields(WorkerRecord) if each.name not in {"nonce", *_TIMES}]

WORKER_FIELDS = (*_TIMES, *_GIVEN)
"""The fields of a worker's hash. The first one is in each hash."""

_MISSING = object()

_DEFAULTS = {
    kind: [
        (field.name, _MISSING if field.default is MISSING else field.default)
        for field in fields(kind)
        if field.name not in unwritten
    ]
    for kind, unwritten in ((RunRecord, {"id"}), (AuditRecord, {"id", "time"}))
}
"""The fields that a text contains, with their defaults."""

_TEXTS = texts_of(WorkerRecord)

_SEQUENCE_BITS = 20


class _Stored(NamedTuple):
    """A record in an answer of ``history_page``; the script describes the values."""

    place: bytes
    entry: bytes
    key: bytes
    record: bytes


class RedisHistory(SideStore, KeepsHistory):
    """Keeps the run history, as `KeepsHistory` describes.

    There are two copies of each record of a run: in a stream of the records of all keys, and in a
    list of the records of its key. So the records of a schedule that runs once a day survive
    thousands of runs of other schedules. Both are capped.

    Attributes:
        limits: how many records the scripts that write some keep.
        refused: whether the last call of `problem` has found one. If so, the store writes no
            records, because each of them would only be refused, and counted as lost.
    """

    part = "history"

    def __init__(self, connector: Connector, settings: Config) -> None:
        super().__init__(connector)
        self.limits = (MOST_RUNS, settings.history_keep_per_key, settings.history_keep)
        self.refused = False
        self._keep = settings.history_keep
        self.losses = Losses("records of the run history")

    @property
    def lost_records(self) -> int:  # type: ignore[override]  # nobody sets it
        """How many records could not be written so far."""
        return self.losses.count

    @override
    def problem(self) -> str | None:
        problem = super().problem()
        self.refused = problem is not None
        return problem

    @override
    def record(self, records: Sequence[RunRecord]) -> None:
        for batch in batches(records, size_of_record):
            try:
                lost, reason = self._connector.run("record", *self.limits, *record_arguments(batch))
            except MemoryFullError as error:
                lost, reason = len(batch), str(error).encode()
            self.losses.note(lost, reason)

    @override
    def runs(self, selection: RunSelection = EVERY_RUN) -> Iterator[RunRecord]:
        # The records of one key are read from its list. If it has no list, because the list has
        # expired, they are searched in the stream of the records of all keys. The records of the
        # extra runs of a schedule are read from a list of their own.
        own = self._runs_of(selection)
        if selection.key is None or not selection.with_extra_runs:
            return own
        key = text(selection.key)

        def read(place: Argument, most: int) -> Page[RunRecord]:
            found = self._read_page("extra", place, most, key) or ()
            records = (decode_run(each.record, each.entry) for each in found)
            matching = [each for each in records if each is not None and selection.matches(each)]
            return Page(matching, found[-1].place if found else None)

        return _Merged((own, Pages(read, selection.limit, BATCH, moves=True)), selection.limit)

    def _runs_of(self, selection: RunSelection) -> Iterator[RunRecord]:
        what = "runs" if selection.key is None else "key"
        key = text(selection.key or "")
        earliest = None if selection.since is None else selection.since - _CLOCKS_DIFFER

        def read(place: Argument, most: int) -> Page[RunRecord]:
            nonlocal what
            found = self._read_page(what, place, most, key)
            if found is None and place == "":
                what = "runs"
                found = self._read_page(what, place, most)
            records = (
                decode_run(each.record, each.entry)
                for each in found or ()
                if selection.key is None or each.key == key
            )
            over = not found
            if found and what == "runs" and earliest is not None:
                over = entry_time(found[-1].entry) < earliest
            matching = [each for each in records if each is not None and selection.matches(each)]
            return Page(matching, None if over or not found else found[-1].place)

        return Pages(read, selection.limit, BATCH, moves=True)

    @override
    def last_runs(self, keys: Sequence[str]) -> Mapping[str, RunRecord]:
        last: dict[str, RunRecord] = {}
        for batch in batched(keys, BATCH):
            answers = self._connector.run("last_runs", *map(text, batch))
            for key, answer in zip(batch, answers, strict=True):
                record = answer and decode_run(answer[1], answer[0])
                if record:
                    last[key] = changed(record, error=None, result=None)
        return last

    @override
    def durations(self, keys: Sequence[str], most: int) -> Mapping[str, Sequence[int]]:
        found: dict[str, Sequence[int]] = {}
        for batch in batched(keys, BATCH):
            limits = most, _LOOKED_AT * most
            answers = self._connector.run("durations", *limits, *map(text, batch))
            for key, answer in zip(batch, answers, strict=True):
                if answer:
                    found[key] = [int(took) for took in answer]
        return found

    @override
    def failures(self, *, since: int, among: int, limit: int) -> Sequence[RunRecord]:
        found, _ = self._failures(since=since, among=among, limit=limit)
        return found

    @override
    def new_failures(self, after: str | None, limit: int) -> NewFailures:
        # The place is the id of an entry in the stream.
        among = FIRST_FAILURES if after is None else MOST_RUNS
        found, newest = self._failures(among=among, limit=limit, after=after or "")
        return NewFailures(place=newest or after or "", records=found)

    def _failures(
        self, *, since: int = 0, among: int, limit: int, after: str = ""
    ) -> tuple[Sequence[RunRecord], str]:
        """The failures of a part of the stream, and the id of the newest entry in this part."""
        found: list[RunRecord] = []
        place, newest = b"", b""
        while among > 0 and len(found) < limit:
            most = min(among, _SEARCHED)
            place, looked, answers, first = self._connector.run(
                "failures", place, most, limit - len(found), _FAILED, after
            )
            newest = newest or first
            records = (decode_run(each, entry) for entry, each in answers)
            found += [
                changed(record, error=None, result=None)
                for record in records
                if record is not None and record.ended >= since
            ]
            among -= looked
            if looked < most and len(answers) < limit:
                break
            if entry_time(place) < since:
                break
        return found, newest.decode()

    @override
    def trim(self, *, before: int, limit: int) -> int:
        # Records that are only in the list of their key are deleted when this key gets a new
        # record, or when its list expires.
        deleted, left = 0, limit
        while left > 0:
            most = min(left, TRIMMED)
            counts = self._connector.run("trim", before, most)
            deleted += sum(counts)
            left -= most
            if max(counts) < most:
                break
        return deleted

    @override
    def trim_key(self, key: str, keep: int) -> int:
        return int(self._connector.run("trim_key", text(key), keep, TRIMMED))

    @override
    def beat(self, worker: WorkerRecord) -> None:
        self._connector.run("beat", *beat_arguments(worker, self._keep))

    @override
    def workers(self, since: int = 0) -> Sequence[WorkerRecord]:
        names = WORKER_FIELDS
        found = self._connector.run("workers", since, *names)
        workers = map(decode_worker, found)
        return sorted(workers, key=lambda worker: (worker.started, worker.nonce))

    @override
    def audit(self, changes: Sequence[AuditRecord]) -> None:
        for batch in batches(changes, lambda change: len(change.before or change.after or "")):
            named = (
                argument
                for change in batch
                for argument in (text(change.key), encode_change(change))
            )
            self._connector.run("audit", MOST_CHANGES, *named)

    @override
    def audits(self, selection: AuditSelection) -> Iterator[AuditRecord]:
        key, since = selection.key, selection.since or 0

        def read(place: Argument, most: int) -> Page[AuditRecord]:
            found = self._read_page("audit", place, most) or ()
            newer = [each for each in found if entry_time(each.entry) >= since]
            changes = (decode_change(each.record, each.entry) for each in newer)
            matching = [each for each in changes if each is not None and key in {None, each.key}]
            return Page(matching, newer[-1].place if newer and len(newer) == len(found) else None)

        return Pages(read, selection.limit, BATCH, moves=True)

    def run_recording(
        self, recording: Request, without: Request, lost: Callable[[Any], int]
    ) -> Any:  # noqa: ANN401  # any type of answer
        """Run a script that also writes records; if memory is full, run it without them."""
        try:
            *answer, count, reason = self._connector.run(recording[0], *recording[1])
        except MemoryFullError as error:
            *answer, _, _ = self._connector.run(without[0], *without[1])
            count, reason = lost(answer), str(error).encode()
        self.losses.note(count, reason)
        return answer

    def _read_page(
        self, what: str, place: Argument, most: int, *key: bytes
    ) -> Sequence[_Stored] | None:
        found = self._connector.run("history_page", what, place, most, *key)
        return None if found is None else [_Stored(*each) for each in found]


class _Merged(Iterator[RunRecord]):
    """Merges iterators over records, each of which returns the newest first.

    After an exception, ``next`` continues with the record that could not be read.
    """

    def __init__(self, sources: Sequence[Iterator[RunRecord]], limit: int | None) -> None:
        self._sources = [*sources]
        self._heads = list[RunRecord | None]()
        self._left = limit

    @override
    def __iter__(self) -> Self:
        return self

    @override
    def __next__(self) -> RunRecord:
        if self._left == 0:
            raise StopIteration
        while len(self._heads) < len(self._sources):
            self._heads.append(next(self._sources[len(self._heads)], None))
        newest = max(range(len(self._heads)), key=lambda place: _number(self._heads[place]))
        record = self._heads[newest]
        if record is None:
            raise StopIteration
        following = None if self._left == 1 else next(self._sources[newest], None)
        self._heads[newest] = following
        if self._left is not None:
            self._left -= 1
        return record


def _number(record: RunRecord | None) -> float:
    """The place of a record in the order of all; the end of an iterator comes last."""
    return -inf if record is None else record.id or 0


def size_of_record(record: RunRecord) -> int:
    """The number of characters of the texts in a record that can be large."""
    return len(record.error or "") + len(record.result or "")


def record_arguments(records: Sequence[RunRecord]) -> Iterator[Argument]:
    """The values by which ``write_new_records`` in ``prelude.lua`` writes records."""
    for record in records:
        yield text(record.key)
        yield text(record.owner)
        yield record.scheduled_time
        yield record.outcome or ""
        yield encode_run(record)


def encode_run(record: RunRecord) -> bytes:
    """The text of a run record: the time when the run ended, a space and a JSON object."""
    return _encoded(record, record.ended)


def encode_change(change: AuditRecord) -> bytes:
    """The text of a change; the server knows its time."""
    return _encoded(change, 0)


def decode_run(stored: bytes, entry: bytes) -> RunRecord | None:
    """The record in a text; None if it is incomplete, or no record."""
    return _decoded(RunRecord, stored, id=entry_number(entry))


def decode_change(stored: bytes, entry: bytes) -> AuditRecord | None:
    """The change in a text, as `decode_run` describes."""
    return _decoded(AuditRecord, stored, id=entry_number(entry), time=entry_time(entry))


def beat_arguments(worker: WorkerRecord, keep: int) -> Sequence[Argument]:
    """The arguments of the script ``beat``; ``keep`` is a number of seconds, or 0."""
    named: list[Argument] = [
        text(worker.nonce),
        worker.started,
        "" if worker.ended is None else worker.ended,
        keep,
    ]
    for name in _GIVEN:
        value = getattr(worker, name)
        if value is not None:
            named += (name, text(str(value)))
    return named


def decode_worker(answer: Sequence[bytes | None]) -> WorkerRecord:
    """The record in an answer of ``workers``: the nonce, then `WORKER_FIELDS`."""
    nonce, *stored = answer
    values: dict[str, Any] = {"nonce": decoded(nonce or b"")}
    for name, value in zip(WORKER_FIELDS, stored, strict=True):
        if name in _TEXTS:
            values[name] = decoded_or_none(value)
        else:
            values[name] = whole(value)
    return WorkerRecord(**values)


def known_worker(nonce: str, stored: Sequence[bytes | None]) -> WorkerRecord | None:
    """The record of a worker, given its `WORKER_FIELDS`; None if there is none."""
    if not stored or stored[0] is None:
        return None
    return decode_worker((text(nonce), *stored))


def entry_number(entry: bytes) -> int | None:
    """A number for an entry of a stream, which is larger for later entries."""
    milliseconds, _, sequence = entry.partition(b"-")
    time, place = whole(milliseconds), whole(sequence)
    return None if time is None or place is None else (time << _SEQUENCE_BITS) | place


def entry_time(entry: bytes) -> int:
    """When the server has added an entry to a stream, in milliseconds."""
    return whole(entry.partition(b"-")[0]) or 0


def _encoded(record: RunRecord | AuditRecord, time: int) -> bytes:
    """A text with the fields of a record, except those that have their default."""
    values = {
        name: value
        for name, default in _DEFAULTS[type(record)]
        if (value := getattr(record, name)) != default
    }
    return text(f"{time} {json.dumps(values, ensure_ascii=False, separators=(',', ':'))}")


def _decoded(kind: type[T], stored: bytes, **known: int | None) -> T | None:
    try:
        found = json.loads(stored.partition(b" ")[2])
        # Another version of psched may have written more fields than this one knows.
        values = {name: found[name] for name, _ in _DEFAULTS[kind] if name in found}
        values.update(known)
        return kind(**values)
    except (ValueError, TypeError):
        return None

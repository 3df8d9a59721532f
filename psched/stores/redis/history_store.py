"""Keeps the run history in Redis, beside the rows."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace as changed
from math import inf
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from typing_extensions import override

from psched.core.history.protocol import (
    EVERY_RUN,
    FIRST_FAILURES,
    AuditSelection,
    NewFailures,
    RunSelection,
)
from psched.core.history.records import (
    FAILED_FATES,
    FAILURES,
    AuditRecord,
    RunRecord,
    WorkerRecord,
)
from psched.core.store_protocol import Store
from psched.stores.parameters import StoreParameters
from psched.stores.redis import history_encoding, scripts
from psched.stores.redis.connector import Connector
from psched.stores.redis.encoding import Argument, text
from psched.stores.redis.errors import MemoryFullError, refusal
from psched.stores.redis.losses import Losses
from psched.stores.redis.scripts import Script

MOST_RUNS = 100_000
"""The number of records of all keys together that are kept, about.

They take about 40 MB, see docs/redis.md.
"""

MOST_CHANGES = 10_000
"""The number of changes of schedules that are kept, about."""

_BATCH = 200
"""The most records that one run of a script writes or returns.

The number is small because the server serves no other client while a script runs.
"""

_LARGEST_BATCH = 2_000_000
"""The most bytes of records that one request writes, unless a single record has more."""

_TRIMMED = 500
"""The most records, and the most changes, that one run of a script deletes."""

_SEARCHED = 2000
"""The most records that one run of a script searches for failures."""

_LOOKED_AT = 5
"""How many records of a key are looked at for each of its durations that is wanted."""

_FAILED = json.dumps({"outcome": sorted(FAILURES), "fate": sorted(FAILED_FATES)})

_CLOCKS_DIFFER = 3_600_000
"""Milliseconds by which a record's ``ended`` can be later than the time when it was written.

It is large, because the server's clock may have been set.
"""


class _Numbered(Protocol):
    @property
    def id(self) -> int | None: ...


T = TypeVar("T", bound=_Numbered)
R = TypeVar("R")
Request = tuple[Script, Iterable[Argument]]


class HistoryStore(Store):
    """A store in Redis that keeps the run history, as `KeepsHistory` describes.

    There are two copies of each record of a run: in a stream of the records of all keys, and in a
    list of the records of its key. So the records of a schedule that runs once a day survive
    thousands of runs of other schedules. Both are capped.

    Args:
        parameters: the settings of the store.
    """

    _connector: Connector

    def __init__(self, parameters: StoreParameters) -> None:
        self._keep = parameters.history_keep
        self._limits = (MOST_RUNS, parameters.history_keep_per_key, parameters.history_keep)
        self._history_of = parameters.history
        # Whether the last call of `history_problem` has found a problem. If so, the store writes no
        # records, because each of them would only be refused, and counted as lost.
        self._refused = False
        self._losses = Losses("records of the run history")

    @property
    def lost_records(self) -> int:
        """How many records could not be written so far."""
        return self._losses.count

    def history_problem(self) -> str | None:
        """Why no history is kept: a command is unknown or forbidden; None if it is kept."""
        problem = refusal(self._connector.run(scripts.TRY_HISTORY, writing=False))
        self._refused = problem is not None
        return problem

    def record(self, records: Sequence[RunRecord]) -> None:
        """Write records that belong to no settlement, as `KeepsHistory.record` describes."""
        for batch in batches(records, size_of_record):
            try:
                lost, reason = self._connector.run(
                    scripts.RECORD, *self._limits, *record_arguments(batch)
                )
            except MemoryFullError as error:
                lost, reason = len(batch), str(error).encode()
            self._losses.note(lost, reason)

    def runs(self, selection: RunSelection = EVERY_RUN) -> Iterator[RunRecord]:
        """The records of a selection, as `KeepsHistory.runs` describes.

        The records of one key are read from its list. If it has no list, because the list has
        expired, they are searched in the stream of the records of all keys. The records of the
        extra runs of a schedule are read from a list of their own.
        """
        own = self._runs_of(selection)
        if selection.key is None or not selection.with_extra_runs:
            return own
        key = text(selection.key)

        def read(place: Argument, most: int) -> Page[RunRecord]:
            found = self._read_page("extra", place, most, key) or ()
            records = (history_encoding.decode_run(each.record, each.entry) for each in found)
            matching = [each for each in records if each is not None and selection.matches(each)]
            return Page(matching, found[-1].place if found else None)

        return _Merged((own, Pages(read, selection.limit)), selection.limit)

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
                history_encoding.decode_run(each.record, each.entry)
                for each in found or ()
                if selection.key is None or each.key == key
            )
            over = not found
            if found and what == "runs" and earliest is not None:
                over = history_encoding.entry_time(found[-1].entry) < earliest
            matching = [each for each in records if each is not None and selection.matches(each)]
            return Page(matching, None if over or not found else found[-1].place)

        return Pages(read, selection.limit)

    def last_runs(self, keys: Sequence[str]) -> Mapping[str, RunRecord]:
        """The last runs of keys, as `FindsLastRuns.last_runs` describes."""
        last: dict[str, RunRecord] = {}
        for start in range(0, len(keys), _BATCH):
            batch = keys[start : start + _BATCH]
            answers = self._connector.run(scripts.LAST_RUNS, *map(text, batch), writing=False)
            for key, answer in zip(batch, answers, strict=True):
                record = answer and history_encoding.decode_run(answer[1], answer[0])
                if record:
                    last[key] = changed(record, error=None, result=None)
        return last

    def durations(self, keys: Sequence[str], most: int) -> Mapping[str, Sequence[int]]:
        """How long runs took, as `SummarizesRuns.durations` describes."""
        found: dict[str, Sequence[int]] = {}
        for start in range(0, len(keys), _BATCH):
            batch = keys[start : start + _BATCH]
            limits = most, _LOOKED_AT * most
            answers = self._connector.run(
                scripts.DURATIONS, *limits, *map(text, batch), writing=False
            )
            for key, answer in zip(batch, answers, strict=True):
                if answer:
                    found[key] = [int(took) for took in answer]
        return found

    def failures(self, *, since: int, among: int, limit: int) -> Sequence[RunRecord]:
        """The newest failures, as `SummarizesRuns.failures` describes."""
        found, _ = self._failures(since=since, among=among, limit=limit)
        return found

    def new_failures(self, after: str | None, limit: int) -> NewFailures:
        """The failures since an earlier call, as `FollowsFailures.new_failures` describes.

        The place is the id of an entry in the stream.
        """
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
                scripts.FAILURES, place, most, limit - len(found), _FAILED, after, writing=False
            )
            newest = newest or first
            records = (history_encoding.decode_run(each, entry) for entry, each in answers)
            found += [
                changed(record, error=None, result=None)
                for record in records
                if record is not None and record.ended >= since
            ]
            among -= looked
            if looked < most and len(answers) < limit:
                break
            if history_encoding.entry_time(place) < since:
                break
        return found, newest.decode()

    def trim(self, *, before: int, limit: int) -> int:
        """Delete old records, changes and workers, as `KeepsHistory.trim` describes.

        Records that are only in the list of their key are deleted when this key gets a new record,
        or when its list expires.
        """
        deleted, left = 0, limit
        while left > 0:
            most = min(left, _TRIMMED)
            counts = self._connector.run(scripts.TRIM, before, most)
            deleted += sum(counts)
            left -= most
            if max(counts) < most:
                break
        return deleted

    def trim_key(self, key: str, keep: int) -> int:
        """Delete the oldest records of one key, as `KeepsHistory.trim_key` describes."""
        return int(self._connector.run(scripts.TRIM_KEY, text(key), keep, _TRIMMED))

    def beat(self, worker: WorkerRecord) -> None:
        """Insert or replace the record of a worker, as `KeepsHistory.beat` describes."""
        self._connector.run(scripts.BEAT, *history_encoding.beat_arguments(worker, self._keep))

    def workers(self, since: int = 0) -> Sequence[WorkerRecord]:
        """The workers since a time, as `KeepsHistory.workers` describes."""
        names = history_encoding.WORKER_FIELDS
        found = self._connector.run(scripts.WORKERS, since, *names, writing=False)
        workers = map(history_encoding.decode_worker, found)
        return sorted(workers, key=lambda worker: (worker.started, worker.nonce))

    def audit(self, changes: Sequence[AuditRecord]) -> None:
        """Write changes of schedules, as `KeepsHistory.audit` describes."""
        for batch in batches(changes, lambda change: len(change.before or change.after or "")):
            named = (
                argument
                for change in batch
                for argument in (text(change.key), history_encoding.encode_change(change))
            )
            self._connector.run(scripts.AUDIT, MOST_CHANGES, *named)

    def audits(self, selection: AuditSelection) -> Iterator[AuditRecord]:
        """The changes of a selection, as `KeepsHistory.audits` describes."""
        key, since = selection.key, selection.since or 0

        def read(place: Argument, most: int) -> Page[AuditRecord]:
            found = self._read_page("audit", place, most) or ()
            newer = [each for each in found if history_encoding.entry_time(each.entry) >= since]
            changes = (history_encoding.decode_change(each.record, each.entry) for each in newer)
            matching = [each for each in changes if each is not None and key in {None, each.key}]
            return Page(matching, newer[-1].place if newer and len(newer) == len(found) else None)

        return Pages(read, selection.limit)

    def _run_recording(
        self, recording: Request, without: Request, lost: Callable[[Any], int]
    ) -> Any:  # noqa: ANN401  # any type of answer
        """Run a script that also writes records; if memory is full, run it without them."""
        try:
            *answer, count, reason = self._connector.run(recording[0], *recording[1])
        except MemoryFullError as error:
            *answer, _, _ = self._connector.run(without[0], *without[1])
            count, reason = lost(answer), str(error).encode()
        self._losses.note(count, reason)
        return answer

    def _read_page(
        self, what: str, place: Argument, most: int, *key: bytes
    ) -> "Sequence[_Stored] | None":
        found = self._connector.run(scripts.HISTORY_PAGE, what, place, most, *key, writing=False)
        return None if found is None else [_Stored(*each) for each in found]


class _Stored(NamedTuple):
    """A record in an answer of `scripts.HISTORY_PAGE`; the script describes the values."""

    place: bytes
    entry: bytes
    key: bytes
    record: bytes


class Page(NamedTuple, Generic[T]):
    """Records, and the place after which the next page begins; None if there is no next page."""

    records: Sequence[T]
    place: Argument | None


class Pages(Iterator[T], Generic[T]):
    """Reads records page by page; after an exception, ``next`` reads the same page again.

    Args:
        read: returns the page after a place, the newest records first; the empty place is before
            the newest record. The second argument is the most records of the page.
        limit: the most records; None means no limit.
        size: the most records of a page.
    """

    def __init__(
        self, read: Callable[[Argument, int], Page[T]], limit: int | None, size: int = _BATCH
    ) -> None:
        self._read: Callable[[Argument, int], Page[T]] = read
        self._size = size
        self._left = limit
        self._place: Argument | None = ""
        self._page: deque[T] = deque()
        self._last: int | None = None

    @override
    def __iter__(self) -> Self:
        return self

    @override
    def __next__(self) -> T:
        while self._left != 0 and (self._page or self._place is not None):
            if not self._page and self._place is not None:
                most = self._size if self._left is None else min(self._size, self._left)
                records, self._place = self._read(self._place, most)
                self._page.extend(records)
                continue
            record = self._page.popleft()
            # A record that was written meanwhile moves all others of its list, so that the first
            # records of a page can be the last ones of the page before.
            if self._last is None or record.id is None or record.id < self._last:
                self._last = record.id
                if self._left is not None:
                    self._left -= 1
                return record
        raise StopIteration


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


def batches(items: Sequence[R], size_of: Callable[[R], int]) -> Iterator[Sequence[R]]:
    """Split items, in order, into parts that are small enough for one request each."""
    start = size = 0
    for end, item in enumerate(items):
        added = size_of(item)
        if end > start and (end - start == _BATCH or size + added > _LARGEST_BATCH):
            yield items[start:end]
            start, size = end, 0
        size += added
    if items:
        yield items[start:]


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
        yield history_encoding.encode_run(record)

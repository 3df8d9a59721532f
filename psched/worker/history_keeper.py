"""Writes what the run history contains besides the records of settlements, and trims it."""

import json
import logging
import os
import platform
from collections import deque
from collections.abc import Callable
from dataclasses import replace as changed
from functools import cache, partial
from itertools import islice
from math import floor, inf

from psched.base.errors import PschedError, StoreError, StoreSlowError, TransientStoreError
from psched.core.definition import Definition, history_setting
from psched.core.history.changes import Gap
from psched.core.history.protocol import (
    MOST_UNWRITTEN,
    KeepsHistory,
    RunSelection,
)
from psched.core.history.records import BEAT_INTERVAL, Outcome, RunRecord, WorkerRecord
from psched.core.model import Row
from psched.core.operations.pausing import earlier_failures
from psched.core.settling import Ending
from psched.core.store_protocol import ExpiredLease
from psched.triggers import zone
from psched.worker.chores import Deletions
from psched.worker.context import Context
from psched.worker.running_task import RunningTask
from psched.worker.store_gateway import StoreGateway

_log = logging.getLogger("psched.worker")


@cache
def _version() -> str | None:
    """The version of psched; None if it was copied here and not installed."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  # rarely needed

    try:
        return version("psched")
    except PackageNotFoundError:
        return None


_BATCH = 50
"""The most records that one request writes.

It is halved if the store is too slow for so many, 1 after the store has refused some, and doubled
again when records were written.
"""

_TRIM_LIMIT = 500
"""The most records that one request deletes because of their age."""

_BETWEEN_FAILURES = 50
"""The most records beside those of failures that are read to count the failures of a schedule."""

_TRIMMED_RUNS = 10
"""A key is trimmed on average once in ``history_keep_per_key`` / this many of its runs."""

_MOST_KEYS = 10
"""The most keys that wait to be trimmed."""

_KEYS_PER_TICK = 2
"""The most keys that one tick trims."""

_PAUSE = 10.0
"""Seconds until the next request about the run history after one has failed."""

_EARLIER = 120
"""A worker has written its record at most this many seconds before it claimed a row."""


class HistoryKeeper:
    """Writes the records that no settlement has written, says that the worker is alive, and trims.

    No failure of its requests has an effect on leases or tasks.

    Attributes:
        waiting: the records that wait to be written, the oldest first; read only.
        handed_back: the records that the store has not written with their settlements. They wait
            from the next call of any method on.
    """

    def __init__(self, context: Context, gateway: StoreGateway) -> None:
        store = context.store
        self._store = store.history
        self._clock_of_store = store
        self._gateway = gateway
        self._settings = context.settings
        self._place = context.place
        self._recorder = context.recorder
        self._clock = context.clock
        self._rng = context.rng
        self._begun = False
        self._kept = False
        self._started = 0
        self._dropped = 0
        self.waiting: deque[RunRecord] = deque()
        unwritten = None if store.history is None else store.history.unwritten
        self.handed_back = deque[RunRecord]() if unwritten is None else unwritten
        self._noted: Gap | None = None  # the note of the records that wait
        self._lost: Gap | None = None  # what has been dropped since then
        self._most = _BATCH
        self._keys: dict[str, None] = {}
        self._not_before = 0.0
        self._no_note_before = 0.0
        self._next_beat = 0.0
        self._deletions = Deletions(context)
        self._deletions.put_off()

    @property
    def lost_records(self) -> int:
        """How many records could not be written so far; it falls when some that wait are."""
        self._take_unwritten()
        lost = 0 if self._store is None else self._store.lost_records
        return self._dropped + lost + len(self.waiting)

    @property
    def wakes(self) -> float:
        """When to call `work` again, seconds of the monotonic clock; inf if no call is needed."""
        if not self._kept:
            return inf
        self._take_unwritten()  # soon, because they and their gap are lost if this worker is killed
        wakes = min(self._next_beat, 0.0 if self.waiting else inf)
        return max(wakes, self._not_before)

    @property
    def due(self) -> float:
        """When to call `work` if the worker is awake, seconds of the monotonic clock."""
        wakes = self._next_beat if not self._kept else 0.0 if self._keys else self._deletions.due
        return max(min(wakes, self.wakes), self._not_before)

    def taken_over(self, row: Row, expired: ExpiredLease) -> None:
        """Record the attempt whose lease has ended without a settle."""
        record = self._recorder.taken_over(row, expired)
        self._recorder.counts.lost(row.type)
        self._add(row, record)

    def unwritten(self, key: str) -> tuple[RunRecord, ...]:
        """The records of a key that wait to be written, the oldest first.

        They are of attempts whose leases were lost, or of settlements that were applied without
        them. They are also written with the next settlement of the key, so that they are not
        recorded after what became of the occurrence. Even then they keep waiting, because the store
        can refuse the settlement.
        """
        self._take_unwritten()
        return tuple(record for record in self.waiting if record.key == key)

    def with_unwritten(self, endings: list[Ending]) -> list[Ending]:
        """The ends of leases, each with the records of its key that wait to be written."""
        return [changed(each, earlier=self.unwritten(each.leased.key)) for each in endings]

    def failures_before(self, row: Row, definition: Definition) -> int:
        """How many attempts of earlier occurrences have failed in a row before that of a row.

        It is for ``pause_after_failures``; 0 if the history does not tell it, or cannot be read.
        """
        most, history = definition.settings.pause_after_failures, definition.settings.history
        store = self._store
        if not most or not self._kept or store is None or history == "none":
            return 0
        selection = RunSelection(key=row.key, limit=most + _BETWEEN_FAILURES)
        try:
            found = self._gateway.request_aside(lambda: [*store.runs(selection)])
        except StoreError as error:
            _log.warning("%s: its earlier failures are not counted: %s", row.key, error)
            return 0
        return earlier_failures([*reversed(self.unwritten(row.key)), *found], row, history)

    def preempted(self, task: RunningTask) -> None:
        """Record the attempt of a task whose lease was lost, or whose row was deleted."""
        attempt = changed(
            task.attempt, outcome=Outcome.PREEMPTED, reason="its lease was lost before its end"
        )
        record = self._recorder.record(task.row, attempt, task.occurrence.scheduled_time)
        self._recorder.counts.ended(task.row.type, attempt)
        self._add(task.row, record)

    def wrote(self, key: str) -> None:
        """Note that a record of a key was written, so that the key is trimmed now and then."""
        keep = self._settings.history_keep_per_key
        if not self._kept or not keep or len(self._keys) >= _MOST_KEYS:
            return
        if self._rng.random() < _TRIMMED_RUNS / keep:
            self._keys[key] = None

    def settled(self) -> None:
        """Note that settlements were applied without their records; call this after each.

        The note does not wait for `work`, because the records are lost if this worker is killed.
        """
        if self._store is None or not self._kept or not self.handed_back:
            return
        self._take_unwritten()
        if self._clock.monotonic() >= self._no_note_before:
            self._note_those_that_wait(self._store)

    def work(self, busy: int) -> None:
        """Send the requests that are due; call this after a claim was answered."""
        if self._clock.monotonic() < self._not_before:
            return
        self._try(partial(self._work, busy))
        self._try(self._trim)  # also if a record is refused each time

    def leave(self) -> None:
        """Write the waiting records as far as time allows, and that this worker ends now."""
        if self._kept and self._started and self._store is not None:
            self._try(partial(self._write_last, self._store))
            self._try(partial(self._beat, self._store, 0, ended=0))

    def _work(self, busy: int) -> None:
        now = self._clock.monotonic()
        if not self._kept and now >= self._next_beat:
            # The tables can be created later, so the store is asked again.
            self._kept = self._find_out()
            self._next_beat = now if self._kept else now + BEAT_INTERVAL
        if not self._kept or self._store is None:
            return
        try:
            if now >= self._next_beat:
                self._beat(self._store, busy)
                self._next_beat = now + BEAT_INTERVAL
            self._write(self._store)
        except PschedError:
            self._note_those_that_wait(self._store)
            raise

    def _find_out(self) -> bool:
        """Whether the store keeps the run history; the first time, warn if it does not."""
        problem: str | None = "this kind of store cannot keep it"
        if self._store is not None:
            problem = self._gateway.request_aside(self._store.problem)
        first, self._begun = not self._begun, True
        # One worker of a generation warns, because all of them would say the same.
        wanted = self._place.number == 0 and self._settings.history != "none"
        if problem is not None and first and wanted:
            text = "no run history is kept: %s; to keep none, set history to none"
            _log.warning(text, problem)
        if problem is not None:
            self.waiting.clear()
        return problem is None

    def _beat(self, store: KeepsHistory, busy: int, *, ended: int | None = None) -> None:
        """Write the record of this worker."""
        if not self._started:
            sent = self._clock.boottime()
            now = self._gateway.request_aside(self._clock_of_store.now)
            self._recorder.clock.read(now, sent, self._clock.boottime())
            self._started = floor(now)
        types = self._settings.only or self._recorder.types
        record = WorkerRecord(
            nonce=self._place.nonce,
            host=self._recorder.host,
            pid=os.getpid(),
            number=self._place.number,
            generation=self._recorder.generation or 0,
            slots=self._settings.concurrency,
            busy=busy,
            types=json.dumps([*types]) if types else None,
            started=self._started,
            seen=0,
            ended=ended,
            clock_offset=self._recorder.clock.host_offset(),
            zone_data=zone.VERSION,
            labels=" ".join(self._settings.configured_names) or None,
            version=_version(),
            python=platform.python_version(),
        )
        self._gateway.request_aside(lambda: store.beat(record))

    def _add(self, row: Row, record: RunRecord | None) -> None:
        if self._store is None or (self._begun and not self._kept) or record is None:
            return
        if history_setting(row, self._settings) == "none":
            return
        self._wait(record)

    def _wait(self, record: RunRecord) -> None:
        """Let a record wait, if there is room."""
        if len(self.waiting) < MOST_UNWRITTEN:
            self.waiting.append(record)
            return
        self._dropped += 1
        time = record.scheduled_time
        lost = self._lost or Gap(nonce=self._place.nonce, first=time)
        last = max(lost.last or 0, record.last)
        self._lost = changed(lost, first=min(lost.first, time), last=last, lost=lost.lost + 1)

    def _take_unwritten(self) -> None:
        """Let the records that the store has not written with their settlements wait."""
        if not self.handed_back:
            return
        # A settlement contains the earlier records of its key, which wait already.
        known = {id(record) for record in self.waiting}
        while self.handed_back:
            record = self.handed_back.popleft()
            if id(record) not in known:
                self._wait(record)

    def _write(self, store: KeepsHistory) -> None:
        """Write some of the records that wait; if none is left, note which ones are lost.

        The others are written later, because the worker claims nothing meanwhile.
        """
        self._take_unwritten()
        if self.waiting:
            self._write_some(store)
        gap = self._lost or self._noted
        if gap is not None and not self.waiting:
            last = gap.first if gap.last is None else gap.last
            self._note(store, changed(gap, last=last))
            self._noted = self._lost = None

    def _write_some(self, store: KeepsHistory) -> None:
        count = min(len(self.waiting), self._most)
        try:
            self._find_hosts(store)
            batch = [*islice(self.waiting, count)]
            self._gateway.request_aside(partial(store.record, batch))
        except StoreSlowError:
            self._most = max(1, self._most // 2)
            raise
        except TransientStoreError:
            raise  # the records are written later; to write a record twice does no harm
        except PschedError:
            # A right may be missing, or one record cannot be written. That one must not hold up the
            # others, so each is sent by itself, and then waits behind them.
            self._most = 1
            self.waiting.rotate(-1 if count == 1 else 0)
            raise
        self._forget(count)
        self._most = min(_BATCH, 2 * self._most)

    def _note_those_that_wait(self, store: KeepsHistory) -> None:
        """Note that records wait, so that they are missed by nobody if this worker is killed."""
        first = min((record.scheduled_time for record in self.waiting), default=None)
        if first is None or (self._noted is not None and self._noted.first <= first):
            return
        gap = Gap(nonce=self._place.nonce, first=first)
        # The note is one statement, which a slow database takes rather than a transaction.
        try:
            self._note(store, gap)
        except PschedError:
            self._no_note_before = self._clock.monotonic() + _PAUSE
        else:
            self._noted = gap

    def _note(self, store: KeepsHistory, gap: Gap) -> None:
        self._gateway.request_aside(partial(store.audit, [gap.note(self._recorder.host)]))

    def _write_last(self, store: KeepsHistory) -> None:
        """Write the records that wait, for not much longer than the driver's timeout."""
        give_up_at = self._clock.monotonic() + self._settings.driver_timeout
        try:
            self._write(store)
            while self.waiting and self._clock.monotonic() <= give_up_at:
                self._write(store)
        finally:
            self._note_those_that_wait(store)

    def _find_hosts(self, store: KeepsHistory) -> None:
        """Add the hosts of the workers whose leases this worker has taken over."""
        unknown = [record for record in self.waiting if record.host is None]
        if not unknown:
            return
        earliest = min(record.started or record.ended for record in unknown) // 1000
        find = partial(store.workers, max(0, earliest - _EARLIER))
        workers = {worker.nonce: worker for worker in self._gateway.request_aside(find)}
        self.waiting = deque(
            changed(record, host=found.host, generation=found.generation)
            if record.host is None and (found := workers.get(record.nonce)) is not None
            else record
            for record in self.waiting
        )

    def _forget(self, count: int) -> None:
        for _ in range(count):
            self.waiting.popleft()

    def _trim(self) -> None:
        """Delete old records, and the records of a few keys that have too many."""
        store = self._store
        if not self._kept or store is None:
            return
        for key in [*self._keys][:_KEYS_PER_TICK]:
            del self._keys[key]
            keep = self._settings.history_keep_per_key
            self._gateway.request_aside(partial(store.trim_key, key, keep))
        keep = self._settings.history_keep
        if not keep or self._clock.monotonic() < self._deletions.due:
            return
        before = self._recorder.clock.milliseconds() - keep * 1000
        trim = partial(store.trim, before=before, limit=_TRIM_LIMIT)
        self._deletions.delete(lambda: self._gateway.request_aside(trim), _TRIM_LIMIT)

    def _try(self, work: Callable[[], None]) -> None:
        """Do something; if the store does not answer or refuses it, wait for some seconds."""
        try:
            work()
        except PschedError as error:
            # For example, a record that violates a unique index which somebody has added raises an
            # AlreadyExistsError, which is no StoreError.
            self._not_before = self._clock.monotonic() + _PAUSE
            _log.info("the run history is not written for now: %s", error)

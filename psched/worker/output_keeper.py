"""Writes what attempts have printed to the store, and deletes old output.

What tasks print while they run is written as long as somebody on another host reads it.
"""

import logging
from collections import deque
from dataclasses import replace
from functools import partial
from math import inf
from typing import NamedTuple

from psched.base.errors import PschedError, SchemaError, TransientStoreError
from psched.base.fault_log import FaultLog
from psched.core.output import KEPT, KeepsOutput, OutputRecord, RunningAttempt
from psched.output.captured import CapturedOutput
from psched.worker.chores import Deletions
from psched.worker.context import Context
from psched.worker.running_task import RunningTask
from psched.worker.store_gateway import StoreGateway
from psched.worker.task_table import TaskTable

_log = logging.getLogger("psched.worker")

MOST_WAITING = 2**23
"""The most bytes of output that wait to be written. Further output is dropped, and counted."""

_MOST_NOTES = 2**21
"""The most bytes of records which wait beyond `MOST_WAITING`, and note that output was dropped."""

_RECORD = 500
"""About the bytes that a waiting record takes besides its output."""

_GATHER = 0.2
"""Seconds between two requests that write records, unless enough of them wait for a full request.
A transaction costs the database as much as many records, so that busy workers write fewer of them.
"""

_BATCH = 100
"""The most records that one request writes.

After a failure it is 1, and it is doubled again when records were written.
"""

_BATCH_BYTES = 2**20
"""About the most bytes that one request writes."""

_TRIM_LIMIT = 300
"""The most records that one request deletes."""

_MOST_FAILURES = 5
"""A record that could not be written so many times in a row, each time soon after the store had
answered another request, is given up: it may be too large for the network or for the server."""

_PAUSE = 10.0
"""Seconds until the next request about output after one has failed."""

INTERVAL = 3.0
"""Seconds between two questions to the store, whose output somebody reads. No question is asked
about a task that has run for a shorter time: most tasks are short."""

_ASK_AGAIN = 60.0
"""Seconds until a store that keeps no output is asked again whether it does."""


class _Version(NamedTuple):
    """Tells whether something was printed since."""

    length: int
    dropped: int | None
    hash: int


class LiveOutputWriter:
    """Asks the store every few seconds which running tasks somebody reads, and writes their output.

    While no task runs whose output is kept, it sends nothing. No failure of its requests has an
    effect on leases or tasks.
    """

    def __init__(
        self, context: Context, store: KeepsOutput, gateway: StoreGateway, tasks: TaskTable
    ) -> None:
        self._store = store
        self._gateway = gateway
        self._tasks = tasks
        self._recorder = context.recorder
        self._clock = context.clock
        self._next = 0.0
        # The attempts that are read; for each, what was written last.
        self._read: dict[RunningAttempt, _Version | None] = {}

    @property
    def wakes(self) -> float:
        """When to call `work` again, seconds of the monotonic clock; inf if no task is kept."""
        return max(self._next, min((each.started for each in self._kept()), default=inf) + INTERVAL)

    def work(self) -> None:
        """Send the requests that are due. The collector's answers are written when they arrive."""
        now = self._clock.monotonic()
        try:
            if now >= self.wakes:
                self._next = now + INTERVAL
                self._ask(now)
            self._write()
        except PschedError as error:
            self._next = now + _PAUSE
            self._read.clear()
            _log.info("output of running tasks is not written for now: %s", error)

    def _kept(self) -> list[RunningTask]:
        """The running tasks whose output is kept."""
        return [task for task in self._tasks.running.values() if task.is_kept and task.is_printing]

    def _ask(self, now: float) -> None:
        """Find out which tasks are read, and have the collector asked for their output."""
        tasks = {
            task.running_attempt: task for task in self._kept() if now >= task.started + INTERVAL
        }
        when = self._recorder.clock.milliseconds()
        read = self._gateway.request_aside(partial(self._store.asked_output, [*tasks], when))
        # The first answer is written even if nothing was printed, so that the reader knows it.
        self._read = {attempt: self._read.get(attempt) for attempt in tasks if attempt in read}
        for attempt in self._read:
            self._tasks.peek(tasks[attempt])

    def _write(self) -> None:
        """Write the output that has arrived from the collector, if it is new."""
        batch, size = dict[RunningAttempt, OutputRecord](), 0
        for task, output in self._tasks.peeked():
            attempt, version = task.running_attempt, _version(output)
            # What nobody reads any more counts as written.
            if not task.is_printing or self._read.get(attempt, version) == version:
                continue
            if batch and size + len(output.tail) > _BATCH_BYTES:
                self._send(batch)
                batch, size = {}, 0
            batch[attempt], size = self._record(attempt, output), size + len(output.tail)
            self._read[attempt] = version
        self._send(batch)

    def _send(self, batch: dict[RunningAttempt, OutputRecord]) -> None:
        if batch:
            records = [*batch.values()]
            self._gateway.request_aside(partial(self._store.write_live_output, records))

    def _record(self, attempt: RunningAttempt, output: CapturedOutput) -> OutputRecord:
        return OutputRecord(
            key=attempt.key,
            scheduled_time=attempt.scheduled_time,
            owner=attempt.owner,
            attempt=attempt.attempt,
            ended=self._recorder.clock.milliseconds(),
            output=output.tail,
            dropped=output.dropped,
            is_live=True,
        )


class OutputKeeper:
    """Keeps the output of attempts. No failure of its requests has an effect on leases or tasks.

    Attributes:
        lost: of how many attempts the output could not be written so far, although it is kept.
    """

    def __init__(self, context: Context, gateway: StoreGateway, tasks: TaskTable) -> None:
        self.lost = 0
        self._store = context.store.output
        self._live = None
        if self._store is not None:
            self._live = LiveOutputWriter(context, self._store, gateway, tasks)
        self._gateway = gateway
        self._settings = context.settings
        self._recorder = context.recorder
        self._clock = context.clock
        self._lost = FaultLog("the output of tasks is lost", _log, self._clock)
        self._number = context.place.number
        self._begun = False
        self._kept = False
        self._find_out_at = 0.0
        self._waiting: deque[OutputRecord] = deque()
        self._size = 0
        self._most = _BATCH
        self._failures = 0
        self._not_before = self._next_write = 0.0
        self._deletions = Deletions(context)

    @property
    def wakes(self) -> float:
        """When to call `work` again, seconds of the monotonic clock; inf if no call is needed."""
        live = self._live.wakes if self._live is not None and self._kept else inf
        return min(max(self._not_before, self._write_at), live)

    @property
    def due(self) -> float:
        """When to call `work` if the worker is awake, seconds of the monotonic clock."""
        due = self._deletions.due if self._kept else self._find_out_at
        return min(max(self._not_before, due), self.wakes)

    @property
    def _write_at(self) -> float:
        """When to write records, seconds of the monotonic clock; inf if none waits."""
        if not self._waiting:
            return inf
        is_full = len(self._waiting) >= self._most or self._size >= _BATCH_BYTES
        return 0.0 if is_full else self._next_write

    def add(self, task: RunningTask) -> None:
        """Keep the output of a task whose lease has ended, if it has printed something."""
        output = task.output
        if self._store is None or (not output.tail and output.dropped == 0) or not task.is_kept:
            return
        if self._begun and not self._kept:
            return
        record = OutputRecord(
            key=task.row.key,
            scheduled_time=task.occurrence.scheduled_time,
            owner=task.row.owner or "",
            attempt=task.row.attempt,
            ended=task.ended_at,
            output=output.tail,
            dropped=output.dropped,
        )
        if self._size + _size(record) > MOST_WAITING:
            self._lose("too much of it waits to be written")
            record = _note_of_loss(record)
            if self._size + _size(record) > MOST_WAITING + _MOST_NOTES:
                return
        self._size += _size(record)
        self._waiting.append(record)

    def work(self) -> None:
        """Send the requests that are due; call this after a claim was answered."""
        now = self._clock.monotonic()
        if now >= self._not_before:
            try:
                self._work(now)
            except PschedError as error:
                self._not_before = now + _PAUSE
                _log.info("output is not kept for now: %s", error)
        if self._live is not None and self._kept:
            self._live.work()

    def leave(self) -> None:
        """Write the output that waits, as far as time allows; call this when no task is left."""
        give_up_at = self._clock.monotonic() + self._settings.driver_timeout
        self._not_before = 0.0
        while self._waiting and self._clock.monotonic() <= give_up_at:
            before = len(self._waiting)
            self._next_write = 0.0
            self.work()
            if len(self._waiting) == before:
                break
        for _ in self._waiting:
            self._lose("the worker ends, and the store does not take it")

    def _work(self, now: float) -> None:
        if not self._kept and now >= self._find_out_at:
            # The table can be created later, so the store is asked again.
            self._kept = self._find_out()
            self._find_out_at = now + _ASK_AGAIN
            if self._kept:
                self._deletions.put_off()
        if not self._kept or self._store is None:
            return
        self._write(self._store, now)
        if now >= self._deletions.due:
            self._trim(self._store)

    def _find_out(self) -> bool:
        """Whether the store keeps output; the first time, warn if it does not."""
        problem: str | None = "this kind of store cannot keep it"
        if self._store is not None:
            problem = self._gateway.request_aside(self._store.problem)
        first, self._begun = not self._begun, True
        # One worker of a generation warns, because all of them would say the same.
        wanted = self._number == 0 and self._settings.output in KEPT
        if problem is not None and first and wanted:
            text = "the output of tasks is not kept: %s; to keep none, set output to service"
            _log.warning(text, problem)
        if problem is not None:
            self._forget(len(self._waiting))
        return problem is None

    def _write(self, store: KeepsOutput, now: float) -> None:
        """Write some of the output that waits.

        The rest is written later, because the worker claims nothing meanwhile.
        """
        if now < self._write_at:
            return
        batch = self._batch()
        try:
            self._gateway.request_aside(partial(store.write_output, batch))
        except SchemaError:
            # Somebody has dropped the table. The store is asked again after the pause.
            self._kept, self._find_out_at = False, now
            raise
        except PschedError as error:
            self._failed(len(batch), error)
            raise
        self._next_write = now + _GATHER
        self._forget(len(batch))
        self._lost.passed()
        self._failures = 0
        self._most = min(_BATCH, 2 * self._most)

    def _batch(self) -> list[OutputRecord]:
        """The records that the next request writes."""
        batch = list[OutputRecord]()
        size = 0
        for record in self._waiting:
            size += _size(record)
            if batch and (len(batch) == self._most or size > _BATCH_BYTES):
                break
            batch.append(record)
        return batch

    def _failed(self, count: int, error: PschedError) -> None:
        """Note that records were not written. Each is tried by itself now; it may be given up."""
        self._most = 1
        if count > 1:
            return
        self._failures += 1
        if not isinstance(error, TransientStoreError) or self._failures >= _MOST_FAILURES:
            self._failures = 0
            record = self._waiting[0]
            self._forget(1)
            if not _is_note_of_loss(record):
                self._lose(error)
                self._waiting.appendleft(_note_of_loss(record))
                self._size += _RECORD

    def _lose(self, error: PschedError | str) -> None:
        """Note that the output of an attempt is lost."""
        self.lost += 1
        self._lost.failed(error)

    def _forget(self, count: int) -> None:
        for _ in range(count):
            self._size -= _size(self._waiting.popleft())

    def _trim(self, store: KeepsOutput) -> None:
        keep, budget = self._settings.output_keep, self._settings.output_budget
        before = self._recorder.clock.milliseconds() - keep * 1000 if keep else 0
        trim = partial(store.trim_output, before=before, budget=budget or 2**62, limit=_TRIM_LIMIT)
        self._deletions.delete(lambda: self._gateway.request_aside(trim), _TRIM_LIMIT)


def _note_of_loss(record: OutputRecord) -> OutputRecord:
    """What is written in place of output that cannot be written, so that nobody misses the loss."""
    return replace(record, output=b"", dropped=None)


def _is_note_of_loss(record: OutputRecord) -> bool:
    return not record.output and record.dropped is None


def _size(record: OutputRecord) -> int:
    """About the bytes that a record takes in memory."""
    return len(record.output) + _RECORD


def _version(output: CapturedOutput) -> _Version:
    return _Version(len(output.tail), output.dropped, hash(output.tail))

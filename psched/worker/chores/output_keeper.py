"""Writes what attempts have printed to the store, and deletes old output."""

import logging
import random
from collections import deque
from dataclasses import replace
from functools import partial
from math import inf

from psched.base.clock import Clock
from psched.base.errors import PschedError, SchemaError, TransientStoreError
from psched.base.fault_log import FaultLog
from psched.config import Config
from psched.core.history.recording import Recorder
from psched.core.output.protocol import KeepsOutput
from psched.core.output.records import KEPT, OutputRecord
from psched.core.store_protocol import Store
from psched.worker.chores.live_output import LiveOutputWriter
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

_TRIM_INTERVAL = 60.0
"""The longest pause, in seconds, between two deletions by one worker. A random part of up to a half
is subtracted."""

_TRIM_LIMIT = 300
"""The most records that one request deletes."""

_NEXT_TRIM = 1.0
"""The longest pause, in seconds, after a request that has deleted as many records as it can."""

_MOST_FAILURES = 5
"""A record that could not be written so many times in a row, each time soon after the store had
answered another request, is given up: it may be too large for the network or for the server."""

_PAUSE = 10.0
"""Seconds until the next request about output after one has failed."""

_ASK_AGAIN = 60.0
"""Seconds until a store that keeps no output is asked again whether it does."""


class OutputKeeper:
    """Keeps the output of attempts. No failure of its requests has an effect on leases or tasks.

    Args:
        store: where the output is kept.
        gateway: sends the requests.
        settings: contain how much output is kept, and for how long.
        tasks: the running tasks, whose output can be read meanwhile.
        number: the number of this worker.
        recorder: contains the store's clock.
        clock: measures when a request is due.
        rng: decides at random when to trim.

    Attributes:
        lost: of how many attempts the output could not be written so far, although it is kept.
    """

    def __init__(
        self,
        store: Store,
        gateway: StoreGateway,
        settings: Config,
        *,
        tasks: TaskTable,
        number: int,
        recorder: Recorder,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.lost = 0
        self._store = store if isinstance(store, KeepsOutput) else None
        self._live = None
        if self._store is not None:
            self._live = LiveOutputWriter(
                self._store, gateway, tasks, recorder=recorder, clock=clock
            )
        self._gateway = gateway
        self._settings = settings
        self._recorder = recorder
        self._clock = clock
        self._rng = rng
        self._lost = FaultLog("the output of tasks is lost", _log, clock)
        self._number = number
        self._begun = False
        self._kept = False
        self._find_out_at = 0.0
        self._waiting: deque[OutputRecord] = deque()
        self._size = 0
        self._most = _BATCH
        self._failures = 0
        self._not_before = self._next_write = 0.0
        self._next_trim = 0.0

    @property
    def wakes(self) -> float:
        """When to call `work` again, seconds of the monotonic clock; inf if no call is needed."""
        live = self._live.wakes if self._live is not None and self._kept else inf
        return min(max(self._not_before, self._write_at), live)

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
                # The workers of a generation, which start together, do not trim together.
                self._next_trim = now + _TRIM_INTERVAL * self._rng.uniform(0, 1)
        if not self._kept or self._store is None:
            return
        self._write(self._store, now)
        if now >= self._next_trim:
            self._trim(self._store, now)

    def _find_out(self) -> bool:
        """Whether the store keeps output; the first time, warn if it does not."""
        problem: str | None = "this kind of store cannot keep it"
        if self._store is not None:
            problem = self._gateway.request_aside(self._store.output_problem)
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

    def _trim(self, store: KeepsOutput, now: float) -> None:
        keep, budget = self._settings.output_keep, self._settings.output_budget
        before = self._recorder.clock.milliseconds() - keep * 1000 if keep else 0
        # If this fails, it is tried again later.
        self._next_trim = now + _TRIM_INTERVAL * self._rng.uniform(0.5, 1)
        trim = partial(store.trim_output, before=before, budget=budget or 2**62, limit=_TRIM_LIMIT)
        if self._gateway.request_aside(trim) >= _TRIM_LIMIT:
            self._next_trim = now + _NEXT_TRIM * self._rng.uniform(0.5, 1)


def _note_of_loss(record: OutputRecord) -> OutputRecord:
    """What is written in place of output that cannot be written, so that nobody misses the loss."""
    return replace(record, output=b"", dropped=None)


def _is_note_of_loss(record: OutputRecord) -> bool:
    return not record.output and record.dropped is None


def _size(record: OutputRecord) -> int:
    """About the bytes that a record takes in memory."""
    return len(record.output) + _RECORD

"""Writes what tasks print while they run, as long as somebody on another host reads it."""

import logging
from functools import partial
from math import inf
from typing import NamedTuple

from psched.base.clock import Clock
from psched.base.errors import PschedError
from psched.core.history.recording import Recorder
from psched.core.output.protocol import KeepsOutput
from psched.core.output.records import OutputRecord, RunningAttempt
from psched.output.captured import CapturedOutput
from psched.worker.running_task import RunningTask
from psched.worker.store_gateway import StoreGateway
from psched.worker.task_table import TaskTable

_log = logging.getLogger("psched.worker")

INTERVAL = 3.0
"""Seconds between two questions to the store, whose output somebody reads. No question is asked
about a task that has run for a shorter time: most tasks are short."""

_PAUSE = 10.0
"""Seconds until the next question after a request has failed."""

_BATCH_BYTES = 2**20
"""About the most bytes that one request writes."""


class _Version(NamedTuple):
    """Tells whether something was printed since."""

    length: int
    dropped: int | None
    hash: int


class LiveOutputWriter:
    """Asks the store every few seconds which running tasks somebody reads, and writes their output.

    While no task runs whose output is kept, it sends nothing. No failure of its requests has an
    effect on leases or tasks.

    Args:
        store: where the output is kept.
        gateway: sends the requests.
        tasks: the running tasks.
        recorder: contains the store's clock.
        clock: measures when a request is due.
    """

    def __init__(
        self,
        store: KeepsOutput,
        gateway: StoreGateway,
        tasks: TaskTable,
        *,
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        self._store = store
        self._gateway = gateway
        self._tasks = tasks
        self._recorder = recorder
        self._clock = clock
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
        return [task for task in self._tasks if task.is_kept and task.is_printing]

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


def _version(output: CapturedOutput) -> _Version:
    return _Version(len(output.tail), output.dropped, hash(output.tail))

"""Writes what attempts have printed to the store, and deletes old output."""

import logging
import random
from collections import deque
from functools import partial
from math import inf

from psched.base.clock import Clock
from psched.base.errors import PschedError, TransientStoreError
from psched.config import Config
from psched.core.history.recording import Recorder
from psched.core.output.protocol import KeepsOutput
from psched.core.output.records import OutputRecord
from psched.core.store_protocol import Store
from psched.worker.running_task import RunningTask
from psched.worker.store_gateway import StoreGateway

_log = logging.getLogger("psched.worker")

MOST_WAITING = 2**23
"""The most bytes of output that wait to be written. Further output is dropped, and counted."""

_BATCH = 20
"""The most records that one request writes."""

_BATCH_BYTES = 2**20
"""About the most bytes that one request writes."""

_TRIM_INTERVAL = 60.0
"""The longest pause, in seconds, between two deletions by one worker. A random part of up to a half
is subtracted."""

_TRIM_LIMIT = 100
"""The most records that one request deletes."""

_NEXT_TRIM = 1.0
"""The longest pause, in seconds, after a request that has deleted as many records as it can."""

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
        recorder: contains the store's clock.
        clock: measures when a request is due.
        rng: decides at random when to trim.

    Attributes:
        lost: of how many attempts the output could not be written so far.
    """

    def __init__(
        self,
        store: Store,
        gateway: StoreGateway,
        settings: Config,
        *,
        recorder: Recorder,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.lost = 0
        self._store = store if isinstance(store, KeepsOutput) else None
        self._gateway = gateway
        self._settings = settings
        self._recorder = recorder
        self._clock = clock
        self._rng = rng
        self._kept = False
        self._find_out_at = 0.0
        self._waiting: deque[OutputRecord] = deque()
        self._size = 0
        self._not_before = 0.0
        self._next_trim = clock.monotonic() + _TRIM_INTERVAL * rng.uniform(0, 1)

    @property
    def wakes(self) -> float:
        """When to call `work` again, seconds of the monotonic clock; inf if no call is needed."""
        return self._not_before if self._waiting else inf

    def add(self, task: RunningTask) -> None:
        """Keep the output of a task whose lease has ended, if it has printed something."""
        output = task.output
        if self._store is None or (not output.tail and output.dropped == 0) or not task.is_kept:
            return
        if self._size + len(output.tail) > MOST_WAITING:
            self.lost += 1
            return
        self._size += len(output.tail)
        self._waiting.append(
            OutputRecord(
                key=task.row.key,
                scheduled_time=task.occurrence.scheduled_time,
                owner=task.row.owner or "",
                attempt=task.row.attempt,
                ended=task.ended_at,
                output=output.tail,
                dropped=output.dropped,
            )
        )

    def work(self) -> None:
        """Send the requests that are due; call this after a claim was answered."""
        now = self._clock.monotonic()
        if self._store is None or now < self._not_before:
            return
        if not self._waiting and (not self._kept or now < self._next_trim):
            return
        try:
            self._work(self._store, now)
        except PschedError as error:
            self._not_before = now + _PAUSE
            _log.info("output is not kept for now: %s", error)

    def leave(self) -> None:
        """Write the output that waits; call this when no task is left."""
        give_up_at = self._clock.monotonic() + self._settings.driver_timeout
        while self._waiting and self._clock.monotonic() <= give_up_at:
            before = len(self._waiting)
            self.work()
            if len(self._waiting) == before:
                return

    def _work(self, store: KeepsOutput, now: float) -> None:
        if not self._kept and now >= self._find_out_at:
            # The table can be created later, so the store is asked again.
            self._find_out_at = now + _ASK_AGAIN
            self._kept = self._gateway.request_aside(store.output_problem) is None
        if not self._kept:
            self.lost += len(self._waiting)
            self._forget(len(self._waiting))
            return
        self._write(store)
        if now >= self._next_trim:
            self._trim(store, now)

    def _write(self, store: KeepsOutput) -> None:
        """Write some of the output that waits."""
        batch = list[OutputRecord]()
        size = 0
        for record in self._waiting:
            if batch and (len(batch) == _BATCH or size + len(record.output) > _BATCH_BYTES):
                break
            batch.append(record)
            size += len(record.output)
        if not batch:
            return
        try:
            self._gateway.request_aside(partial(store.write_output, batch))
        except TransientStoreError:
            raise  # it is written later
        except PschedError:
            self.lost += len(batch)
            self._forget(len(batch))
            raise
        self._forget(len(batch))

    def _forget(self, count: int) -> None:
        for _ in range(count):
            self._size -= len(self._waiting.popleft().output)

    def _trim(self, store: KeepsOutput, now: float) -> None:
        keep, budget = self._settings.output_keep, self._settings.output_budget
        before = self._recorder.clock.milliseconds() - keep * 1000 if keep else 0
        trim = partial(store.trim_output, before=before, budget=budget or 2**62, limit=_TRIM_LIMIT)
        many = self._gateway.request_aside(trim) >= _TRIM_LIMIT
        pause = _NEXT_TRIM if many else _TRIM_INTERVAL
        self._next_trim = now + pause * self._rng.uniform(0.5, 1)

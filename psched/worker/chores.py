"""What a worker does beside its tasks, now and then: counts the due rows that wait, and purges."""

import logging
from functools import partial
from math import inf

from psched.core.store_protocol import Backlog, CountsBacklog
from psched.master.reports.health import MOST_DUE
from psched.process.message_shapes import LONGEST_TIME
from psched.worker.context import Context
from psched.worker.store_gateway import StoreGateway

_log = logging.getLogger("psched.worker")

_PATIENCE = 5.0
"""Seconds without a free slot, besides the setting ``poll_interval``, after which due rows are
counted. Rows that are less late than this are not counted, because a worker with a free slot might
still claim them at its next poll."""

_COUNT_INTERVAL = 5.0
"""Seconds between two counts of due rows, while no slot is free."""

_BATCH = 500
"""The maximum number of rows that one purge deletes. It is small, so that a purge holds few locks,
and only for a short time."""

_PURGE_INTERVAL = 60.0
"""The longest pause, in seconds, between two purges by one worker. A random part of up to a half is
subtracted."""

_NEXT_BATCH = 1.0
"""The longest pause, in seconds, after a purge that has deleted a full batch. A random part of up
to a half is subtracted."""


class BacklogWatch:
    """Counts the due rows that wait because this worker, and every other, has no free slot.

    Nothing is counted while the worker has a free slot, or if the store cannot count due rows (see
    `CountsBacklog`).

    Attributes:
        wakes: when to call `count` again, seconds of the monotonic clock; inf if no call is needed.
        backlog: the due rows that waited at the last count; none while a slot is free.
        waited: the seconds for which the oldest of them had waited for a slot of this worker: not
            longer than the row was late, and not longer than the worker had had no free slot. A row
            can seem very late although it was added just now.
    """

    def __init__(self, context: Context, gateway: StoreGateway) -> None:
        self._store = context.store if isinstance(context.store, CountsBacklog) else None
        self._gateway = gateway
        self._clock = context.clock
        self._patience = _PATIENCE + context.settings.poll_interval
        self.wakes = inf
        self._full_since = inf
        self.backlog = Backlog()
        self.waited = 0.0

    def count(self, *, full: bool) -> None:
        """Count the due rows if no slot has been free for some seconds."""
        now = self._clock.monotonic()
        if not full or self._store is None:
            self.wakes, self.backlog, self.waited = inf, Backlog(), 0.0
        elif self.wakes == inf:
            self._full_since, self.wakes = now, now + self._patience
        elif now >= self.wakes:
            # The next time is set before the request, so that a request that fails is not repeated
            # at every tick.
            self.wakes = now + _COUNT_INTERVAL
            found = self._gateway.request(partial(self._store.backlog, MOST_DUE))
            # Once rows have waited for long, all rows are reported until none is left, so that an
            # episode does not end and begin again while a busy worker is hardly in time.
            if self.backlog.due or found.late >= self._patience:
                # Any client can write any time into a row, but the master accepts no larger time.
                late = min(max(found.late, 0.0), LONGEST_TIME)
                self.backlog = Backlog(due=min(found.due, MOST_DUE), late=late)
                self.waited = min(late, now - self._full_since)


class Janitor:
    """Purges tasks that have ended, once their ``retention_time`` has passed.

    Attributes:
        due: when to call `purge`, seconds of the monotonic clock. A worker that sleeps then does
            not wake up for it, but purges at its next tick.
    """

    def __init__(self, context: Context, gateway: StoreGateway) -> None:
        self._store = context.store
        self._gateway = gateway
        self._clock = context.clock
        self._rng = context.rng
        self.due = self._clock.monotonic() + _PURGE_INTERVAL * self._rng.uniform(0, 1)

    def purge(self) -> None:
        """Purge if a purge is due."""
        if self._clock.monotonic() < self.due:
            return
        # The next time is set before the request, so that a purge that fails is not repeated at
        # every tick.
        self.due = self._in(_PURGE_INTERVAL)
        purged = self._gateway.request(lambda: self._store.purge(_BATCH))
        if purged:
            _log.debug("purged %d tasks that had ended", purged)
        if purged >= _BATCH:
            self.due = self._in(_NEXT_BATCH)

    def _in(self, pause: float) -> float:
        return self._clock.monotonic() + pause * self._rng.uniform(0.5, 1)

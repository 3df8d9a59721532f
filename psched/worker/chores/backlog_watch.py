"""Counts the due rows that wait for a slot."""

from functools import partial
from math import inf

from psched.base.clock import Clock
from psched.config import Config
from psched.core.store_protocol import Backlog, CountsBacklog, Store
from psched.master.reports.load import MOST_DUE
from psched.process.message_shapes import LONGEST_TIME
from psched.worker.store_gateway import StoreGateway

_PATIENCE = 5.0
"""Seconds without a free slot, besides the setting ``poll_interval``, after which due rows are
counted. Rows that are less late than this are not counted, because a worker with a free slot might
still claim them at its next poll."""

_COUNT_INTERVAL = 5.0
"""Seconds between two counts of due rows, while no slot is free."""


class BacklogWatch:
    """Counts the due rows that wait because this worker, and every other, has no free slot.

    Nothing is counted while the worker has a free slot, or if the store cannot count due rows (see
    `CountsBacklog`).

    Args:
        store: counts the rows.
        gateway: sends the requests.
        settings: contain the time between two polls.
        clock: measures for how long no slot has been free.

    Attributes:
        backlog: the due rows that waited at the last count; none while a slot is free.
        waited: the seconds for which the oldest of them had waited for a slot of this worker: not
            longer than the row was late, and not longer than the worker had had no free slot. A row
            can seem very late although it was added just now.
    """

    def __init__(
        self, store: Store, gateway: StoreGateway, settings: Config, *, clock: Clock
    ) -> None:
        self._store = store if isinstance(store, CountsBacklog) else None
        self._gateway = gateway
        self._clock = clock
        self._patience = _PATIENCE + settings.poll_interval
        self._next = inf
        self._full_since = inf
        self.backlog = Backlog()
        self.waited = 0.0

    @property
    def wakes(self) -> float:
        """When to call `count` again, seconds of the monotonic clock; inf if no call is needed."""
        return self._next

    def count(self, *, full: bool) -> None:
        """Count the due rows if no slot has been free for some seconds."""
        now = self._clock.monotonic()
        if not full or self._store is None:
            self._next, self.backlog, self.waited = inf, Backlog(), 0.0
        elif self._next == inf:
            self._full_since, self._next = now, now + self._patience
        elif now >= self._next:
            # The next time is set before the request, so that a request that fails is not repeated
            # at every tick.
            self._next = now + _COUNT_INTERVAL
            found = self._gateway.request(partial(self._store.backlog, MOST_DUE))
            # Once rows have waited for long, all rows are reported until none is left, so that an
            # episode does not end and begin again while a busy worker is hardly in time.
            if self.backlog.due or found.late >= self._patience:
                # Any client can write any time into a row, but the master accepts no larger time.
                late = min(max(found.late, 0.0), LONGEST_TIME)
                self.backlog = Backlog(due=min(found.due, MOST_DUE), late=late)
                self.waited = min(late, now - self._full_since)

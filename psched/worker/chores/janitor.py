"""Purges tasks that have ended."""

import logging
import random

from psched.base.clock import Clock
from psched.core.store_protocol import Store
from psched.worker.store_gateway import StoreGateway

_log = logging.getLogger("psched.worker")

_BATCH = 500
"""The maximum number of rows that one purge deletes. It is small, so that a purge holds few locks,
and only for a short time."""

_INTERVAL = 60.0
"""The longest pause, in seconds, between two purges by one worker. A random part of up to a half is
subtracted."""

_NEXT_BATCH = 1.0
"""The longest pause, in seconds, after a purge that has deleted a full batch. A random part of up
to a half is subtracted."""


class Janitor:
    """Purges tasks that have ended, once their ``retention_time`` has passed.

    Args:
        store: where the tasks are.
        gateway: sends the requests.
        clock: measures when the next purge is due.
        rng: the source of the random pauses.
    """

    def __init__(
        self, store: Store, gateway: StoreGateway, *, clock: Clock, rng: random.Random
    ) -> None:
        self._store = store
        self._gateway = gateway
        self._clock = clock
        self._rng = rng
        self._next = clock.monotonic() + _INTERVAL * rng.uniform(0, 1)

    def purge(self) -> None:
        """Purge if a purge is due.

        A worker that sleeps when a purge falls due does not wake up for it, but purges at its next
        tick.
        """
        if self._clock.monotonic() < self._next:
            return
        # The next time is set before the request, so that a purge that fails is not repeated at
        # every tick.
        self._next = self._in(_INTERVAL)
        purged = self._gateway.request(lambda: self._store.purge(_BATCH))
        if purged:
            _log.debug("purged %d tasks that had ended", purged)
        if purged >= _BATCH:
            self._next = self._in(_NEXT_BATCH)

    def _in(self, pause: float) -> float:
        return self._clock.monotonic() + pause * self._rng.uniform(0.5, 1)

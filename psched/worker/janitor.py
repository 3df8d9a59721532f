"""Removing what has ended long ago, a little at a time, beside everything else."""

import logging
import random

from psched.base.clock import Clock
from psched.core.store_protocol import Store
from psched.worker.store_backoff import StoreBackoff

_log = logging.getLogger("psched.worker")

_LOT = 500
"""Rows that are removed at once, at most: few locks, for a short time."""

_INTERVAL = 60.0
"""Seconds between two looks; several workers share the work by chance."""

_WHILE_THERE_ARE_MORE = 1.0
"""Seconds, after a full lot."""


class Janitor:
    """Purges tasks that have ended, when their ``retention_time`` is over.

    Args:
        store: where the schedules are.
        asker: how requests are sent.
        clock: this host's clocks.
        rng: draws the jitter.

    Attributes:
        next: when to sweep again, seconds of the monotonic clock.
    """

    def __init__(
        self, store: Store, asker: StoreBackoff, *, clock: Clock, rng: random.Random
    ) -> None:
        self._store = store
        self._asker = asker
        self._clock = clock
        self._rng = rng
        self.next = clock.monotonic() + _INTERVAL * rng.uniform(0, 1)

    def sweep(self) -> None:
        """Purge, if it is time to; wakes nobody for it.

        Raises:
            TransientStoreError: the store did not answer.
        """
        if self._clock.monotonic() < self.next:
            return
        # What cannot be removed is not asked for at every turn: there is other work.
        self.next = self._later(_INTERVAL)
        purged = self._asker.ask(lambda: self._store.purge(_LOT))
        if purged:
            _log.debug("purged %d tasks that had ended", purged)
        if purged >= _LOT:
            self.next = self._later(_WHILE_THERE_ARE_MORE)

    def _later(self, pause: float) -> float:
        return self._clock.monotonic() + pause * self._rng.uniform(0.5, 1)

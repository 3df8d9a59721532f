"""What the store says about due rows: asked for only while somebody wants to know it."""

import threading
from collections.abc import Callable
from typing import NamedTuple

from psched.base.clock import Clock
from psched.base.errors import StoreError
from psched.base.fault_log import FaultLog
from psched.core.operations.overview import DUE, GivesOverview
from psched.core.store_protocol import Store

_FRESH = 5.0
"""Seconds for which an answer, or the lack of one, is used again, however many ask."""


class Backlog(NamedTuple):
    """The rows that are due and not leased.

    Attributes:
        due: how many they are; `psched.core.operations.overview.MOST_COUNTED` means so many or
            more.
        late: by how many seconds the oldest one is late; 0 if there is none.
    """

    due: int
    late: float


class StoreView:
    """Reads the backlog; several threads can ask, and one of them sends the request.

    Args:
        make_store: creates the store; called when somebody asks for the first time.
        clock: measures how old an answer is.
        faults: logs when the store does not answer.
    """

    def __init__(self, make_store: Callable[[], Store], *, clock: Clock, faults: FaultLog) -> None:
        self._make_store = make_store
        self._clock = clock
        self._faults = faults
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._asked_at = float("-inf")
        self._backlog: Backlog | None = None

    def backlog(self) -> Backlog | None:
        """The due rows; None if the store does not answer, or has no cheap answer."""
        with self._lock:
            if self._clock.monotonic() >= self._asked_at + _FRESH:
                self._backlog = self._ask()
                self._asked_at = self._clock.monotonic()
            return self._backlog

    def close(self) -> None:
        """Close the connection, unless a request is being sent."""
        if self._lock.acquire(blocking=False):
            try:
                if self._store is not None:
                    self._store.disconnect()
            finally:
                self._lock.release()

    def _ask(self) -> Backlog | None:
        try:
            if self._store is None:
                self._store = self._make_store()
            if not isinstance(self._store, GivesOverview):
                return None
            seen = self._store.overview(1)
        except StoreError as error:
            self._faults.failed(error)
            return None
        self._faults.passed()
        since = seen.late[0].next_run_time if seen.late else None
        return Backlog(seen.counts[DUE], max(0.0, seen.now - since) if since else 0.0)

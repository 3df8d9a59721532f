"""What the store says about rows and runs: asked for only while somebody wants to know it."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from psched.base.clock import Clock
from psched.base.errors import StoreError
from psched.base.fault_log import FaultLog
from psched.core.history.protocol import RunSelection
from psched.core.history.records import Fate
from psched.core.operations.overview import DUE
from psched.core.store_protocol import Store

_FRESH = 5.0  # seconds for which an answer, or the lack of one, is used again, however many ask

_FRESH_SUCCESSES = 15.0
"""Seconds for which the last successes are used again. They cost a request for each key."""

_LONGEST = 5.0  # seconds after which no more requests for last successes are sent


class Backlog(NamedTuple):
    """The rows that are due and not leased."""

    # How many they are; `psched.core.operations.overview.MOST_COUNTED` means so many or more.
    due: int
    late: float  # by how many seconds the oldest one is late; 0 if there is none


@dataclass(frozen=True, slots=True)
class Seen:
    """What the store has said."""

    backlog: Backlog | None = None  # the due rows; None if they are not known
    # When keys have last succeeded, in Unix seconds; without those for which it is not known.
    successes: Mapping[str, float] = field(default_factory=dict)


class StoreView:
    """Reads the store; several threads can ask, and one of them sends the requests."""

    def __init__(
        self,
        # Creates the store; called when somebody asks for the first time.
        make_store: Callable[[], Store],
        keys: Sequence[str],  # those whose last success is wanted
        *,
        clock: Clock,
        faults: FaultLog,
    ) -> None:
        self._make_store = make_store
        self._keys = keys
        self._clock = clock
        self._faults = faults
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._ask_at = self._ask_successes_at = float("-inf")
        self._seen = Seen()

    def read(self) -> Seen:
        """What the store says now, or has said a few seconds ago."""
        with self._lock:
            if self._clock.monotonic() >= self._ask_at:
                try:
                    self._seen = self._ask()
                except StoreError as error:
                    self._faults.failed(error)
                    self._seen = Seen()
                else:
                    self._faults.passed()
                self._ask_at = self._clock.monotonic() + _FRESH
            return self._seen

    def _ask(self) -> Seen:
        """Send the requests that are due."""
        if self._store is None:
            self._store = self._make_store()
        return Seen(_backlog(self._store), self._successes(self._store))

    def _successes(self, store: Store) -> Mapping[str, float]:
        if not self._keys or store.history is None:
            return {}
        if self._seen.backlog is not None and self._clock.monotonic() < self._ask_successes_at:
            return self._seen.successes
        if store.history.problem() is not None:
            return {}
        found = dict(self._seen.successes)
        until = self._clock.monotonic() + _LONGEST
        for key in self._keys:
            if self._clock.monotonic() > until:
                break  # the store is slow; what is not asked for stays as it was
            wanted = RunSelection(key=key, fates=frozenset({Fate.FINISHED}), limit=1)
            for record in store.history.runs(wanted):
                found[key] = record.ended / 1000
        self._ask_successes_at = self._clock.monotonic() + _FRESH_SUCCESSES
        return found


def _backlog(store: Store) -> Backlog | None:
    if store.light_reads is None:
        return None
    seen = store.light_reads.overview(1)
    since = seen.late[0].next_run_time if seen.late else None
    return Backlog(seen.counts[DUE], max(0.0, seen.now - since) if since else 0.0)

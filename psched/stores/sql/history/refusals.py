"""Decides what an error means that kept records of the run history from being written."""

import logging

from psched.base.clock import Clock
from psched.base.errors import (
    PschedError,
    StoreBusyError,
    StoreSlowError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from psched.base.fault_log import FaultLog
from psched.stores.sql.errors import StoreFullError

_log = logging.getLogger("psched.store")

_AFTER_LOCK = 5.0
"""The seconds for which no records are written after another session's lock held up the worker."""

_AFTER_BREAK = 60.0
"""The same after the database was too slow for them: a new connection takes many answers."""

_MOST_BREAKS = 3
"""After so many connections in a row that broke at the same place, records count as refused."""


class Refusals:
    """Tells records that the database refuses from a database that is unavailable.

    A task's end is worth more than its record. So if the database refuses the records of a
    settlement, the settlement is applied without them. But if the database is unavailable, nothing
    was applied, and the settlement is repeated later with its records.

    Args:
        clock: measures the pause.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._fault = FaultLog("records of the run history wait to be written", _log, clock)
        self._resume_at = clock.monotonic()
        self._breaks = 0

    @property
    def paused(self) -> bool:
        """Whether no records are to be written now, because it took too long a moment ago."""
        return self._clock.monotonic() < self._resume_at

    def written(self) -> None:
        """Note that records were written."""
        self._breaks = 0
        if self._fault.ongoing:
            self._fault.passed()

    def is_refusal(self, error: PschedError, *, committing: bool) -> bool:
        """Whether an error means that the records were refused, so that they are to be left out."""
        refused = not isinstance(error, StoreUnavailableError | UnknownOutcomeError)
        if isinstance(error, StoreFullError):
            refused = True
        elif isinstance(error, StoreSlowError):
            # Settling takes fewer answers without records, so the repeated request leaves them out.
            self._pause(_AFTER_BREAK)
        elif isinstance(error, StoreBusyError) and not committing:
            # Another session holds a lock on the table of the records. Each wait for the lock holds
            # up the worker. (If the commit fails for another session, the cause is a row of a
            # schedule, on another node of a Galera cluster.)
            self._pause(_AFTER_LOCK)
            refused = True
        elif isinstance(error, StoreUnavailableError) and not committing:
            self._breaks += 1
            if self._breaks >= _MOST_BREAKS:
                self._breaks = 0
                self._pause(_AFTER_BREAK)
        if refused or self.paused:
            self._fault.failed(error)
        return refused

    def _pause(self, seconds: float) -> None:
        self._resume_at = self._clock.monotonic() + seconds

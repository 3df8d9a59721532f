"""The work that a worker does in the store after its start, one step per tick."""

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from psched.base.errors import (
    MissingDatabaseError,
    MissingTableError,
    StoreUnavailableError,
    TransientStoreError,
)
from psched.config import Config
from psched.core.history.protocol import KeepsHistory
from psched.core.local_times import renewed_row
from psched.core.store_protocol import Store
from psched.triggers import zone
from psched.worker.store_gateway import StoreGateway

_log = logging.getLogger("psched.worker")

_ROWS = 500
"""The most rows that one step of `renew_times` reads."""


class StartupSteps:
    """Does the steps one by one; starts again with the first step if the store did not answer.

    Args:
        begin: returns a new iterator, each item of which does the next step. The steps must be
            short, and it must do no harm to repeat them. None if there are no steps.
        gateway: calls each step after it has guarded the tasks.

    Attributes:
        pending: whether some steps have not been done yet.
    """

    def __init__(self, begin: Callable[[], Iterator[None]] | None, gateway: StoreGateway) -> None:
        self._begin = begin
        self._gateway = gateway
        self._steps: Iterator[None] | None = None
        self.pending = begin is not None

    def step(self) -> None:
        """Do the next step, if there is one."""
        if self._begin is None or not self.pending:
            return
        steps = self._steps = self._steps or self._begin()
        over = object()
        try:
            if self._gateway.request(lambda: next(steps, over)) is over:
                self.pending = False
        except TransientStoreError:
            self._steps = None
            raise


def create_missing_table(store: Store, file: Path | None) -> Iterator[None]:
    """Create the table in one step if it does not exist, for the setting ``create_table``.

    Several workers and hosts can do this at the same time. A table that exists is not changed, even
    if its schema is older.
    """
    try:
        store.now()  # connects, and thereby checks that the table exists
    except MissingDatabaseError:
        if was_moved_away(file):
            raise
        _create(store)
    except MissingTableError:
        _create(store)
    yield


def renew_times(store: Store, settings: Config) -> Iterator[None]:
    """Move the rows that wait to the times of new zone data; see `psched.core.local_times`.

    All rows are read, in many steps, if a worker with older data has written its record in the time
    for which these records are kept, or if there is no record.
    """
    if not isinstance(store, KeepsHistory) or store.history_problem() is not None:
        return
    workers = store.workers()
    if workers and all((each.zone_data or "") >= zone.VERSION for each in workers):
        return
    yield
    rows = store.rows()
    while batch := [*islice(rows, _ROWS)]:
        for row in batch:
            new = renewed_row(row, settings)
            if new is not None and store.replace(row, new):
                _log.warning("%s: %s", row.key, new.reason)
        yield


def was_moved_away(file: Path | None) -> bool:
    """Whether a missing SQLite file was moved away while it was in use.

    It must not be created again, because SQLite would delete the write-ahead log of the old file.
    """
    return file is not None and file.with_name(f"{file.name}-wal").exists()


def _create(store: Store) -> None:
    try:
        for line in store.init():
            _log.info("%s", line)
    except OSError as error:
        raise StoreUnavailableError(f"the folder of the database cannot be made: {error}") from None

"""What a worker does in the store beside its tasks: first, one step per tick, and now and then."""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path

from psched.base.errors import (
    MissingDatabaseError,
    MissingTableError,
    PschedError,
    StoreUnavailableError,
    TransientStoreError,
)
from psched.base.loader import loading_by
from psched.client.access import Access
from psched.client.auditor import this_process
from psched.client.each_host import keep_own_rows
from psched.config import Config
from psched.core.local_times import renewed_row
from psched.core.store_protocol import Backlog, Store
from psched.master.reports.health import MOST_DUE
from psched.process.link import LONGEST_TIME
from psched.triggers import zone
from psched.triggers.custom import refuse_to_ask
from psched.worker.context import Context
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
        store.look([" "])  # connects, and thereby checks that the table exists
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
    if store.history is None or store.history.problem() is not None:
        return
    workers = store.history.workers()
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


_PATIENCE = 5.0
"""Seconds without a free slot, besides the setting ``poll_interval``, after which due rows are
counted. Rows that are less late than this are not counted, because a worker with a free slot might
still claim them at its next poll."""

_COUNT_INTERVAL = 5.0
"""Seconds between two counts of due rows, while no slot is free."""

_BATCH = 500
"""The maximum number of rows that one purge deletes. It is small, so that a purge holds few locks,
and only for a short time."""

_DELETE_INTERVAL = 60.0
"""The longest pause, in seconds, between two deletions by one worker. A random part of up to a half
is subtracted."""

_NEXT_BATCH = 1.0
"""The longest pause, in seconds, after the deletion of a full batch. A random part of up to a half
is subtracted."""


class BacklogWatch:
    """Counts the due rows that wait because this worker, and every other, has no free slot.

    Nothing is counted while the worker has a free slot.

    Attributes:
        patience: for so many seconds, no slot must have been free before due rows are counted.
        next: when to count again, seconds of the monotonic clock.
        backlog: the due rows that waited at the last count; none while a slot is free.
        waited: the seconds for which the oldest of them had waited for a slot of this worker: not
            longer than the row was late, and not longer than the worker had had no free slot. A row
            can seem very late although it was added just now.
    """

    def __init__(self, context: Context, gateway: StoreGateway) -> None:
        self._store = context.store
        self._gateway = gateway
        self._clock = context.clock
        self.patience = _PATIENCE + context.settings.poll_interval
        self.next = 0.0
        self.backlog = Backlog()
        self.waited = 0.0

    def count(self, full_since: float) -> None:
        """Count the due rows; no slot has been free since that time of the monotonic clock."""
        # The next time is set before the request, so that a request that fails is not repeated at
        # every tick.
        now = self._clock.monotonic()
        self.next = now + _COUNT_INTERVAL
        found = self._gateway.request(partial(self._store.backlog, MOST_DUE))
        # Once rows have waited for long, all rows are reported until none is left, so that an
        # episode does not end and begin again while a busy worker is hardly in time.
        if self.backlog.due or found.late >= self.patience:
            # Any client can write any time into a row, but the master accepts no larger time.
            late = min(max(found.late, 0.0), LONGEST_TIME)
            self.backlog = Backlog(due=min(found.due, MOST_DUE), late=late)
            self.waited = min(late, now - full_since)

    def over(self) -> None:
        """Note that a slot is free."""
        self.next, self.backlog, self.waited = 0.0, Backlog(), 0.0


class Deletions:
    """Deletes what is old of one kind now and then, a batch at a time.

    Attributes:
        due: when to call `delete`, seconds of the monotonic clock. A worker that sleeps then does
            not wake up for it, but deletes at its next tick.
    """

    def __init__(self, context: Context) -> None:
        self._clock = context.clock
        self._rng = context.rng
        self.due = 0.0

    def put_off(self) -> None:
        """Begin later, because the workers of a generation, which start together, would at once."""
        self.due = self._clock.monotonic() + _DELETE_INTERVAL * self._rng.uniform(0, 1)

    def delete(self, request: Callable[[], int], most: int) -> int:
        """Delete at most so many by a request, which returns how many it has deleted."""
        # The next time is set before the request, so that one that fails is not repeated at every
        # tick.
        self.due = self._in(_DELETE_INTERVAL)
        deleted = request()
        if deleted >= most:
            self.due = self._in(_NEXT_BATCH)
        return deleted

    def _in(self, pause: float) -> float:
        return self._clock.monotonic() + pause * self._rng.uniform(0.5, 1)


class Janitor(Deletions):
    """Purges tasks that have ended, once their ``retention_time`` has passed."""

    def __init__(self, context: Context, gateway: StoreGateway) -> None:
        super().__init__(context)
        self._store = context.store
        self._gateway = gateway
        self.put_off()

    def purge(self) -> None:
        """Purge once; call this when it is ``due``."""
        purge = partial(self._store.purge, _BATCH)
        purged = self.delete(lambda: self._gateway.request(purge), _BATCH)
        if purged:
            _log.debug("purged %d tasks that had ended", purged)


_LOOK_INTERVAL = 60.0
"""The longest pause, in seconds, between two looks at the templates. A random part of up to a half
is subtracted."""

_RETIREMENTS = 3600.0
"""Seconds after which a host, on average, looks for the rows of hosts that are gone."""


class HostRows:
    """Keeps the rows that this host has of templates; see `psched.client.each_host`.

    One worker of a generation does it, and only if the name of the host is configured.

    Attributes:
        due: when to call `step`, seconds of the monotonic clock. A worker that sleeps then looks at
            its next tick, and goes on at once until it has finished.
    """

    def __init__(self, context: Context, gateway: StoreGateway) -> None:
        settings = context.settings
        self._access = Access(
            store=context.store,
            settings=settings,
            clock=context.clock,
            send=gateway.request_aside,
            draw_nonce=lambda: f"{context.rng.getrandbits(96):024x}",
            author=lambda: this_process("psched-worker"),
            hint=None,
        )
        self._clock = context.clock
        self._rng = context.rng
        self._began = context.clock.boottime()
        self._steps: Iterator[None] | None = None
        takes_part = settings.host_name and settings.store_kind.keeps_lanes
        self.due = 0.0 if takes_part and context.place.number == 0 else inf

    @property
    def pending(self) -> bool:
        """Whether it has begun, and has not finished."""
        return self._steps is not None

    def step(self) -> None:
        """Send about one request; call this when it is ``due``."""
        pause = _LOOK_INTERVAL * self._rng.uniform(0.5, 1)
        retires = self._rng.uniform(0, _RETIREMENTS) < pause
        steps = self._steps = self._steps or keep_own_rows(
            self._access, known_for=self._clock.boottime() - self._began, retires=retires
        )
        over = object()
        try:
            with loading_by(refuse_to_ask):
                if next(steps, over) is not over:
                    return
        except PschedError as error:
            _log.info("the rows of this host are not kept for now: %s", error)
        self._steps = None
        self.due = self._clock.monotonic() + pause

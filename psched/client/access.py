"""What the requests of one collection of schedules share, and how a change wakes a worker."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from psched.base.clock import Clock
from psched.base.errors import NotFoundError, PschedError
from psched.base.retry import Send
from psched.client.arguments import stored_key
from psched.client.auditor import Auditor
from psched.config import Config
from psched.core.model import Row
from psched.core.operations.announcing import AnnouncesInTransaction, TellsOfCommit
from psched.core.store_protocol import CallersTransaction, Store

NOTIFY = "notify"
"""The value of the setting ``wake`` with which the store tells all hosts."""

_CLOCKS_DIFFER = 60.0
"""Seconds by which this host's clock may be behind the store's, which decides what is due. Reading
the store's clock would cost a round trip. If the difference is greater, a worker finds the row at
its next poll."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What the requests of one collection of schedules need.

    Attributes:
        store: the store that contains the schedules.
        settings: the installation's settings.
        clock: measures requests and leases, and is compared with the times of rows.
        send: sends a request to the store, again and again while the store is unavailable.
        draw_nonce: returns a new random text at each call.
        auditor: records the changes, and knows who makes them and why.
        hint: sends a hint to the masters of this host; None if nobody is told anything.
    """

    store: Store
    settings: Config
    clock: Clock
    send: Send
    draw_nonce: Callable[[], str]
    auditor: Auditor
    hint: Callable[[], object] | None

    def read(self, key: str) -> Row:
        """Read the row with a key."""
        return self.send(partial(read_row, self.store, key))

    # What wakes a worker can neither fail nor wait.

    def wake_for(self, rows: Iterable[Row]) -> None:
        """Wake a worker if one of these rows, which were just written, may be due soon.

        A worker that sleeps knows the rows that were due before its next poll when it last asked,
        and no others. So a row that falls due before that poll needs it to ask again, too.
        """
        if self.hint is not None and self._is_soon(rows):
            self.wake()

    def wake(self) -> None:
        """Wake a worker, because rows may be due."""
        if self.hint is None:
            return
        self.hint()
        announcements = self.store.announcements
        if self.settings.wake == NOTIFY and announcements is not None:
            # The change was made, whether others are told or not.
            with suppress(PschedError):
                announcements.announce()

    def wake_after(self, transaction: CallersTransaction, rows: Iterable[Row]) -> None:
        """Wake a worker when the caller's transaction, in which rows were added, has committed."""
        joined: object = transaction
        if self.hint is None or not self._is_soon(rows):
            return
        if isinstance(joined, TellsOfCommit):
            joined.after_commit(self.hint)
        if self.settings.wake == NOTIFY and isinstance(joined, AnnouncesInTransaction):
            joined.announce()

    def _is_soon(self, rows: Iterable[Row]) -> bool:
        """Whether one of these rows may be due before a sleeping worker asks again."""
        until = self.clock.wall() + self.settings.poll_interval + _CLOCKS_DIFFER
        times = (row.next_run_time for row in rows if row.owner is None)
        return any(time is not None and time <= until for time in times)


def read_row(store: Store, key: str) -> Row:
    """Read the row with this key."""
    row = store.get(stored_key(key))
    if row is None:
        raise NotFoundError(f"no schedule has the key {key!r}")
    return row

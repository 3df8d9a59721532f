"""Signs of workers of an older version, which run schedules, but write no records.

A worker of this version writes a record of itself each minute, and records of what it settles. So a
worker whose nonce is in a lease, but in no record, is of an older version. Of each row, the store
knows the present lease, and the one that was settled last. They prove that the worker was at work
at a certain time or later. When it was started, nobody knows. So it may have run any occurrence, of
any schedule, before that time; of a later occurrence the sign tells nothing.

A sign is gone when a worker of this version has settled the row. A worker of this version whose
records were deleted because of their age is no false sign: it was at work only before the oldest
records that are kept, and earlier occurrences are not checked.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from psched.base.errors import InvalidError
from psched.config import Config
from psched.core.definition import parse_row
from psched.core.history.records import nonce_of
from psched.core.history.why.facts import last_before
from psched.core.model import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderWorkers:
    """What is known about workers that write no records.

    Attributes:
        nonces: those of these workers that the rows name.
        until: one of them was at work at this time or later, in Unix seconds; 0 if none is known.
        first_start: when the first worker that writes records was started, in Unix seconds; 0 if
            that is not known.
    """

    nonces: AbstractSet[str] = frozenset()
    until: int = 0
    first_start: int = 0

    def has_settled(self, row: Row) -> bool:
        """Whether one of them has settled the last lease of a row."""
        return _settler(row) in self.nonces


NO_SIGNS = OlderWorkers()


class Signs:
    """Collects the signs of older workers.

    Args:
        known: the nonces of the workers that write records.
        settings: the installation's settings.
        now: the time of the store's clock.
        moved_to: returns the last ``next_time`` that a client has given to the schedule with a key;
            None if there is none.

    Attributes:
        proven: for each older worker, by its nonce, a time in Unix seconds: it was at work then or
            later. 0 if no time is known.
    """

    def __init__(
        self,
        known: AbstractSet[str],
        settings: Config,
        now: float,
        moved_to: Callable[[str], int | None],
    ) -> None:
        self._known = known
        self._settings = settings
        self._now = int(now)
        self._moved_to = moved_to
        self.proven: dict[str, int] = {}

    def look_at(self, row: Row) -> None:
        """Note what a row tells."""
        # An older worker does not write ``claimed_at``.
        if row.owner is not None and row.claimed_at is None:
            nonce = nonce_of(row.owner)
            if self._is_older(nonce) and (row.next_run_time or 0) > self._now:
                self.proven[nonce] = self._now
        nonce = _settler(row)
        if self._is_older(nonce):
            proven = self.proven.setdefault(nonce, 0)
            # The time is computed only if it can be later than what is proven already.
            if min(row.next_time or 0, self._now) > proven:
                self.proven[nonce] = max(proven, self._settled_after(row))

    def _is_older(self, nonce: str) -> bool:
        # A program that polls has no nonce of this form, and no record of itself.
        return bool(nonce) and nonce not in self._known

    def _settled_after(self, row: Row) -> int:
        """A time, in Unix seconds, before which the last lease of a row was not settled."""
        cursor = row.next_time or 0
        # A client that moves a row does not change by whom it was settled.
        if row.version > 1 and cursor <= (self._moved_to(row.key) or -1):
            return 0
        until = min(cursor, self._now + 1)  # plain SQL can have written any time
        try:
            trigger = parse_row(row, self._settings).trigger
            # The row was leased for its present occurrence, or for the one before it.
            before = until if trigger is None else last_before(trigger, until)
        except InvalidError:
            before = None
        return min(before or 0, self._now)


def _settler(row: Row) -> str:
    """The nonce of the worker that has settled the last lease; empty if it was no worker."""
    # A client writes a text without the mark.
    return nonce_of((row.settled_by or "").rpartition("#")[0])

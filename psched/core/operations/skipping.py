"""Leaves out the next occurrences of a schedule: `psched skip`.

The row's ``next_time`` moves behind these occurrences, and a span of the run history says who has
skipped them (`psched.core.history.records.Fate.SKIPPED`). They begin with the occurrence that is
due or will be tried again. If the catch-up policy would drop earlier ones at the next claim, these
are dropped now, and get their own fates.

An occurrence that is running is not skipped, and neither are those after it: only the settlement
of the run decides which one comes next. An extra run that holds the lease of the schedule is no
occurrence of it, so occurrences can be skipped then.
"""

from dataclasses import replace as changed

from psched.base.errors import AlreadyExistsError, AlreadyFinishedError, InvalidError, NotFoundError
from psched.config import Config
from psched.core import attempts
from psched.core.catchup import describe_dropped, iso, oldest_kept
from psched.core.columns import plain_reason
from psched.core.definition import Definition, parse_row
from psched.core.history.records import Fate, Skipped
from psched.core.model import BEING_DELETED, ENDED, ENDING, PAUSED, STOPPING, WAITING, Row
from psched.core.operations.pausing import missed_spans
from psched.triggers.trigger import Trigger

SKIPPED_BY = "skipped by "
"""The reason of the occurrences that somebody skips begins with this text."""

MOST = 1000
"""The most occurrences that are skipped at once."""


def reason_of(by: str, note: str | None) -> str:
    """The reason of the occurrences that somebody skips."""
    because = f": {note}" if note else ""
    return plain_reason(f"{SKIPPED_BY}{by}{because}") or ""


def check_count(number: object) -> int:
    """Check the number of occurrences to skip, and return it."""
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST:
        raise InvalidError("number", f"must be from 1 to {MOST}, not {number!r}")
    return number


def skip(
    row: Row, settings: Config, number: int, now: float, *, reason: str
) -> tuple[Row, tuple[Skipped, ...]]:
    """The row without its next occurrences, and what becomes of those."""
    _refuse(row)
    definition = parse_row(row, settings)
    trigger, cursor = definition.trigger, row.next_time
    if trigger is None:
        raise InvalidError(
            "key", f"{row.key!r} runs only once; to leave its run out, cancel it: psched cancel"
        )
    if cursor is None:
        cursor = attempts.first_time(row, trigger, now)
    if cursor is None or (row.status == WAITING and row.next_run_time is None):
        raise InvalidError("key", f"{row.key!r} has no next run")
    begin, dropped = _catch_up(row, definition, trigger, cursor, now)
    last, count = begin, 1
    following = trigger.next_after(begin)
    while following is not None and count < number:
        last, count, following = following, count + 1, trigger.next_after(following)
    if following is None:
        raise InvalidError(
            "number", f"{row.key!r} has no run after these; to end it, cancel it: psched cancel"
        )
    span = Skipped(fate=Fate.SKIPPED, first=begin, until=last, count=count, reason=reason)
    return _moved(row, definition, following), (*dropped, span)


def refuse_ended(row: Row) -> None:
    """Refuse a row that has ended or is about to."""
    if row.status in BEING_DELETED:
        raise NotFoundError(f"the schedule {row.key!r} is being deleted")
    if row.status in ENDED:
        raise AlreadyFinishedError(f"{row.key!r} has ended already: it is {row.status}")
    if row.status in ENDING:
        raise AlreadyFinishedError(f"{row.key!r} is about to end: it is {row.status}")


def _refuse(row: Row) -> None:
    refuse_ended(row)
    key, status = row.key, row.status
    if status not in {WAITING, PAUSED, STOPPING}:
        raise AlreadyExistsError(f"{key!r} cannot be skipped: it is {status}")
    if row.owner is not None:
        time = "an occurrence" if row.next_time is None else f"its run of {iso(row.next_time)}"
        raise InvalidError("key", f"{key!r} runs now ({time}); skip again when this run has ended")


def _catch_up(
    row: Row, definition: Definition, trigger: Trigger, cursor: int, now: float
) -> tuple[int, tuple[Skipped, ...]]:
    """The occurrence that would run next, and what the catch-up policy drops before it."""
    if row.is_tried or row.status == PAUSED:
        return cursor, ()
    due = max(now, row.next_run_time or 0)
    oldest = oldest_kept(trigger, cursor, definition, due)
    if oldest == cursor:
        return cursor, ()
    if oldest is None:
        raise InvalidError("key", f"{row.key!r} has no next run")
    why = describe_dropped(definition, cursor, oldest)
    return oldest, missed_spans(trigger, definition, cursor, oldest, now=due, reason=why)


def _moved(row: Row, definition: Definition, following: int) -> Row:
    """The row with its next occurrence."""
    moved = changed(
        row,
        next_time=following,
        attempt=0,
        decided_until=None,
        moved_at=None,
        local_time=definition.local_time(following),
    )
    if row.status == PAUSED:
        return moved  # its next_run_time is the end of its pause, and its reason says why
    run_at = definition.first_run(following)
    return changed(moved, next_run_time=run_at, reason=None, reason_code=None)

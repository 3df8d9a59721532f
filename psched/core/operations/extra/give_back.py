"""How the worker of an extra run gives back the lease of the schedule, when the run has ended."""

from dataclasses import replace as changed
from math import ceil

from psched.base.errors import InvalidError
from psched.config import Config
from psched.core import attempts
from psched.core.definition import parse_row
from psched.core.model import WAITING, Release, Row, Settlement
from psched.core.operations.extra.borrowing import restored
from psched.core.policy import after_run
from psched.triggers.custom import AskElsewhereError, loading_by, refuse_to_ask
from psched.triggers.trigger import Trigger, first


def give_back(leased: Row, current: Row, settings: Config, now: float) -> Settlement:
    """Decide how to end the lease of a schedule that was held for an extra run.

    The schedule continues as if nothing had happened: no attempt is counted, and nothing is
    recorded. What a client has changed meanwhile applies.
    """
    before = attempts.given_back(leased)
    row = changed(current, next_run_time=before.next_run_time, attempt=before.attempt)
    if current.version != leased.version:
        # A user's trigger is not called in this process: where one would have to be called, the
        # next claim does it.
        with loading_by(refuse_to_ask):
            row = _redefined(before, current, settings, now)
    if (end := restored(row)) is not None:
        return end
    # The row is marked, so it ends as a free row would: its next occurrence gets no fate.
    return changed(after_run(row, row, Release(), settings, now), fate=None)


def _redefined(before: Row, current: Row, settings: Config, now: float) -> Row:
    """The row that a client has changed, as it is to continue.

    A client of psched writes the times into the note, see `borrowing.while_free`. One of an older
    version does not know the note, and leaves it to the settlement to compute the next time.
    """
    row = attempts.given_back(current, current.owner)
    has_note = row is not current
    if not has_note:
        row = changed(row, next_run_time=before.next_run_time, attempt=max(row.attempt, 0))
    if row.next_time is None:
        return changed(row, attempt=current.attempt)
    if row.status != WAITING:
        return row
    try:
        definition = parse_row(row, settings)
        next_time = _next_time(before, row, row.next_time, definition.trigger, now)
        is_timed = has_note and next_time == row.next_time
        if is_timed and (row.next_run_time is not None or before.status == WAITING):
            return row
        run_at = definition.first_run(next_time)
        return changed(row, next_time=next_time, next_run_time=run_at, attempt=0)
    except AskElsewhereError:
        decided = attempts.after(ceil(now) - 1)
        return changed(row, next_time=None, next_run_time=None, attempt=decided)
    except InvalidError:
        return row  # the worker that claims the row when it is due quarantines it


def _next_time(before: Row, row: Row, next_time: int, trigger: Trigger | None, now: float) -> int:
    """The next time of a row; the first one from now on if only its trigger was changed."""
    is_same = (before.cron, before.timezone) == (row.cron, row.timezone)
    if trigger is None or is_same or next_time != before.next_time:
        return next_time
    # The next time can be one of the new trigger, too; it may have passed by now, and is not lost.
    if first(trigger, next_time) == next_time:
        return next_time
    following = first(trigger, ceil(now))
    # If the new trigger has no time any more, the last one of the old trigger still runs.
    return next_time if following is None else following

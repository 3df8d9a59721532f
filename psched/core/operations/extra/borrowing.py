"""Rows whose lease an extra run's worker holds: they are not due, and return to what they were.

While the worker holds the lease, the row's ``attempt`` contains a note on the ``next_run_time`` and
``attempt`` that the row had before (`psched.core.attempts.borrowed`). A client that changes such a
row treats it like a free row, and writes the new values into the note (`while_free`). The
settlement that gives the row back reads the note, whoever ends the lease: its holder (see
`psched.core.operations.extra.give_back`), or the next worker that claims the row after the holder's
death (`restored`).
"""

from collections.abc import Callable
from dataclasses import replace as changed

from psched.core import attempts
from psched.core.columns import plain_reason
from psched.core.model import ENDING, STOPPING, WAITING, Row, Settlement


def while_free(seen: Row, change: Callable[[Row], Row]) -> Row:
    """Change a row that an extra run's worker holds as if nobody held it."""
    free = attempts.given_back(seen)
    new = change(free)
    if free is seen or seen.owner is None:
        return new
    if new.next_time is None:
        return changed(new, owner=seen.owner, next_run_time=seen.next_run_time)
    return changed(
        new,
        owner=seen.owner,
        next_run_time=seen.next_run_time,
        attempt=attempts.borrowed(new.next_run_time, new.attempt),
    )


def restored(free: Row) -> Settlement | None:
    """The settlement that gives a row back as it is.

    Returns:
        The settlement; None if the row must end, because it is marked, or if its status is unknown.
    """
    if free.known_status is None or free.status in ENDING:
        return None
    # A row without a time is claimed at once, so that it gets one.
    rests = free.next_run_time is None and not (free.next_time is None and free.status == WAITING)
    return Settlement.of(
        free,
        rest=rests,
        not_before=free.next_run_time,
        attempt=free.attempt,
        # What runs is the extra run: nothing of the schedule is to be stopped.
        status=WAITING if free.status == STOPPING else free.status,
        reason=plain_reason(free.reason),
    )

"""The records of occurrences that the catch-up policy drops."""

from collections.abc import Callable
from functools import partial

from psched.core.history.records import FOREVER, MOST_COUNTED, Fate, Skipped
from psched.triggers.trigger import Trigger


def dropped_spans(
    trigger: Trigger,
    cursor: int,
    oldest: int | None,
    *,
    catchup: str,
    busy_until: int | None,
    last_before: Callable[[int], int],
    reason: str,
) -> tuple[Skipped, ...]:
    """Describe the occurrences that were dropped: from the cursor to before the oldest kept one.

    Args:
        trigger: the schedule's trigger.
        cursor: the scheduled time of the first dropped occurrence.
        oldest: the oldest occurrence that is kept; None if none is.
        catchup: the setting of this name.
        busy_until: the last scheduled time that fell due while an earlier occurrence ran; None if
            none did.
        last_before: returns the last occurrence from the cursor to before an instant.
        reason: the reason for all of them.
    """
    span = partial(_span, trigger, last_before=last_before, reason=reason)
    if catchup != "skip":
        fate = Fate.COALESCED if catchup == "latest" else Fate.SKIPPED_CATCHUP
        return (span(cursor, oldest, fate),)
    if busy_until is None or busy_until < cursor:
        return (span(cursor, oldest, Fate.SKIPPED_CATCHUP),)
    missed = trigger.next_after(busy_until)
    if missed is None or (oldest is not None and missed >= oldest):
        return (span(cursor, oldest, Fate.SKIPPED_OVERLAP),)
    return (
        span(cursor, missed, Fate.SKIPPED_OVERLAP),
        span(missed, oldest, Fate.SKIPPED_CATCHUP),
    )


def _span(
    trigger: Trigger,
    first: int,
    end: int | None,
    fate: Fate,
    *,
    last_before: Callable[[int], int],
    reason: str,
) -> Skipped:
    """Describe the occurrences from ``first`` to before ``end``, which are at least one."""
    count, last = 1, first
    while count <= MOST_COUNTED:
        following = trigger.next_after(last)
        if following is None or (end is not None and following >= end):
            return Skipped(fate=fate, first=first, until=last, count=count, reason=reason)
        last = following
        count += 1
    until = FOREVER if end is None else last_before(end)
    return Skipped(fate=fate, first=first, until=until, count=None, reason=reason)

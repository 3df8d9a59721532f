"""Descriptions of neighbouring occurrences that are dropped, for the run history."""

from collections.abc import Callable
from functools import partial

from psched.core.history.records import MOST_COUNTED, Fate, Skipped
from psched.triggers.trigger import Trigger


def dropped_spans(
    trigger: Trigger,
    cursor: int,
    end: int,
    *,
    catchup: str,
    busy_until: int | None,
    last_before: Callable[[int], int],
    reason: str,
    counts: bool,
) -> tuple[Skipped, ...]:
    """Describe the occurrences that were dropped: from the cursor to before an instant."""
    span = partial(span_of, trigger, last_before=last_before, reason=reason, counts=counts)
    if catchup != "skip":
        fate = Fate.COALESCED if catchup == "latest" else Fate.SKIPPED_CATCHUP
        return (span(cursor, end, fate),)
    if busy_until is None or busy_until < cursor:
        return (span(cursor, end, Fate.SKIPPED_CATCHUP),)
    missed = trigger.next_after(busy_until)
    if missed is None or missed >= end:
        return (span(cursor, end, Fate.SKIPPED_OVERLAP),)
    return (
        span(cursor, missed, Fate.SKIPPED_OVERLAP),
        span(missed, end, Fate.SKIPPED_CATCHUP),
    )


def span_of(
    trigger: Trigger,
    first: int,
    end: int,
    fate: Fate,
    *,
    last_before: Callable[[int], int],
    reason: str | None,
    counts: bool,
) -> Skipped:
    """Describe the occurrences from ``first`` to before ``end``, which are at least one.

    The other arguments are those of `dropped_spans`.
    """
    most = MOST_COUNTED if counts else 0
    count, last = 1, first
    while count <= most:
        following = trigger.next_after(last)
        if following is None or following >= end:
            return Skipped(fate=fate, first=first, until=last, count=count, reason=reason)
        last = following
        count += 1
    until = last_before(end) if most else max(first, end - 1)
    return Skipped(fate=fate, first=first, until=until, count=None, reason=reason)

"""Catch-up: decides which missed occurrences of a schedule run.

The setting ``catchup`` of a schedule decides:

* ``all``: all missed occurrences run, one after another, oldest first, as in PerfectSched;
* ``latest``: only the newest one runs;
* ``skip``: none runs, except one that starts at most ``catchup_grace`` seconds after it was due.

``all`` keeps at most ``catchup_limit`` occurrences, the newest ones. ``all`` and ``latest`` drop
occurrences that were due more than ``catchup_window`` seconds ago. If occurrences are dropped, the
settlement's reason names their range. The policy applies only before the first attempt: an
occurrence that has been tried is not dropped.

The policy does not depend on why an occurrence was missed. For example, occurrences can become due
while an earlier occurrence of the schedule runs. When the earlier occurrence has ended, the missed
occurrences run one after another (``all``), only the newest of them runs (``latest``), or they are
dropped (``skip``).
"""

from collections import deque
from datetime import UTC, datetime

from psched.core.definition import Definition
from psched.triggers.trigger import Trigger, first

_MOST_REMEMBERED = 10_000
"""The largest number of entries in `_passed`."""

_passed: dict[tuple[object, ...], tuple[int, int | None, int]] = {}
"""What the last call of `_exceeds` found for each schedule and count.

A value holds the row's ``next_time`` (the cursor), the last occurrence that was computed from it
(None if the trigger has no more occurrences), and the number of steps from the one to the other.
"""


def oldest_kept(trigger: Trigger, cursor: int, definition: Definition, now: float) -> int | None:
    """The oldest occurrence that the catch-up policy keeps; None if it keeps none."""
    settings = definition.settings
    # Only occurrences up to ``ready`` can be late: later ones may still be delayed by the
    # schedule's delay and jitter.
    ready = int(now) - definition.delay - settings.jitter
    if settings.catchup == "skip":
        if ready - cursor <= settings.catchup_grace:
            return cursor
        newest = _newest(definition, trigger, cursor, ready, 1)
        on_time = ready - newest <= settings.catchup_grace
        return newest if on_time else trigger.next_after(newest)
    count = settings.catchup_limit if settings.catchup == "all" else 1
    if 0 < settings.catchup_window < ready - cursor:
        recent = first(trigger, ready - settings.catchup_window)
        if recent is None or recent > ready:
            return recent
        cursor = recent
    return _newest(definition, trigger, cursor, ready, count)


def _newest(definition: Definition, trigger: Trigger, cursor: int, until: int, count: int) -> int:
    """The oldest of the last ``count`` occurrences from the cursor to ``until``.

    The cursor is the row's ``next_time``. If a schedule runs every minute and its cursor is ten
    years old, there are five million occurrences. So the search begins at the end, in windows that
    double in size until ``count`` occurrences are found.
    """
    if not _exceeds(definition, trigger, cursor, until, count):
        return cursor
    found: deque[int] = deque()
    end, span = until, count
    while end > cursor:
        start = max(cursor, until - span)
        window: deque[int] = deque(maxlen=count - len(found))
        instant = trigger.next_after(start)
        while instant is not None and instant <= end:
            window.append(instant)
            instant = trigger.next_after(instant)
        found.extendleft(reversed(window))
        if len(found) == count:
            return found[0]
        end, span = start, 2 * span
    return cursor


def last_occurrence(definition: Definition, trigger: Trigger, cursor: int, end: int) -> int:
    """The last occurrence from the cursor, which is an occurrence, to before ``end``."""
    return _newest(definition, trigger, cursor, end - 1, 1)


def _exceeds(definition: Definition, trigger: Trigger, cursor: int, until: int, count: int) -> bool:
    """Whether there are more than ``count`` occurrences from the cursor to ``until``.

    The cursor is the row's ``next_time``. This function is called for each occurrence of a long
    backlog, and would compute ``count`` occurrences each time. So the last occurrence that it has
    computed is cached: when the cursor moves by one step, only one more occurrence is computed.
    """
    key = (definition.key, definition.cron, definition.timezone, definition.settings.dst_policy)
    at, ahead, steps = _passed.pop((*key, count), (None, None, 0))
    near = ahead is None or cursor <= ahead
    while near and at is not None and at < cursor and steps > 0:
        at, steps = trigger.next_after(at), steps - 1
    if at != cursor:
        ahead, steps = cursor, 0
    while steps < count and ahead is not None and ahead <= until:
        ahead, steps = trigger.next_after(ahead), steps + 1
    if len(_passed) >= _MOST_REMEMBERED:
        del _passed[next(iter(_passed))]
    _passed[*key, count] = (cursor, ahead, steps)
    return steps == count and ahead is not None and ahead <= until


def describe_dropped(definition: Definition, cursor: int, oldest: int | None) -> str:
    """Describe in words the dropped occurrences: from the cursor to before the oldest kept one.

    If ``oldest`` is None, no occurrence is kept.
    """
    policy = definition.settings.catchup
    cap = f", limit {definition.settings.catchup_limit}" if policy == "all" else ""
    window = definition.settings.catchup_window
    if window and policy != "skip":
        cap += f", window {window} s"
    until = "the last one" if oldest is None else f"before {iso(oldest)}"
    return f"catch-up ({policy}{cap}) dropped the occurrences from {iso(cursor)} to {until}"


def iso(instant: int) -> str:
    """An instant in UTC as ISO 8601 text; in Unix seconds if no date has it."""
    try:
        return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(instant)

"""Which of the occurrences that fell due while nobody ran them are run.

By the schedule's choice,

* ``all``: one after another, oldest first, as PerfectSched does;
* ``latest``: dropped but for the newest;
* ``skip``: dropped all, unless one started no later than ``catchup_grace`` seconds after it
  was due.

``all`` keeps ``catchup_limit`` of them, the newest. What is dropped is always told, as a range,
in the settlement's reason. An occurrence that has been tried is carried through: only a first
attempt is judged.
"""

from collections import deque
from datetime import UTC, datetime

from psched.definition import Definition
from psched.trigger import Trigger

_SHORTEST_WINDOW = 1
"""Seconds in which the newest missed occurrences are looked for first."""

_MOST_REMEMBERED = 10_000
"""Schedules whose last answer `_passed_at` keeps."""

_passed: dict[tuple[object, ...], tuple[int, int | None]] = {}


def kept(trigger: Trigger, cursor: int, definition: Definition, now: float) -> int | None:
    """The oldest occurrence, from the cursor on, that the catch-up policy keeps."""
    settings = definition.settings
    ready = int(now) - definition.delay
    if settings.catchup != "skip":
        count = settings.catchup_limit if settings.catchup == "all" else 1
        return _newest(definition, trigger, cursor, ready, count)
    if ready - cursor <= settings.catchup_grace:
        return cursor
    newest = _newest(definition, trigger, cursor, ready, 1)
    on_time = ready - newest <= settings.catchup_grace
    return newest if on_time else trigger.next_after(newest)


def _newest(definition: Definition, trigger: Trigger, cursor: int, until: int, count: int) -> int:
    """The oldest of the last ``count`` occurrences from the cursor to ``until``.

    A cursor ten years back on a minutely schedule has five million occurrences before it, so
    they are looked for from the end, in a window that doubles until it holds enough.
    """
    if trigger.most_in(until - cursor) <= count:
        return cursor
    limit = _passed_at(definition, trigger, cursor, count)
    if limit is None or until < limit:
        return cursor
    span = _SHORTEST_WINDOW
    while trigger.most_in(span) < count:
        span *= 2
    while True:
        start = max(cursor, until - span)
        last: deque[int] = deque(maxlen=count)
        instant = trigger.next_after(start)
        while instant is not None and instant <= until:
            last.append(instant)
            instant = trigger.next_after(instant)
        if len(last) == count:
            return last[0]
        if start == cursor:
            return cursor
        span *= 2


def _passed_at(definition: Definition, trigger: Trigger, cursor: int, count: int) -> int | None:
    """From when on more than ``count`` occurrences have been missed; None: never.

    A long backlog is worked off one by one, and judged each time. So what was found out is kept:
    as the cursor moves by one, so does the answer.
    """
    key = (definition.key, definition.cron, definition.timezone, definition.settings.dst_policy)
    at, limit = _passed.pop((*key, count), (None, None))
    steps = 0
    while at is not None and at < cursor and limit is not None and steps < count:
        at, limit, steps = trigger.next_after(at), trigger.next_after(limit), steps + 1
    if at != cursor:
        limit = cursor
        for _ in range(count):
            limit = None if limit is None else trigger.next_after(limit)
    if len(_passed) >= _MOST_REMEMBERED:
        del _passed[next(iter(_passed))]
    _passed[*key, count] = (cursor, limit)
    return limit


def dropped(definition: Definition, cursor: int, oldest: int | None) -> str:
    """What was dropped, for people: from the cursor to before the oldest that is kept."""
    policy = definition.settings.catchup
    cap = f", limit {definition.settings.catchup_limit}" if policy == "all" else ""
    until = "the last one" if oldest is None else f"before {iso(oldest)}"
    return f"catch-up ({policy}{cap}) dropped the occurrences from {iso(cursor)} to {until}"


def iso(instant: int) -> str:
    """An instant for people."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

"""Which of the occurrences that fell due while nobody ran them are run.

By the schedule's choice,

* ``all``: one after another, oldest first, as PerfectSched does;
* ``latest``: dropped but for the newest;
* ``skip``: dropped all, unless one started no later than ``catchup_grace`` seconds after it
  was due.

``all`` keeps ``catchup_limit`` of them, the newest; what was due more than ``catchup_window``
seconds ago is dropped in any case. What is dropped is always told, as a range, in the settlement's
reason. An occurrence that has been tried is carried through: only a first attempt is judged.

It makes no difference why nobody ran them: those that fall due while an occurrence of the same
schedule runs are judged in the same way when it has ended. So they queue up (``all``), become one
(``latest``) or are dropped (``skip``).
"""

from collections import deque
from datetime import UTC, datetime

from psched.core.definition import Definition
from psched.triggers.trigger import Trigger, first

_MOST_REMEMBERED = 10_000
"""Schedules whose last answer `_exceeds` keeps."""

_passed: dict[tuple[object, ...], tuple[int, int | None, int]] = {}


def oldest_kept(trigger: Trigger, cursor: int, definition: Definition, now: float) -> int | None:
    """The oldest occurrence, from the cursor on, that the catch-up policy keeps.

    Raises:
        InvalidError: a trigger of the user's own does not answer as it should.
    """
    settings = definition.settings
    # What may still wait for its share of the jitter is not late.
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

    A cursor ten years back on a minutely schedule has five million occurrences before it, so
    they are looked for from the end, in windows that double until they hold enough.
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


def _exceeds(definition: Definition, trigger: Trigger, cursor: int, until: int, count: int) -> bool:
    """Whether there are more than ``count`` occurrences from the cursor to ``until``.

    A long backlog is worked off one by one, and judged each time. So what was found out is kept,
    the occurrence that is so many ahead of the cursor: as the one moves on, so does the other.
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
    """What was dropped, for people: from the cursor to before the oldest that is kept."""
    policy = definition.settings.catchup
    cap = f", limit {definition.settings.catchup_limit}" if policy == "all" else ""
    window = definition.settings.catchup_window
    if window and policy != "skip":
        cap += f", window {window} s"
    until = "the last one" if oldest is None else f"before {iso(oldest)}"
    return f"catch-up ({policy}{cap}) dropped the occurrences from {iso(cursor)} to {until}"


def iso(instant: int) -> str:
    """An instant for people."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

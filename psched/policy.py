"""What becomes of a leased row: pure functions, no store, no clock.

`opening` judges a row that has just been claimed: is its occurrence to be run, or is there
something else to do with it? `conclusion` turns what came out of a run into a settlement.

**Catch-up.** Occurrences that fell due while nobody ran them are, by the schedule's choice,

* ``all``: run one after another, oldest first, as PerfectSched does;
* ``latest``: dropped but for the newest;
* ``skip``: dropped all, unless one started no later than ``catchup_grace`` seconds after it
  was due.

``all`` keeps ``catchup_limit`` of them, the newest. What is dropped is always told, as a range,
in the settlement's reason. An occurrence that has been tried is carried through: only a first
attempt is judged.
"""

import math
from collections import deque
from dataclasses import dataclass
from dataclasses import replace as changed
from datetime import UTC, datetime

from psched import trigger as triggers
from psched.config import Config
from psched.definition import LATEST_TIME, Definition, understand
from psched.errors import InvalidError
from psched.model import (
    DELETING,
    FINISHED,
    QUARANTINED,
    WAITING,
    Decision,
    Finish,
    Release,
    Row,
    Settlement,
)
from psched.trigger import Trigger

_REASON_LENGTH = 500
"""Characters of a reason that are kept."""

_SHORTEST_WINDOW = 1
"""Seconds in which the newest missed occurrences are looked for first."""

_MOST_REMEMBERED = 10_000
"""Schedules whose last answer `_passed_at` keeps."""

_passed: dict[tuple[object, ...], tuple[int, int | None]] = {}


@dataclass(frozen=True, slots=True)
class Run:
    """The row's occurrence is to be run.

    Attributes:
        definition: the row, understood.
        scheduled_time: the occurrence's.
    """

    definition: Definition
    scheduled_time: int


def opening(row: Row, settings: Config, now: float) -> Run | Settlement:
    """What to do with a row that has just been claimed.

    Args:
        row: as the claim returned it.
        settings: the installation's.
        now: the store's clock.

    Returns:
        Its occurrence to run; or how to settle the lease at once, with a reason, when there is
        nothing to run: the row cannot be understood, is being deleted, was inserted without a
        time, or its cursor stands on occurrences that are to be dropped.
    """
    if row.status == DELETING:
        return removal(row)
    try:
        definition = understand(row, settings)
        return _judge(row, definition, now)
    except InvalidError as error:
        return quarantine(row, str(error))


def conclusion(
    leased: Row, current: Row, decision: Decision, settings: Config, now: float = 0.0
) -> Settlement:
    """How to settle a lease after a run.

    Args:
        leased: the row as it was claimed and run.
        current: the row as it stands now; differs if its definition has changed meanwhile.
        decision: what came out of the run.
        settings: the installation's.
        now: the store's clock, if the definition has changed.
    """
    if current.status == DELETING:
        return removal(current)
    try:
        definition = understand(current, settings)
    except InvalidError as error:
        return quarantine(current, str(error))
    if current.next_time is None:
        current = changed(current, next_time=leased.next_time)
    moved = leased.version != current.version and leased.next_time != current.next_time
    if moved:
        # Somebody has set the schedule's next time while this occurrence ran: that stands.
        return _at(current, definition, current.next_time)
    if isinstance(decision, Finish):
        same = (leased.cron, leased.timezone) == (current.cron, current.timezone)
        # What another trigger would have shown before it was set was never scheduled.
        return _following(current, definition, since=0 if same else math.ceil(now) - 1)
    if isinstance(decision, Release):
        return _again(current, wait=0, attempt=current.attempt - 1)
    wait = definition.settings.retry_wait if decision.wait is None else decision.wait
    return _again(current, wait=wait, attempt=current.attempt, reason=decision.reason)


def quarantine(row: Row, reason: str) -> Settlement:
    """Set aside a row that cannot be understood; nothing runs on guessed data."""
    return Settlement(
        key=row.key,
        token=row.token,
        version=row.version,
        next_time=row.next_time,
        rest=True,
        attempt=row.attempt,
        status=QUARANTINED,
        reason=_plain(reason),
    )


def removal(row: Row) -> Settlement:
    """Remove a row that was deleted while it was leased."""
    return Settlement(
        key=row.key, token=row.token, version=row.version, next_time=row.next_time, remove=True
    )


def _judge(row: Row, definition: Definition, now: float) -> Run | Settlement:
    cursor, trigger = row.next_time, definition.trigger
    if cursor is not None and not 0 <= cursor <= LATEST_TIME:
        raise InvalidError("next_time", f"must be from 0 to {LATEST_TIME}, not {cursor}")
    if cursor is None:
        # Inserted by plain SQL. Written down before it is run, so that every attempt has the
        # same scheduled time.
        now = math.ceil(now)
        return _at(row, definition, triggers.first(trigger, now) if trigger else now)
    if row.created_at is None and row.fence == 1 and cursor + definition.delay > now:
        # Inserted by plain SQL, which need not know of ``next_run_time``.
        return _at(row, definition, cursor)
    if row.attempt < 1:
        # Set under a lease that nobody has settled (see `psched.declare`): due in its own time.
        return _at(row, definition, cursor)
    if trigger is None or row.attempt > 1:
        return Run(definition, cursor)
    kept = _kept(trigger, cursor, definition, now)
    if kept == cursor:
        return Run(definition, cursor)
    return _at(row, definition, kept, reason=_dropped(definition, cursor, kept))


def _kept(trigger: Trigger, cursor: int, definition: Definition, now: float) -> int | None:
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


def _dropped(definition: Definition, cursor: int, kept: int | None) -> str:
    policy = definition.settings.catchup
    cap = f", limit {definition.settings.catchup_limit}" if policy == "all" else ""
    until = "the last one" if kept is None else f"before {_iso(kept)}"
    return f"catch-up ({policy}{cap}) dropped the occurrences from {_iso(cursor)} to {until}"


def _following(row: Row, definition: Definition, *, since: int = 0) -> Settlement:
    scheduled_time, trigger = row.next_time, definition.trigger
    if trigger is None or scheduled_time is None:
        return _at(row, definition, None)
    return _at(row, definition, trigger.next_after(max(scheduled_time, since)))


def _at(
    row: Row, definition: Definition, next_time: int | None, *, reason: str | None = None
) -> Settlement:
    """The row's next occurrence is this one; None: there is none."""
    over = next_time is None
    return Settlement(
        key=row.key,
        token=row.token,
        version=row.version,
        next_time=row.next_time if next_time is None else next_time,
        not_before=None if next_time is None else next_time + definition.delay,
        rest=over,
        status=FINISHED if over else WAITING,
        reason=reason,
    )


def _again(row: Row, *, wait: float, attempt: int, reason: str | None = None) -> Settlement:
    """The same occurrence once more."""
    return Settlement(
        key=row.key,
        token=row.token,
        version=row.version,
        next_time=row.next_time,
        # Rounded up: nothing runs before its wait is over.
        wait=math.ceil(wait),
        attempt=max(attempt, 0),
        reason=_plain(reason),
    )


def _plain(reason: str | None) -> str | None:
    """A reason that any database keeps and any terminal shows."""
    if reason is None:
        return None
    return "".join(c if c.isprintable() else " " for c in reason)[:_REASON_LENGTH]


def _iso(instant: int) -> str:
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

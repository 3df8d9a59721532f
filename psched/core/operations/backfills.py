"""Extra runs that somebody adds: their rows, and which missed instants a backfill runs, and when.

The row of an extra run copies the schedule's type, data, time zone, ``alive_time`` and options. It
runs once, and does not expire unless the schedule itself runs only once, because an occurrence of a
schedule with a trigger does not expire either.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from math import ceil, floor
from statistics import median
from typing import Any

from psched.base import payload
from psched.base.errors import AlreadyFinishedError, InvalidError, NotFoundError
from psched.base.quantities import RATES, as_rate
from psched.config import Config
from psched.core.catchup import iso
from psched.core.columns import encode, parse_options, payload_text
from psched.core.declare import derive
from psched.core.definition import Definition, parse_row
from psched.core.model import BEING_DELETED, ENDING, MIGRATING, QUARANTINED, WAITING, Row
from psched.core.operations.extra_runs import (
    OVERLAP_OPTION,
    PARALLEL,
    QUEUE,
    SCHEDULE_OPTION,
    SKIP,
    check_overlap,
    extra_key,
    schedule_of,
)

MOST_INSTANTS = 10_000
"""The most instants of one schedule that one backfill can contain."""

STAYS = 30 * 86_400
"""The least number of seconds for which the row of an instant stays after its end. So long, no
other backfill runs the instant again, even if there is no run history."""

_SHORTEST_PAUSE = 1.0
"""The least number of seconds between the starts of two runs that wait for each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """What a backfill of one schedule has done; with ``dry_run``, what it would do.

    Every instant of the schedule from the beginning to the end of the backfill is counted once.

    Attributes:
        key: the key of the schedule.
        runs: the keys of the extra runs that were added, in the order of their scheduled times.
        first: the scheduled time of the first of these runs, in Unix seconds; None without runs.
        last: the scheduled time of the last of these runs, in Unix seconds; None without runs.
        existing: how many instants had an extra run already, which waits, runs, or has ended.
        finished: how many instants had finished already, according to the run history.
        regular: how many instants are not decided yet, because the schedule itself still has to run
            or drop them.
        within: the seconds from now within which all of the runs become due.
    """

    key: str
    runs: list[str]
    first: int | None = None
    last: int | None = None
    existing: int = 0
    finished: int = 0
    regular: int = 0
    within: int = 0


def pause_between(took: Sequence[float]) -> float:
    """The seconds between the starts of runs that wait for each other.

    If all of them were due at once, workers would claim those that wait again and again, and other
    schedules would wait for a claim.
    """
    return max(median(took), _SHORTEST_PAUSE) if took else _SHORTEST_PAUSE


class Stagger:
    """The earliest starts of the runs of one backfill, or of several.

    A rate such as ``"10/m"`` says how many runs become due in a time. Without a rate, ``pause``
    seconds are between two runs; 0 means that all of them are due at once.
    """

    def __init__(self, rate: str | None, *, pause: float = 0.0) -> None:
        per_second = None if rate is None else as_rate(rate)
        if rate is not None and per_second is None:
            raise InvalidError("rate", f"must be a number per time ({RATES}), not {rate!r}")
        self._pause = pause if per_second is None else 1 / per_second
        self._count = 0

    @property
    def is_used(self) -> bool:
        """Whether the runs become due one after the other."""
        return self._pause > 0

    def offset(self, place: int) -> int:
        """The seconds from now to the earliest start of the next run but ``place``."""
        return floor((self._count + place) * self._pause)

    def advance(self, number: int) -> None:
        """Note that so many further runs were added."""
        self._count += number

    def length(self, number: int) -> int:
        """The seconds from now within which so many further runs become due."""
        return ceil((self._count + number) * self._pause)


def check_backfill_overlap(overlap: object, stagger: Stagger) -> str:
    """Check the argument ``overlap`` of a backfill, and return it."""
    checked = check_overlap(overlap)
    if checked == SKIP and not stagger.is_used:
        raise InvalidError(
            "overlap",
            "skip needs a rate, because of runs that are due at the same time all but one would be"
            f" skipped; choose {QUEUE} or {PARALLEL}, or give a rate ({RATES})",
        )
    return checked


def missed_instants(definition: Definition, start: int, end: int, now: float) -> list[int]:
    """The instants of a schedule from ``start`` to ``end``, both included, in Unix seconds."""
    if definition.trigger is None:
        raise InvalidError("key", f"{definition.key!r} runs only once, so it has missed no times")
    if end > now:
        raise InvalidError(
            "end", f"{iso(end)} is in the future: it is {iso(int(now))} by the store's clock"
        )
    if end < start:
        raise InvalidError("end", f"{iso(end)} is before the start, {iso(start)}")
    found = list[int]()
    instant = definition.trigger.next_after(start - 1)
    while instant is not None and instant <= end:
        if len(found) == MOST_INSTANTS:
            raise InvalidError(
                "end",
                f"there are more than {MOST_INSTANTS} instants from {iso(start)} to {iso(end)};"
                f" {iso(found[-1])} is the last one that can be the end, so run several backfills",
            )
        found.append(instant)
        instant = definition.trigger.next_after(instant)
    return found


def undecided(row: Row, instant: int) -> bool:
    """Whether a schedule itself still has to run or drop an instant that has passed."""
    return row.status == WAITING and row.next_time is not None and instant >= row.next_time


# --- the rows ----------------------------------------------------------------------------


def refuse_extra_runs(seen: Row) -> None:
    """Refuse a row of which there can be no extra runs."""
    key = seen.key
    if (schedule := schedule_of(key)) is not None:
        raise InvalidError(
            "key",
            f"{key!r} is an extra run of {schedule!r}; name {schedule!r}, or requeue the extra run"
            " when it has ended",
        )
    if seen.status in BEING_DELETED:
        raise NotFoundError(f"the schedule {key!r} is being deleted")
    if seen.status == QUARANTINED:
        why = f": {seen.reason}" if seen.reason else ""
        raise InvalidError(
            "key", f"{key!r} is quarantined{why}; correct the schedule, or requeue it, first"
        )
    if seen.status == MIGRATING:
        raise InvalidError("key", f"{key!r} is being moved here by psched migrate")
    if seen.status in ENDING:
        raise AlreadyFinishedError(
            f"{key!r} has no extra runs, because it is {seen.status}; requeue runs it again"
        )


def extra_row(
    seen: Row,
    id_: str,
    settings: Config,
    *,
    overlap: str,
    scheduled_time: int,
    run_at: int,
    data: Mapping[str, Any] | None = None,
    least_retention: int = 0,
) -> Row:
    """Create the row of an extra run."""
    fields: dict[str, Any] = {}
    if data is not None:
        fields |= {"data": data, payload.OPTION: None}
    if seen.cron is not None:
        fields["expire"] = 0
    row = derive(extra_key(seen.key, id_), seen, fields, settings)
    options = parse_options(row.options)
    if parse_row(row, settings).settings.retention_time < least_retention:
        options["retention_time"] = least_retention
    options |= {SCHEDULE_OPTION: seen.key, OVERLAP_OPTION: overlap}
    return changed(
        row,
        # The store compresses the text again if it is large.
        data=payload_text(row.data, settings.data_limit) if row.data else row.data,
        options=encode("options", options),
        next_time=scheduled_time,
        next_run_time=run_at,
    )

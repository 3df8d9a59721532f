"""Everything about one schedule or task, for people."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any

from psched.base.errors import InvalidError, NotSupportedError
from psched.base.texts import cut, visible
from psched.cli.alerts.shown import expected_text, open_alerts
from psched.cli.history.run_text import exit_text, result, run_object
from psched.cli.output import one_line
from psched.cli.running_here import progress_here
from psched.cli.schedules.columns import payload_beginning
from psched.cli.schedules.row_object import LONGEST_SHOWN, row_object
from psched.cli.schedules.status import overdue, shown_reason, shown_status
from psched.cli.time_format import format_distance, format_time, format_took, local_times
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.config.monitoring.expect import Expectations
from psched.core.alerts.alert import Alert
from psched.core.definition import ping_setting, settings_of
from psched.core.history.records import Outcome
from psched.core.history.redaction import Redaction
from psched.core.history.run import Run
from psched.core.model import ENDED, NO_PAUSE, PAUSED, WAITING, Occurrence, Row
from psched.core.operations.extra_runs import prefix_of_extra_runs, schedule_of
from psched.core.preview import UpcomingTime
from psched.core.schedule import Schedule, Schedules
from psched.core.selection import STATES
from psched.runner.progress import Progress

_INSTANTS = frozenset(
    {
        *("next_time", "next_run_time", "decided_until", "moved_at", "created_at", "claimed_at"),
        *("held_until", "retain_until"),
    }
)

_SHOWN_OTHERWISE = {"local_time", *NO_PAUSE}
"""The columns that ``next_time`` and ``reason`` show."""

_ATTEMPTS = 5
"""The number of attempts that are shown."""

_MEASURED = 50
"""The durations of so many finished runs are summarised."""

_EXTRA_RUNS = 5
"""The number of extra runs that are shown."""

_MOST_EXTRA_RUNS = 1000
"""The number of extra runs that are read, and shown as JSON."""

_UPCOMING = 3
"""The number of upcoming occurrences that are shown."""


@dataclass(frozen=True, slots=True)
class Durations:
    """How long the last finished runs took.

    Attributes:
        runs: the number of the runs.
        median: half of them took at most so many seconds.
        p95: 95 of 100 took at most so many seconds.
    """

    runs: int
    median: float
    p95: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What is known about a schedule or a task.

    Attributes:
        row: its row, as people see it.
        now: the time of the store's clock, in Unix seconds.
        alerts: the open alerts about it.
        attempts: the last attempts and those of its extra runs, the newest first; None if the store
            keeps no history.
        last: the last run; None if there is none.
        durations: how long the last finished runs took; None if there are none.
        extra_runs: the rows of its extra runs that have not ended, in the order of their runs.
        upcoming: the next runs.
        ping: the name of its ping; None if it has none.
        expect: what is expected of it.
        progress: the progress of its task, if a master of this host runs it; else None.
    """

    row: Row
    now: float
    alerts: Sequence[Alert]
    attempts: Sequence[Run] | None
    last: Run | None
    durations: Durations | None
    extra_runs: Sequence[Row]
    upcoming: Sequence[UpcomingTime]
    ping: str | None
    expect: Expectations
    progress: Mapping[str, Any] | None


def read_details(
    schedules: ScheduleCollection, settings: Config, key: str, redaction: Redaction
) -> Details:
    """Read everything about one schedule or task."""
    schedule = schedules[key]
    now = schedules.now()
    row = schedules.shown_as_paused()(schedule.metadata().row)
    attempts = _attempts(schedule)
    progress = None
    if row.owner is not None and row.next_time is not None:
        progress = progress_here(Occurrence(row.key, row.next_time), settings, redaction)
    return Details(
        row=row,
        now=now,
        alerts=open_alerts(schedules, key),
        attempts=attempts,
        last=None if attempts is None else _last(schedules, key, attempts),
        durations=_durations(schedule) if attempts else None,
        extra_runs=_extra_runs(schedules, key),
        upcoming=_upcoming(schedule) if row.status in {WAITING, PAUSED} else [],
        ping=ping_setting(row, settings),
        expect=settings_of(row, settings).expect,
        progress=progress,
    )


def fields_of(details: Details, redaction: Redaction) -> dict[str, str]:
    """What is known about the schedule, as texts: the columns that have a value, and others."""
    row, now = details.row, details.now
    shown = row_object(row, now, redaction, details.last)
    known = {name: getattr(row, name) for name in Row.__slots__ if name not in _SHOWN_OTHERWISE}
    known |= {name: shown[name] for name in ("status", "cron", "label")}
    known |= {
        "reason": local_times(redaction.text(shown_reason(row))) or None,
        "ping": details.ping,
    }
    if isinstance(shown["options"], dict):
        known["note"] = shown["options"].get("note")
    made = {
        name: _shown(name, value, redaction) for name, value in known.items() if value is not None
    }
    if details.expect.any:
        made["expect"] = expected_text(details.expect)
    if details.progress is not None:
        made["progress"] = visible(str(Progress(**details.progress)))
    return made


def _shown(name: str, value: Any, redaction: Redaction) -> str:  # noqa: ANN401  # any column
    if name in _INSTANTS:
        return format_time(value)
    if name in {"data", "options"}:
        return payload_beginning(value, LONGEST_SHOWN, redaction)
    if isinstance(value, (str, bytes)):
        return one_line(value[:LONGEST_SHOWN])
    return str(value)


def fields_of_run(run: Run, now: float, redaction: Redaction) -> dict[str, str]:
    """What is known about a run, as texts."""
    known = {
        "last run": f"{result(run)}, {format_distance(run.ended - now)}",
        "started": "" if run.started is None else format_time(int(run.started)),
        "ended": format_time(int(run.ended)),
        "took": format_took(run.took),
        "exit": exit_text(run),
        "memory": _memory(run),
        "host": one_line(run.host),
        "result": _result(run, redaction),
    }
    return {name: value for name, value in known.items() if value}


def _result(run: Run, redaction: Redaction) -> str:
    """The result of a run as JSON; empty if there is none."""
    if run.record.result is None:
        return ""
    shown = run_object(run, redaction)["result"]
    return cut(visible(json.dumps(shown, ensure_ascii=False)))


def _memory(run: Run) -> str:
    """The most memory that a run used, and whether it was probably too much."""
    used = "" if run.peak_memory is None else f"{run.peak_memory / 2**20:.0f} MiB"
    return f"{used} probably out of memory".strip() if run.out_of_memory else used


def durations_line(durations: Durations) -> str:
    """How long the last finished runs took, as a line."""
    return (
        f"the last {durations.runs} finished: median {format_took(durations.median)},"
        f" 95 % within {format_took(durations.p95)}"
    )


def extra_run_lines(details: Details) -> Iterator[str]:
    """The extra runs that have not ended, a line each."""
    extra_runs, now = details.extra_runs, details.now
    for row in extra_runs[:_EXTRA_RUNS]:
        of = "" if row.next_time is None else f" of {format_time(row.next_time)}"
        starts = ""
        if row.owner is None and row.next_run_time is not None and row.next_run_time > now:
            starts = f", {format_distance(row.next_run_time - now)}"
        yield f"{one_line(row.key)}{of}: {shown_status(row, now)}{starts}"
    if (more := len(extra_runs) - _EXTRA_RUNS) > 0:
        at_least = "at least " if len(extra_runs) == _MOST_EXTRA_RUNS else ""
        yield f"and {at_least}{more} more"


def upcoming_lines(details: Details) -> Iterator[str]:
    """The next runs, a line each."""
    row, now = details.row, details.now
    for each in details.upcoming:
        when = each.time if each.run_at is None else each.run_at
        distance = overdue(each, row, now) or format_distance(when - now)
        line = f"{format_time(when)}  {distance}"
        yield f"{line}  # {local_times(each.note)}" if each.note else line


# --- reading ---------------------------------------------------------------------------


def _attempts(schedule: Schedule) -> Sequence[Run] | None:
    """The last attempts, the newest first; None if the store keeps no history."""
    try:
        return [*schedule.runs(outcome=[*Outcome], limit=_ATTEMPTS)]
    except NotSupportedError:
        return None


def _last(schedules: Schedules, key: str, attempts: Sequence[Run]) -> Run | None:
    """The last run, which can be an occurrence that ended without an attempt; None without such."""
    newest = next((run for run in attempts if run.key == key), None)
    if newest is None and attempts:
        own = schedules.runs(key, outcome=[*Outcome], limit=1, extra_runs=False)
        newest = next(own, None)
    try:
        last = schedules.last_runs([key]).get(key)
    except NotSupportedError:
        return newest  # a store of the user's own that cannot find last runs
    # The record of an attempt has its error and result only if it was read as such.
    return newest if last is None or last.outcome is not None else last


def _durations(schedule: Schedule) -> Durations | None:
    """How long the last finished runs took; None if there are none."""
    runs = schedule.runs(outcome=Outcome.FINISHED, limit=_MEASURED)
    took = sorted(run.took for run in runs if run.took is not None)
    if not took:
        return None
    return Durations(len(took), median(took), took[ceil(0.95 * len(took)) - 1])


def _upcoming(schedule: Schedule) -> Sequence[UpcomingTime]:
    try:
        return schedule.next(_UPCOMING)
    except InvalidError:
        return []  # the row is invalid, or its trigger is loaded only on another host


def _extra_runs(schedules: Schedules, key: str) -> Sequence[Row]:
    """The rows of the extra runs of a schedule that have not ended, in the order of their runs."""
    found = schedules.list(
        prefix=prefix_of_extra_runs(key), status=STATES - ENDED, limit=_MOST_EXTRA_RUNS
    )
    return [each.row for each in found if schedule_of(each.key) == key]

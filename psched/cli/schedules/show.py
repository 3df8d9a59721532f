"""The command show, and everything about one schedule or task for people."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from statistics import median
from typing import Any

import click

from psched.app import open_schedules
from psched.base.errors import InvalidError, NotSupportedError
from psched.base.texts import cut, visible
from psched.cli import options
from psched.cli.completion import complete_key
from psched.cli.daemon.masters import served_by, shown_progress, table_of
from psched.cli.history.alerts import alert_object, expected_text, open_alerts, sentence
from psched.cli.opening import settings_to_read
from psched.cli.output import one_line
from psched.cli.shown import (
    LONGEST_SHOWN,
    columns_for,
    exit_text,
    overdue,
    payload_beginning,
    result,
    row_object,
    run_object,
    shown_reason,
    shown_status,
)
from psched.cli.text_table import View, print_table
from psched.cli.time_format import format_distance, format_time, format_took, local_times
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.config.monitoring import PARTS, Expectations
from psched.core.alerts.alert import Alert
from psched.core.definition import ping_setting, settings_of
from psched.core.history.records import Outcome
from psched.core.history.run import Run
from psched.core.model import ENDED, NO_PAUSE, PAUSED, WAITING, Occurrence, Row
from psched.core.operations.extra_runs import prefix_of_extra_runs, schedule_of
from psched.core.preview import UpcomingTime
from psched.core.schedule import Schedule, Schedules
from psched.core.selection import STATES
from psched.master.reports.queries import ask_all
from psched.master.runtime_folders import socket_folders
from psched.reports.redaction import Redaction
from psched.runner.shared_memory import Progress

_INSTANTS = frozenset(
    {
        *("next_time", "next_run_time", "decided_until", "moved_at", "created_at", "claimed_at"),
        *("held_until", "retain_until"),
    }
)

_SHOWN_OTHERWISE = {"local_time", "lane", *NO_PAUSE}  # columns that other lines show
_ATTEMPTS = 5  # the number of attempts that are shown
_MEASURED = 50  # the durations of so many finished runs are summarised
_EXTRA_RUNS = 5  # the number of extra runs that are shown
_MOST_EXTRA_RUNS = 1000  # the number of extra runs that are read, and shown as JSON
_UPCOMING = 3  # the number of upcoming occurrences that are shown


@dataclass(frozen=True, slots=True)
class Durations:
    """How long the last finished runs took, in seconds."""

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
        extra_runs: the rows of its extra runs that have not ended, in the order of their runs.
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


@click.command()
@click.argument("key", shell_complete=complete_key)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with every column.")
@options.zone()
@options.database
@click.pass_obj
def show(location: options.ConfigLocation, key: str, *, as_json: bool) -> None:
    """Show everything about one schedule or task.

    Each field is on a line of its own; fields without a value are left out. Then follow the open
    alerts, the last run, the last attempts, how long the last 50 finished runs took, the extra runs
    that have not ended, and the next runs; psched history KEY shows more runs, and psched next KEY
    more times.
    """
    settings = settings_to_read(location)
    redaction = Redaction(settings.redact)
    with open_schedules(settings) as schedules:
        details = read_details(schedules, settings, key, redaction)
    if as_json:
        click.echo(json.dumps(details_object(details, redaction)))
    else:
        _print(details, redaction)


def details_object(details: Details, redaction: Redaction) -> dict[str, Any]:
    """Everything about a schedule as a JSON object."""
    made = row_object(details.row, details.now, redaction, details.last)
    last, attempts, durations = details.last, details.attempts, details.durations
    made["progress"] = details.progress
    made["ping"] = details.ping
    made["last"] = None if last is None else run_object(last, redaction)
    if attempts is not None:
        made["attempts"] = [run_object(run, redaction, large=False) for run in attempts]
    made["durations"] = None if durations is None else asdict(durations)
    made["extra_runs"] = [_extra_run_object(each, details.now) for each in details.extra_runs]
    made["expect"] = {part: details.expect.get(part) for part in PARTS}
    made["alerts"] = [alert_object(alert, redaction) for alert in details.alerts]
    made["occurrences"] = [asdict(each) for each in details.upcoming]
    return made


def _extra_run_object(row: Row, now: float) -> dict[str, Any]:
    names = ("key", "type", "next_time", "next_run_time")
    return {name: getattr(row, name) for name in names} | {"status": shown_status(row, now)}


def _print(details: Details, redaction: Redaction) -> None:
    _print_fields(fields_of(details, redaction))
    for alert in details.alerts:
        click.echo(f"alert: {sentence(alert, redaction)}")
    if details.last is not None:
        click.echo()
        _print_fields(fields_of_run(details.last, details.now, redaction))
    if details.attempts:
        if details.durations is not None:
            click.echo(durations_line(details.durations))
        click.echo()
        columns = columns_for(details.attempts, details.row.key)
        print_table(columns, details.attempts, View(details.now, redaction))
    for heading, lines in (
        ("extra runs", extra_run_lines(details)),
        ("next runs", upcoming_lines(details)),
    ):
        for number, line in enumerate(lines):
            if number == 0:
                click.echo(f"\n{heading}:")
            click.echo(f"    {line}")


def _print_fields(fields: dict[str, str]) -> None:
    width = max(map(len, fields)) + 1
    for name, value in fields.items():
        click.echo(f"{name + ':':{width}} {value}")


# --- what is known ------------------------------------------------------------------------


def read_details(
    schedules: ScheduleCollection,
    settings: Config,
    key: str,
    redaction: Redaction,
    *,
    upcoming: int = _UPCOMING,
) -> Details:
    """Read everything about one schedule or task, with so many upcoming occurrences."""
    schedule = schedules[key]
    now = schedules.now()
    row = schedules.shown_as_paused()(schedule.metadata().row)
    attempts = _attempts(schedule)
    progress = None
    if row.owner is not None and row.next_time is not None:
        progress = _progress_here(Occurrence(row.key, row.next_time), settings, redaction)
    return Details(
        row=row,
        now=now,
        alerts=open_alerts(schedules, key),
        attempts=attempts,
        last=None if attempts is None else _last(schedules, key, attempts),
        durations=_durations(schedule) if attempts else None,
        extra_runs=_extra_runs(schedules, key),
        upcoming=_upcoming(schedule, upcoming) if row.status in {WAITING, PAUSED} else [],
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
        "hosts": None if row.hosts is None else " ".join(row.hosts),
        "each_host": f"psched list '{row.key}@*' shows their rows" if row.each_host else None,
        "template": row.template,
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


def _progress_here(
    occurrence: Occurrence, settings: Config, redaction: Redaction
) -> Mapping[str, Any] | None:
    """The progress of a running task, if a master of this host runs it and answers; else None."""
    for _pid, answer in ask_all(socket_folders(os.environ)):
        if isinstance(answer, OSError) or served_by(answer) != table_of(settings):
            continue
        for worker in answer["workers"]:
            for task in worker["tasks"]:
                if task["occurrence"] == str(occurrence):
                    return shown_progress(task, redaction)
    return None


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


def _upcoming(schedule: Schedule, number: int) -> Sequence[UpcomingTime]:
    try:
        return schedule.next(number)
    except InvalidError:
        return []  # the row is invalid, or its trigger is loaded only on another host


def _extra_runs(schedules: Schedules, key: str) -> Sequence[Row]:
    """The rows of the extra runs of a schedule that have not ended, in the order of their runs."""
    found = schedules.list(
        prefix=prefix_of_extra_runs(key), status=STATES - ENDED, limit=_MOST_EXTRA_RUNS
    )
    return [each.row for each in found if schedule_of(each.key) == key]

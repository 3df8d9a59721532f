"""The command show."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from statistics import median
from typing import Any

import click

from psched.app import open_schedules
from psched.base.errors import InvalidError, NotSupportedError
from psched.base.texts import cut, visible
from psched.cli import options
from psched.cli.alerts.shown import alert_object, expected_text, open_alerts, sentence
from psched.cli.completion import complete_key
from psched.cli.exit_status import report_errors
from psched.cli.history.run_text import View, columns_for, exit_text, result, run_object, table_row
from psched.cli.options import ConfigLocation
from psched.cli.other_database import settings_to_read
from psched.cli.output import one_line
from psched.cli.running_here import progress_here
from psched.cli.schedules.columns import payload_beginning
from psched.cli.schedules.row_object import LONGEST_SHOWN, row_object
from psched.cli.schedules.status import overdue, shown_reason, shown_status
from psched.cli.text_table import print_table
from psched.cli.time_format import format_both, format_distance, format_took
from psched.config.monitoring.expect import PARTS, Expectations
from psched.core.attempts import given_back
from psched.core.definition import ping_setting, settings_of
from psched.core.history.records import Outcome
from psched.core.history.redaction import Redaction
from psched.core.history.run import Run
from psched.core.model import ENDED, PAUSED, WAITING, Occurrence, Row
from psched.core.operations.extra_runs import prefix_of_extra_runs, schedule_of
from psched.core.preview import UpcomingTime
from psched.core.schedule import Schedule, Schedules
from psched.core.selection import STATES
from psched.runner.progress import Progress

_INSTANTS = frozenset({"next_time", "next_run_time", "created_at", "claimed_at", "retain_until"})

_ATTEMPTS = 5
"""The number of attempts that are shown."""

_MEASURED = 50
"""The durations of so many finished runs are summarised."""

_EXTRA_RUNS = 5
"""The number of extra runs that are shown."""

_MOST_EXTRA_RUNS = 1000
"""The number of extra runs that are read, and shown as JSON."""

_TIMES = ("next_time", "next_run_time")

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


@click.command()
@click.argument("key", shell_complete=complete_key)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with every column.")
@options.database
@click.pass_obj
@report_errors
def show(location: ConfigLocation, key: str, *, as_json: bool) -> None:
    """Show everything about one schedule or task.

    Each field is on a line of its own; fields without a value are left out. Then follow the open
    alerts, the last run, the last attempts, how long the last 50 finished runs took, the extra runs
    that have not ended, and the next runs; psched history KEY shows more runs, and psched next KEY
    more times. Times are in your time zone (that of the variable TZ, else of the system) and, if
    that differs, in UTC.
    """
    settings = settings_to_read(location)
    redaction = Redaction(settings.redact)
    with open_schedules(settings) as schedules:
        schedule = schedules[key]
        row = schedules.shown_as_paused()(schedule.metadata().row)
        now = schedules.now()
        attempts = _attempts(schedule)
        last = None if attempts is None else _last(schedules, key, attempts)
        durations = _durations(schedule) if attempts else None
        upcoming = _upcoming(schedule) if row.status in {WAITING, PAUSED} else []
        extra_runs = _extra_runs(schedules, key)
        alerts = open_alerts(schedules, key)
    ping = ping_setting(row, settings)
    expect = settings_of(row, settings).expect
    progress = None
    if row.owner is not None and row.next_time is not None:
        progress = progress_here(Occurrence(row.key, row.next_time), settings, redaction)
    if as_json:
        made = row_object(row, now, redaction)
        made["progress"] = progress
        made["ping"] = ping
        made["last"] = None if last is None else run_object(last, redaction)
        if attempts is not None:
            made["attempts"] = [run_object(run, redaction, large=False) for run in attempts]
        made["durations"] = None if durations is None else asdict(durations)
        made["extra_runs"] = [_extra_run_object(each, now) for each in extra_runs]
        made["expect"] = {part: expect.get(part) for part in PARTS}
        made["alerts"] = [alert_object(alert, redaction) for alert in alerts]
        made["occurrences"] = [asdict(each) for each in upcoming]
        click.echo(json.dumps(made))
        return
    fields = _fields(row, now, redaction, ping) | _expect(expect)
    if progress is not None:
        fields["progress"] = visible(str(Progress(**progress)))
    _print_fields(fields)
    click.echo("".join(f"alert: {sentence(alert, redaction)}\n" for alert in alerts), nl=False)
    if last is not None:
        click.echo()
        _print_fields(_last_run(last, now, redaction))
    if attempts:
        if durations is not None:
            click.echo(
                f"the last {durations.runs} finished: median {format_took(durations.median)},"
                f" 95 % within {format_took(durations.p95)}"
            )
        click.echo()
        columns = columns_for(attempts, key)
        view = View(now, utc=False, redaction=redaction)
        print_table(columns, (table_row(run, columns, view) for run in attempts))
    for lines in _extra_run_lines(extra_runs, now), _upcoming_lines(upcoming, row, now):
        for line in lines:
            click.echo(line)


def _expect(expect: Expectations) -> dict[str, str]:
    """The field that says what is expected of the schedule, if anything is."""
    return {"expect": expected_text(expect)} if expect.any else {}


def _attempts(schedule: Schedule) -> Sequence[Run] | None:
    """The last attempts, the newest first; None if the store keeps no history."""
    try:
        return [*schedule.runs(outcome=[*Outcome], limit=_ATTEMPTS)]
    except NotSupportedError:
        return None


def _last(schedules: Schedules, key: str, attempts: Sequence[Run]) -> Run | None:
    """The last run, which can be an occurrence that ended without an attempt; None without such.

    Args:
        schedules: all schedules.
        key: the key of the schedule.
        attempts: its last attempts and those of its extra runs, the newest first.
    """
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


def _fields(row: Row, now: float, redaction: Redaction, ping: str | None) -> dict[str, str]:
    """The columns of a row that have a value, its label and note, and the name of its ping."""
    shown = row_object(row, now, redaction)
    known = {name: getattr(row, name) for name in Row.__slots__}
    # While an extra run holds the lease, the column is a note about the present attempt.
    known["attempt"] = given_back(row).attempt
    known |= {"status": shown_status(row, now), "cron": shown["cron"]}
    known |= {"reason": redaction.text(shown_reason(row)) or None, "ping": ping}
    if isinstance(shown["options"], dict):
        known |= {name: shown["options"].get(name) for name in ("label", "note")}
    return {
        name: _shown(name, value, redaction) for name, value in known.items() if value is not None
    }


def _shown(name: str, value: Any, redaction: Redaction) -> str:  # noqa: ANN401  # any column
    if name in _INSTANTS:
        return format_both(value)
    if name in {"data", "options"}:
        return payload_beginning(value, LONGEST_SHOWN, redaction)
    if isinstance(value, (str, bytes)):
        return one_line(value[:LONGEST_SHOWN])
    return str(value)


def _last_run(run: Run, now: float, redaction: Redaction) -> dict[str, str]:
    known = {
        "last run": f"{result(run)}, {format_distance(run.ended - now)}",
        "started": "" if run.started is None else format_both(int(run.started)),
        "ended": format_both(int(run.ended)),
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


def _print_fields(fields: dict[str, str]) -> None:
    width = max(map(len, fields)) + 1
    for name, value in fields.items():
        click.echo(f"{name + ':':{width}} {value}")


def _extra_runs(schedules: Schedules, key: str) -> Sequence[Row]:
    """The rows of the extra runs of a schedule that have not ended, in the order of their runs."""
    found = schedules.list(
        prefix=prefix_of_extra_runs(key), status=STATES - ENDED, limit=_MOST_EXTRA_RUNS
    )
    return [each.row for each in found if schedule_of(each.key) == key]


def _extra_run_object(row: Row, now: float) -> dict[str, Any]:
    made: dict[str, Any] = {name: getattr(row, name) for name in ("key", "type", *_TIMES)}
    return made | {"status": shown_status(row, now)}


def _extra_run_lines(extra_runs: Sequence[Row], now: float) -> Iterator[str]:
    if not extra_runs:
        return
    yield ""
    yield "extra runs:"
    for row in extra_runs[:_EXTRA_RUNS]:
        of = "" if row.next_time is None else f" of {format_both(row.next_time)}"
        starts = ""
        if row.owner is None and row.next_run_time is not None and row.next_run_time > now:
            starts = f", {format_distance(row.next_run_time - now)}"
        yield f"    {one_line(row.key)}{of}: {shown_status(row, now)}{starts}"
    if (more := len(extra_runs) - _EXTRA_RUNS) > 0:
        at_least = "at least " if len(extra_runs) == _MOST_EXTRA_RUNS else ""
        yield f"    and {at_least}{more} more"


def _upcoming_lines(upcoming: Sequence[UpcomingTime], row: Row, now: float) -> Iterator[str]:
    if not upcoming:
        return
    yield ""
    yield "next runs:"
    for each in upcoming:
        when = each.time if each.run_at is None else each.run_at
        distance = overdue(each, row, now) or format_distance(when - now)
        line = f"    {format_both(when)}  {distance}"
        yield f"{line}  # {each.note}" if each.note else line

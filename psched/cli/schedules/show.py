"""The command show."""

import json
from dataclasses import asdict
from typing import Any

import click

from psched.app import open_schedules
from psched.cli import options
from psched.cli.alerts.shown import alert_object, sentence
from psched.cli.completion import complete_key
from psched.cli.exit_status import report_errors
from psched.cli.history.run_text import View, columns_for, run_object, table_row
from psched.cli.options import ConfigLocation
from psched.cli.other_database import settings_to_read
from psched.cli.schedules.details import (
    Details,
    durations_line,
    extra_run_lines,
    fields_of,
    fields_of_run,
    read_details,
    upcoming_lines,
)
from psched.cli.schedules.row_object import row_object
from psched.cli.schedules.status import shown_status
from psched.cli.text_table import print_table, with_zone
from psched.config.monitoring.expect import PARTS
from psched.core.history.redaction import Redaction
from psched.core.model import Row

_TIMES = ("next_time", "next_run_time")


@click.command()
@click.argument("key", shell_complete=complete_key)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with every column.")
@options.zone()
@options.database
@click.pass_obj
@report_errors
def show(location: ConfigLocation, key: str, *, as_json: bool) -> None:
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
        click.echo(json.dumps(_object(details, redaction)))
    else:
        _print(details, redaction)


def _object(details: Details, redaction: Redaction) -> dict[str, Any]:
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
    made: dict[str, Any] = {name: getattr(row, name) for name in ("key", "type", *_TIMES)}
    return made | {"status": shown_status(row, now)}


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
        view = View(details.now, redaction)
        print_table(
            with_zone(columns, view.now),
            (table_row(run, columns, view) for run in details.attempts),
        )
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

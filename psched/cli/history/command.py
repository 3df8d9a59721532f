"""The command history."""

import json
from collections.abc import Collection, Iterator
from itertools import chain, islice

import click

from psched.app import open_schedules
from psched.base.errors import NotFoundError
from psched.base.texts import counted
from psched.cli import options
from psched.cli.completion import complete_key
from psched.cli.opening import settings_to_read
from psched.cli.shown import DUE, columns_for, error_lines, late_by, run_object, shown_status
from psched.cli.text_table import FIRST_ROWS, View, print_table
from psched.cli.time_format import format_distance, format_span, parse_since
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.core.history.records import Fate, Outcome
from psched.core.history.run import Run
from psched.core.model import WAITING, Row
from psched.reports.redaction import Redaction

_DEFAULT_LIMIT = 50  # the number of records in a table, unless the user chooses another one

_NONE = "no record; the setting history is none, so that no run is recorded"


@click.command()
@click.argument("key", required=False, shell_complete=complete_key)
@click.option("--failed", is_flag=True, help="Only what failed, was given up, or expired.")
@options.since("Only what ended")
@options.one_of(Outcome, "--outcome outcomes", "Only attempts that ended so")
@options.one_of(Fate, "--fate fates", "Only records of occurrences of which this became")
@options.types
@options.limit(default=_DEFAULT_LIMIT)
@click.option(
    "--errors", is_flag=True, help="Show the error and its traceback below each run that has one."
)
@options.zone()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@options.database
@click.pass_obj
def history(
    location: options.ConfigLocation,
    key: str | None,
    *,
    failed: bool,
    since: str | None,
    outcomes: Collection[str],
    fates: Collection[str],
    types: Collection[str],
    limit: int | None,
    errors: bool,
    as_json: bool,
) -> None:
    """Show what ran, how it ended, and what did not run.

    KEY is the key of a schedule or task, which may have been deleted since; without it, those of
    all are shown. The extra runs of a schedule (psched trigger, psched backfill) are shown with its
    own runs. The newest records come first.

    OUTCOME says how an attempt ended. FATE says what became of the occurrence; it is empty if
    the occurrence was tried again. Occurrences that never ran have no OUTCOME.

    A TIME is yesterday, 02:30, 2026-01-31T09:00, or Unix seconds. The head of the table names the
    zone of the times.
    """
    if failed and (outcomes or fates):
        raise click.UsageError("--failed selects outcomes and fates; leave out --outcome, --fate")
    if as_json and errors:
        raise click.UsageError("--errors is for the table, not for --json")
    settings = settings_to_read(location)
    redaction = Redaction(settings.redact)
    if limit is None and not as_json:
        limit = _DEFAULT_LIMIT
    with open_schedules(settings) as schedules:
        runs = schedules.runs(
            key,
            type=types or None,
            since=parse_since(since, schedules.now()),
            failed=failed,
            outcome=outcomes or None,
            fate=fates or None,
            # One more is read, to know whether there are more.
            limit=None if limit is None else limit + 1,
        )
        if as_json:
            number = 0
            for number, run in enumerate(islice(runs, limit), start=1):  # noqa: B007  # the last
                click.echo(json.dumps(run_object(run, redaction)))
        else:
            view = View(schedules.now(), redaction)
            number = _print(runs, key, limit, view, errors=errors)
        if not number and key is not None:
            _refuse_unknown(schedules, key, settings)
        if not number and not as_json:
            click.echo(_nothing(settings, all_of_them=not (failed or since or outcomes or fates)))


def _print(
    runs: Iterator[Run], key: str | None, limit: int | None, view: View, *, errors: bool
) -> int:
    shown = islice(runs, limit)
    first = [*islice(shown, FIRST_ROWS)]

    def details(run: Run) -> Iterator[str]:
        return error_lines(run, view.redaction) if errors else iter(())

    number = print_table(columns_for(first, key), chain(first, shown), view, details)
    if number:
        count = counted(number, "record")
        more = number == limit and next(runs, None) is not None
        click.echo(f"{count}; --limit N shows older ones" if more else count)
    return number


def _refuse_unknown(schedules: ScheduleCollection, key: str, settings: Config) -> None:
    """Raise an error if a key has no record at all; the text says why."""
    if next(schedules.runs(key, limit=1), None) is not None:
        return
    try:
        found = schedules.read(key)
    except NotFoundError:
        raise NotFoundError(
            f"no schedule has the key {key!r}, and the run history has no record of one"
        ) from None
    if settings.history == "none":
        raise NotFoundError(f"{key}: {_NONE}")
    raise NotFoundError(f"{key}: no run is recorded yet; {prospect(found.row, schedules.now())}")


def prospect(row: Row, now: float) -> str:
    """When a schedule runs that has no record."""
    status = shown_status(row, now)
    if row.next_run_time is None or status not in {WAITING, DUE}:
        return f"it is {status}"
    if status == WAITING:
        return f"its next run is {format_distance(row.next_run_time - now)}"
    late = late_by(row, now)
    return "it is due" if late is None else f"it has been due for {format_span(int(late))}"


def _nothing(settings: Config, *, all_of_them: bool) -> str:
    if settings.history == "none":
        return _NONE
    return "no record yet" if all_of_them else "no record matches"

"""The command backfill."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from psched.base.errors import InvalidError, ScheduleError, StoreError
from psched.base.quantities import format_duration
from psched.cli import changes, options
from psched.cli.changes import open_to_change
from psched.cli.exit_status import report_errors
from psched.cli.operate.trigger import overlap_option
from psched.cli.options import ConfigLocation
from psched.cli.other_database import settings_to_write
from psched.cli.schedules.chosen import Chosen, ask, choosing_with
from psched.cli.time_format import format_exactly, parse_time
from psched.client.collection import ScheduleCollection
from psched.client.selected import CAN_BE_TRIGGERED
from psched.config import Config
from psched.core.declare import When
from psched.core.model import Row
from psched.core.operations.backfills import Backfill, Stagger, check_backfill_overlap

_OPTIONS = {"start": "from", "end": "to"}
"""For each argument whose option has a different name: the name of the option."""


@click.command()
@choosing_with("Let so many of the runs become due per time")
@click.option("--from", "start", metavar="TIME", required=True, help="The first time to run.")
@click.option("--to", "end", metavar="TIME", required=True, help="The last time to run.")
@click.option("--again", is_flag=True, help="Also run times that have ended already.")
@overlap_option
@changes.message
@options.database
@click.pass_obj
@report_errors
def backfill(
    location: ConfigLocation,
    /,
    *,
    start: str,
    end: str,
    again: bool,
    overlap: str,
    message: str | None,
    **given: Any,  # noqa: ANN401  # the options of `choosing`
) -> None:
    """Run the missed times of a period.

    Each time of the schedule's trigger from TIME to TIME, both included, gets an extra run like
    those of psched trigger, with this time as its scheduled time. By default, they run one after
    the other, and become due as the last ones are expected to end. Times that have finished already
    are left out, and so are those that the schedule itself still has to run. If the command is
    interrupted, the same command adds the rest.

    KEYS are keys or patterns, in which * stands for any characters and ? for one; quote patterns.
    Patterns and conditions choose only schedules that match all of them and have not ended.

    A TIME is Unix seconds or ISO 8601, such as 2026-01-31T09:00; without an offset, it is in the
    time zone of the schedule. One backfill of a schedule has at most 10,000 times.
    """
    chosen = Chosen(**given)
    chosen.check()
    settings = settings_to_write(location)
    stagger = Stagger(chosen.rate)
    check_backfill_overlap(overlap, stagger)
    how: dict[str, Any] = {"rate": stagger, "again": again, "overlap": overlap}
    with open_to_change(settings, message) as schedules:
        rows = _rows(schedules, chosen)
        if not chosen.dry_run:
            ask([row.key for row in rows], chosen, "backfill")
        failed = False
        for row in rows:
            shown = _Shown(row, settings, dry_run=chosen.dry_run)
            try:
                times = shown.parse("from", start), shown.parse("to", end)
                shown.run(schedules, times, how)
            except (InvalidError, ScheduleError) as error:
                failed = True
                click.echo(f"Error: {row.key}: {_with_option(error)}", err=True)
        if not rows:
            click.echo("no schedule matches")
    if failed:
        sys.exit(1)


def _rows(schedules: ScheduleCollection, chosen: Chosen) -> Sequence[Row]:
    """The rows of the chosen schedules.

    Raises:
        NotFoundError: a schedule is named that does not exist.
    """
    if chosen.names_each(schedules):
        return [schedules.read(key).row for key in dict.fromkeys(chosen.keys)]
    found = (metadata.row for metadata in chosen.select(schedules))
    # What runs only once has no missed times.
    return [row for row in found if row.state in CAN_BE_TRIGGERED and row.cron is not None]


def _with_option(error: InvalidError | ScheduleError) -> str:
    if isinstance(error, InvalidError) and error.field in _OPTIONS:
        return str(InvalidError(_OPTIONS[error.field], error.problem))
    return str(error)


class _Shown:
    """The backfill of one schedule, which says what it does."""

    def __init__(self, row: Row, settings: Config, *, dry_run: bool) -> None:
        self._key = row.key
        self._zone = row.timezone or settings.timezone
        self._dry_run = dry_run
        self._done = Backfill(key=row.key, runs=[])

    def parse(self, option: str, text: str) -> When:
        """The instant that an option names."""
        return parse_time(option, text, self._zone) or 0

    def run(
        self, schedules: ScheduleCollection, times: tuple[When, When], how: dict[str, Any]
    ) -> None:
        """Backfill the schedule, and print what was done."""

        def note(done: Backfill) -> None:
            self._done = done

        try:
            done = schedules.backfill(self._key, *times, dry_run=self._dry_run, report=note, **how)
        except (KeyboardInterrupt, StoreError) as stopped:
            if not self._dry_run:
                text = f"stopped after {self._text(self._done)}; the same command adds the rest"
                click.echo(f"{self._key}: {text}", err=True)
            if isinstance(stopped, KeyboardInterrupt):
                raise click.Abort from None
            raise
        click.echo(f"{self._key}: {self._text(done)}")

    def _text(self, done: Backfill) -> str:
        number = len(done.runs)
        verb = "would be added" if self._dry_run else "added"
        text = f"{number} {'run' if number == 1 else 'runs'} {verb}"
        if done.first is not None and done.last is not None:
            first, last = (format_exactly(each, local=True) for each in (done.first, done.last))
            text += f", {first}" if first == last else f", {first} to {last}"
            text += f", due within {format_duration(done.within)}" if done.within else ""
        for count, what in (
            (done.existing, "there already"),
            (done.finished, "finished already"),
            (done.regular, "left to the regular runs"),
        ):
            text += f"; {count} {what}" if count else ""
        return text

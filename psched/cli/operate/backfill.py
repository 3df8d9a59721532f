"""The command backfill."""

import sys
from typing import Any

import click

from psched.app import CLOCK
from psched.base.errors import InvalidError, ScheduleError, StoreError
from psched.base.quantities import format_duration
from psched.base.texts import counted
from psched.cli.operate.chosen import (
    NONE,
    Chosen,
    about,
    ask,
    changing,
    left_over,
    say_not_done,
)
from psched.cli.operate.commands import overlap_option
from psched.cli.time_format import format_time, local_times, parse_time
from psched.client.arguments import stored_key
from psched.client.collection import ScheduleCollection
from psched.core.operations.backfills import Backfill, Stagger, check_backfill_overlap

_OPTIONS = {"start": "from", "end": "to"}
"""For each argument whose option has a different name: the name of the option."""


@changing(
    click.option("--from", "start", metavar="TIME", required=True, help="The first time to run."),
    click.option("--to", "end", metavar="TIME", required=True, help="The last time to run."),
    click.option("--again", is_flag=True, help="Also run times that have ended already."),
    overlap_option,
    rate="Let so many of the runs become due per time",
)
def backfill(chosen: Chosen, *, start: str, end: str, again: bool, overlap: str) -> None:
    """Run the missed times of a period.

    Each time of the schedule's trigger from TIME to TIME, both included, gets an extra run like
    those of psched trigger, with this time as its scheduled time. By default, they run one after
    the other, and become due as the last ones are expected to end. Times that have finished already
    are left out, and so are those that the schedule itself still has to run. If the command is
    interrupted, the same command adds the rest.

    KEYS are keys or patterns, in which * stands for any characters and ? for one; quote patterns.
    Patterns and conditions choose only schedules that match all of them and have not ended.

    A TIME is yesterday 02:30, 2026-01-31T09:00 or Unix seconds; without an offset, it is in your
    time zone. One backfill of a schedule has at most 10,000 times.
    """
    with chosen.open() as schedules:
        stagger = Stagger(chosen.rate)
        check_backfill_overlap(overlap, stagger)
        times = (
            parse_time("from", start, CLOCK.wall(), is_next=False) or 0,
            parse_time("to", end, CLOCK.wall(), is_next=False) or 0,
        )
        how: dict[str, Any] = {"rate": stagger, "again": again, "overlap": overlap}
        names_each = chosen.names_each(schedules)
        if names_each:
            keys = [*dict.fromkeys(map(stored_key, chosen.keys))]
        else:
            keys = [each.row.key for each in chosen.select(schedules).to_backfill()]
        if not chosen.dry_run:
            ask(keys, chosen, "backfill")
        result = _Result(chosen, names_each=names_each)
        for key in keys:
            try:
                shown = _Shown(key, dry_run=chosen.dry_run)
                result.add(shown.run(schedules, times, how))
            except (InvalidError, ScheduleError) as error:
                result.refuse(key, error)
        result.show()
    if result.failed:
        sys.exit(1)


class _Result:
    """What became of all chosen schedules."""

    def __init__(self, chosen: Chosen, *, names_each: bool) -> None:
        self.failed = 0
        self._chosen = chosen
        self._names_each = names_each
        self._schedules = self._runs = self._skipped = 0

    def add(self, done: Backfill) -> None:
        """Note the backfill of a schedule."""
        self._schedules += 1
        self._runs += len(done.runs)

    def refuse(self, key: str, error: InvalidError | ScheduleError) -> None:
        """Print why a schedule was not backfilled."""
        if isinstance(error, ScheduleError) and not self._names_each:
            self._skipped += 1
            click.echo(f"{key}: skipped: {local_times(str(error))}", err=True)
            return
        self.failed += 1
        if self._chosen.dry_run:
            say_not_done(key, error, "backfilled", _OPTIONS)
        else:
            click.echo(f"Error: {local_times(about(key, error, _OPTIONS))}", err=True)

    def show(self) -> None:
        """Print the sum, if several schedules were chosen."""
        number = self._schedules + self._skipped + self.failed
        if not number:
            click.echo(NONE)
        if number < 2:  # noqa: PLR2004  # the line about the schedule says it
            return
        verb = "would be added" if self._chosen.dry_run else "added"
        text = f"{counted(self._schedules, 'schedule')}: {counted(self._runs, 'run')} {verb}"
        click.echo("; ".join([text, *left_over(self._skipped, self.failed, "backfilled")]))


class _Shown:
    """The backfill of one schedule, which says what it does."""

    def __init__(self, key: str, *, dry_run: bool) -> None:
        self._key = key
        self._dry_run = dry_run
        self._done = Backfill(key=key, runs=[])

    def run(
        self, schedules: ScheduleCollection, times: tuple[int, int], how: dict[str, Any]
    ) -> Backfill:
        """Backfill the schedule, and print and return what was done."""

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
        return done

    def _text(self, done: Backfill) -> str:
        verb = "would be added" if self._dry_run else "added"
        text = f"{counted(len(done.runs), 'run')} {verb}"
        if done.first is not None and done.last is not None:
            first, last = format_time(done.first), format_time(done.last)
            text += f", {first}" if first == last else f", {first} to {last}"
            text += f", due within {format_duration(done.within)}" if done.within else ""
        for number, what in (
            (done.existing, "there already"),
            (done.finished, "finished already"),
            (done.regular, "left to the regular runs"),
        ):
            text += f"; {number} {what}" if number else ""
        return text

"""The command backfill."""

import sys
from collections.abc import Callable
from functools import partial

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
        names_each = chosen.names_each(schedules)
        if names_each:
            keys = [*dict.fromkeys(map(stored_key, chosen.keys))]
        else:
            keys = [each.row.key for each in chosen.select(schedules).to_backfill()]
        if not chosen.dry_run:
            ask(keys, chosen, "backfill")
        done, skipped, failed = list[Backfill](), 0, 0
        for key in keys:
            run = partial(
                schedules.backfill, key, *times, rate=stagger, again=again, overlap=overlap
            )
            try:
                done.append(_backfill(run, key, dry_run=chosen.dry_run))
            except (InvalidError, ScheduleError) as error:
                if isinstance(error, ScheduleError) and not names_each:
                    skipped += 1
                    click.echo(f"{key}: skipped: {local_times(str(error))}", err=True)
                    continue
                failed += 1
                if chosen.dry_run:
                    say_not_done(key, error, "backfilled", _OPTIONS)
                else:
                    click.echo(f"Error: {local_times(about(key, error, _OPTIONS))}", err=True)
        if not keys:
            click.echo(NONE)
        if len(keys) > 1:  # else the line about the schedule says it
            number = sum(len(each.runs) for each in done)
            text = f"{counted(len(done), 'schedule')}: {_added(number, dry_run=chosen.dry_run)}"
            click.echo("; ".join([text, *left_over(skipped, failed, "backfilled")]))
    if failed:
        sys.exit(1)


def _backfill(run: Callable[..., Backfill], key: str, *, dry_run: bool) -> Backfill:
    """Backfill one schedule; print and return what was done, also if it was interrupted."""
    so_far = Backfill(key=key, runs=[])

    def note(done: Backfill) -> None:
        nonlocal so_far
        so_far = done

    try:
        done = run(dry_run=dry_run, report=note)
    except (KeyboardInterrupt, StoreError) as stopped:
        if not dry_run:
            text = f"stopped after {_text(so_far, dry_run=False)}; the same command adds the rest"
            click.echo(f"{key}: {text}", err=True)
        if isinstance(stopped, KeyboardInterrupt):
            raise click.Abort from None
        raise
    click.echo(f"{key}: {_text(done, dry_run=dry_run)}")
    return done


def _added(number: int, *, dry_run: bool) -> str:
    return f"{counted(number, 'run')} {'would be added' if dry_run else 'added'}"


def _text(done: Backfill, *, dry_run: bool) -> str:
    text = _added(len(done.runs), dry_run=dry_run)
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

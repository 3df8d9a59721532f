"""The commands that run, stop, end, pause and skip the schedules that a user chooses."""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import click

from psched.app import CLOCK, open_schedules
from psched.base.errors import InvalidError, ScheduleError, StoreError
from psched.base.quantities import format_duration
from psched.base.texts import counted
from psched.cli import opening, options
from psched.cli.completion import complete_key
from psched.cli.opening import settings_to_read, settings_to_write
from psched.cli.operate import pause_rules, waiting
from psched.cli.operate.chosen import (
    NONE,
    Chosen,
    about,
    ask,
    change_chosen,
    changing,
    left_over,
    say_not_done,
)
from psched.cli.options import ConfigLocation
from psched.cli.time_format import format_time, local_times, parse_time, reader_zone
from psched.client.access import stored_key
from psched.client.verbs.ending import Cancel, ForceFinish, Requeue, Stop
from psched.client.verbs.extra_runs import Trigger
from psched.client.verbs.pausing import Pause, Resume
from psched.client.verbs.skipping import Skip
from psched.core.asked_time import parse_next
from psched.core.operations.backfills import Backfill, Stagger, check_backfill_overlap
from psched.core.operations.extra_runs import OVERLAPS, QUEUE
from psched.core.operations.skipping import MOST
from psched.reports.redaction import Redaction

_overlap = click.option(
    "--overlap",
    type=click.Choice(OVERLAPS),
    default=QUEUE,
    help="If another run of the schedule is going on: queue waits for its end, skip gives this run"
    " up, parallel starts it nevertheless. Default: queue.",
)

_OF_A_BACKFILL = {"start": "from", "end": "to"}
"""For each argument whose option has a different name: the name of the option."""


@changing(
    click.option(
        "--data",
        metavar="JSON",
        help="Data for the run, in place of those of the schedule; - reads them from standard"
        " input.",
    ),
    _overlap,
    click.option("--at", metavar="TIME", help="Do not start before TIME. Default: now."),
    waiting.wait,
    waiting.as_json,
    kind=waiting.WaitingCommand,
)
def trigger(
    chosen: Chosen,
    *,
    data: str | None,
    overlap: str,
    at: str | None,
    wait: float | None,
    as_json: bool,
) -> None:
    """Run schedules now, beside their regular runs.

    Each extra run is a task with the schedule's type, data and options, and with a key of its own:
    the schedule's key, ! and 16 letters and digits. The regular runs keep their times. A paused
    schedule runs, too. psched history KEY shows the extra runs of KEY.

    KEYS are keys or patterns, in which * stands for any characters and ? for one; quote patterns.
    Patterns and conditions choose only schedules that match all of them and have not ended.

    With --wait, name one KEY. If the task has set a result, it is printed on a line of its own, as
    JSON. A TIME is 18:00, tomorrow 09:00, 2026-01-31T09:00 or Unix seconds; without an offset, it
    is in your time zone.
    """
    if as_json and wait is None:
        raise click.UsageError("--json needs --wait")
    with chosen.open() as schedules:
        run_at = parse_time("at", at, CLOCK.wall())
        own = None if data is None else waiting.json_data(data)
        verb = Trigger(own, overlap=overlap, run_at=run_at)
        if wait is None or chosen.dry_run:
            change_chosen(schedules, chosen, verb)
            return
        if len(chosen.keys) != 1 or not chosen.names_each(schedules):
            raise click.UsageError("--wait needs one KEY, and no condition")
        task = schedules[verb.apply(schedules.access, chosen.keys[0])]
        waiting.wait_for(task, wait, Redaction(chosen.settings.redact), as_json=as_json)


@changing(
    click.option("--from", "start", metavar="TIME", required=True, help="The first time to run."),
    click.option("--to", "end", metavar="TIME", required=True, help="The last time to run."),
    click.option("--again", is_flag=True, help="Also run times that have ended already."),
    _overlap,
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
                    say_not_done(key, error, "backfilled", _OF_A_BACKFILL)
                else:
                    click.echo(f"Error: {local_times(about(key, error, _OF_A_BACKFILL))}", err=True)
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
            so_far_text = describe_backfill(so_far, dry_run=False)
            text = f"stopped after {so_far_text}; the same command adds the rest"
            click.echo(f"{key}: {text}", err=True)
        if isinstance(stopped, KeyboardInterrupt):
            raise click.Abort from None
        raise
    click.echo(f"{key}: {describe_backfill(done, dry_run=dry_run)}")
    return done


def _added(number: int, *, dry_run: bool) -> str:
    return f"{counted(number, 'run')} {'would be added' if dry_run else 'added'}"


def describe_backfill(done: Backfill, *, dry_run: bool) -> str:
    """What a backfill of one schedule has done, or would do."""
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


@changing(shows_times=False)
def stop(chosen: Chosen) -> None:
    """Stop what runs now: its schedule goes on.

    KEYS are keys or patterns, in which * stands for any characters and ? for one; quote patterns.
    Patterns and conditions choose only those that run, and that match all of them.

    The worker stops the task with TERM, and with KILL after graceful_kill_limit. The run is not
    tried again, and the schedule goes on with its next time. A task that runs only once is
    cancelled. To let a schedule run no more, use psched cancel.
    """
    with chosen.open() as schedules:
        change_chosen(schedules, chosen, Stop())


@changing(shows_times=False)
def cancel(chosen: Chosen) -> None:
    """Cancel tasks or schedules: they run no more.

    A schedule runs no more until psched requeue, or until edit or apply change its trigger or a
    time. To stop only its present run, use psched stop.

    KEYS are keys or patterns, in which * stands for any characters and ? for one; quote patterns.
    Patterns and conditions choose only those that have not ended, and that match all of them.

    If a task is running, its worker stops the task. A task that finishes before it is stopped gets
    the status finished, not cancelled.
    """
    with chosen.open() as schedules:
        change_chosen(schedules, chosen, Cancel())


@changing(shows_times=False)
def force_finish(chosen: Chosen) -> None:
    """Mark tasks or schedules as finished.

    They run no more until psched requeue, or until edit or apply change a trigger or a time. If a
    task is running, its worker stops the task first.

    KEYS are keys or patterns, in which * stands for any characters and ? for one; quote patterns.
    Patterns and conditions choose only those that have not ended, and that match all of them.
    """
    with chosen.open() as schedules:
        change_chosen(schedules, chosen, ForceFinish())


@changing(
    click.option("--failed", is_flag=True, help="The same as --status failed."),
    click.option("--at", metavar="TIME", help="Do not start before TIME. Default: now."),
)
def requeue(chosen: Chosen, *, failed: bool, at: str | None) -> None:
    """Run again what ended, was quarantined or is paused.

    KEYS are keys or patterns, in which * stands for any characters and ? for one; quote patterns.
    Patterns and conditions choose only those that match all of them. Finished and cancelled tasks
    are left out unless --status names them. For example, this runs all tasks again that have failed
    with a timeout, ten per second:

        psched requeue --failed --reason timeout --rate 10/s

    Attempts are counted from 1 again. A TIME is 18:00, tomorrow 09:00,
    2026-01-31T09:00 or Unix seconds; without an offset, it is in your time zone.
    """
    if failed:
        chosen = replace(chosen, states=(*chosen.states, "failed"))
    with chosen.open() as schedules:
        change_chosen(schedules, chosen, Requeue(parse_time("at", at, CLOCK.wall())))


@changing(
    click.option(
        "--until",
        metavar="TIME",
        help="Resume at TIME: 18:00 (the next one), tomorrow 08:00, 2026-11-26T08:00 or +2h."
        " Default: not before psched resume.",
    ),
    click.option(
        "--list",
        "is_list",
        is_flag=True,
        help="Show the types that are paused, and change nothing.",
    ),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="With --list: show each as one JSON object per line.",
    ),
)
def pause(chosen: Chosen, *, until: str | None, is_list: bool, as_json: bool) -> None:
    """Pause schedules or tasks, also until a time.

    KEYS are keys or patterns, in which * stands for any characters and ? for one; quote patterns.
    Patterns and conditions choose those that wait, run or are paused now, and that match all of
    them. Schedules that are added later are not paused.

    They do not run until they are resumed. With --all, or with --type alone, everything or the type
    is paused, also what is added later.

    A running task goes on; the pause applies when it has ended. If a schedule is paused already,
    the new end and the new message replace the former ones. A TIME without an offset is in
    your time zone. At this time a worker resumes the schedule as psched resume does.
    """
    if is_list:
        if chosen.chooses or until is not None:
            raise click.UsageError("--list changes nothing; leave out KEYS, conditions and --until")
        with open_schedules(settings_to_read(chosen.location)) as schedules:
            pause_rules.list_pauses(schedules, as_json=as_json)
        return
    if as_json:
        raise click.UsageError("--json needs --list")
    with chosen.open() as schedules:
        now = schedules.now()
        end = None if until is None else parse_next("until", until, reader_zone(), now)
        if types := pause_rules.chosen_types(chosen):
            pause_rules.pause_types(schedules, types, end, chosen)
        else:
            change_chosen(schedules, chosen, Pause(end))


@changing(
    click.option(
        "--backfill",
        is_flag=True,
        help="Skip nothing: the setting catchup decides which of the missed times run.",
    ),
    shows_times=False,
)
def resume(chosen: Chosen, *, backfill: bool) -> None:
    """Let paused schedules or tasks run again.

    KEYS are keys or patterns, in which * stands for any characters and ? for one; quote patterns.
    Patterns and conditions choose only those that are paused, and that match all of them. --all,
    or --type alone, ends the pause of everything or of the type; schedules that are paused by their
    keys stay paused.

    What fell due during the pause is skipped, which psched history and psched why show. Tasks that
    run only once are not skipped, but run now if they were due.
    """
    with chosen.open() as schedules:
        if types := pause_rules.chosen_types(chosen):
            pause_rules.resume_types(schedules, types, chosen, backfill=backfill)
        else:
            change_chosen(schedules, chosen, Resume(backfill))


@changing(
    click.option(
        "-n",
        "number",
        type=click.IntRange(1, MOST),
        default=1,
        metavar="N",
        help="Number of runs to leave out. Default: 1.",
    )
)
def skip(chosen: Chosen, *, number: int) -> None:
    """Leave out the next runs of schedules.

    The next three runs before and after the change are shown. psched history and psched why tell
    which runs were left out, by whom, and why (-m).

    KEYS are keys or patterns, in which * stands for any characters and ? for one; quote patterns.
    Patterns and conditions choose only schedules that match all of them, have not ended, and do not
    run only once. For example, this leaves out the next two runs of a schedule:

        psched skip nightly -n 2 -m holidays

    A schedule that runs now cannot be skipped before this run has ended. A run that has failed and
    would be tried again is left out, too. A paused schedule stays paused.
    """
    with chosen.open() as schedules:
        change_chosen(schedules, chosen, Skip(number))


@click.command()
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, shell_complete=complete_key)
@opening.message
@options.database
@click.pass_obj
def delete(location: ConfigLocation, keys: tuple[str, ...], message: str | None) -> None:
    """Delete schedules or tasks.

    If a task is running, its worker stops the task, and then deletes the row. The command ends at
    the first KEY that does not exist.
    """
    with opening.open_to_change(settings_to_write(location), message) as schedules:
        for key in keys:
            is_deleted = schedules[key].delete()
            result = "deleted" if is_deleted else "will be deleted when its task has stopped"
            click.echo(f"{key}: {result}")

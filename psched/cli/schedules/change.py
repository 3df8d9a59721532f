"""The commands that end schedules and tasks, or run them again."""

from functools import partial
from typing import Any

import click

from psched.app import CLOCK
from psched.cli import changes, options
from psched.cli.changes import open_to_change
from psched.cli.completion import complete_key
from psched.cli.exit_status import report_errors
from psched.cli.options import ConfigLocation
from psched.cli.other_database import settings_to_write
from psched.cli.schedules.chosen import Chosen, Verb, change_chosen, choosing
from psched.cli.time_format import parse_time
from psched.client.collection import ScheduleCollection
from psched.client.selected import SelectedSchedules
from psched.client.verbs.ending import Requeue

_STOP = Verb(
    "stop",
    "stopped",
    ScheduleCollection.stop,
    SelectedSchedules.stop,
    marked="its run is being stopped",
)

_CANCEL = Verb(
    "cancel", "cancelled", ScheduleCollection.cancel, SelectedSchedules.cancel, ends=True
)

_FINISH = Verb(
    "force-finish",
    "finished",
    ScheduleCollection.force_finish,
    SelectedSchedules.force_finish,
    ends=True,
)


@click.command()
@choosing
@changes.message
@options.database
@click.pass_obj
@report_errors
def stop(location: ConfigLocation, /, message: str | None, **given: Any) -> None:  # noqa: ANN401
    """Stop what runs now: its schedule goes on.

    KEYS are keys or patterns, in which * stands for any characters and ? for one; quote patterns.
    Patterns and conditions choose only those that run, and that match all of them.

    The worker stops the task with TERM, and with KILL after graceful_kill_limit. The run is not
    tried again, and the schedule goes on with its next time. A task that runs only once is
    cancelled. To let a schedule run no more, use psched cancel.
    """
    chosen = Chosen(**given)
    chosen.check()
    with open_to_change(settings_to_write(location), message) as schedules:
        change_chosen(schedules, chosen, _STOP)


@click.command()
@choosing
@changes.message
@options.database
@click.pass_obj
@report_errors
def cancel(location: ConfigLocation, /, message: str | None, **given: Any) -> None:  # noqa: ANN401
    """Cancel tasks or schedules: they run no more.

    A schedule runs no more until psched requeue, or until edit or apply change its trigger or a
    time. To stop only its present run, use psched stop.

    KEYS are keys or patterns, in which * stands for any characters and ? for one; quote patterns.
    Patterns and conditions choose only those that have not ended, and that match all of them.

    If a task is running, its worker stops the task. A task that finishes before it is stopped gets
    the status finished, not cancelled.
    """
    chosen = Chosen(**given)
    chosen.check()
    with open_to_change(settings_to_write(location), message) as schedules:
        change_chosen(schedules, chosen, _CANCEL)


@click.command("force-finish")
@choosing
@changes.message
@options.database
@click.pass_obj
@report_errors
def force_finish(location: ConfigLocation, /, message: str | None, **given: Any) -> None:  # noqa: ANN401
    """Mark tasks or schedules as finished.

    They run no more until psched requeue, or until edit or apply change a trigger or a time. If a
    task is running, its worker stops the task first.

    KEYS are keys or patterns, in which * stands for any characters and ? for one; quote patterns.
    Patterns and conditions choose only those that have not ended, and that match all of them.
    """
    chosen = Chosen(**given)
    chosen.check()
    with open_to_change(settings_to_write(location), message) as schedules:
        change_chosen(schedules, chosen, _FINISH)


@click.command()
@choosing
@click.option("--failed", is_flag=True, help="The same as --status failed.")
@click.option("--at", metavar="TIME", help="Do not start before TIME. Default: now.")
@changes.message
@options.zone()
@options.database
@click.pass_obj
@report_errors
def requeue(
    location: ConfigLocation,
    /,
    *,
    failed: bool,
    at: str | None,
    message: str | None,
    **given: Any,  # noqa: ANN401  # the options of `choosing`
) -> None:
    """Run again what ended, was quarantined or is paused.

    KEYS are keys or patterns, in which * stands for any characters and ? for one; quote patterns.
    Patterns and conditions choose only those that match all of them. Finished and cancelled tasks
    are left out unless --status names them. For example, this runs all tasks again that have failed
    with a timeout, ten per second:

        psched requeue --failed --reason timeout --rate 10/s

    Attempts are counted from 1 again. A TIME is 18:00, tomorrow 09:00,
    2026-01-31T09:00 or Unix seconds; without an offset, it is in your time zone.
    """
    given["states"] = (*given["states"], *(["failed"] if failed else []))
    chosen = Chosen(**given)
    chosen.check()
    settings = settings_to_write(location)
    run_at = parse_time("at", at, CLOCK.wall())

    def requeue_one(schedules: ScheduleCollection, key: str) -> None:
        schedules.requeue(key, run_at)

    def preview_one(schedules: ScheduleCollection, key: str) -> None:
        # A selection would leave out what is finished or cancelled.
        Requeue().preview(schedules.access, schedules[key].metadata().row)

    many = partial(SelectedSchedules.requeue, run_at=run_at)
    verb = Verb("requeue", "requeued", requeue_one, many, preview_one=preview_one)
    with open_to_change(settings, message) as schedules:
        change_chosen(schedules, chosen, verb)


@click.command()
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, shell_complete=complete_key)
@changes.message
@options.database
@click.pass_obj
@report_errors
def delete(location: ConfigLocation, keys: tuple[str, ...], message: str | None) -> None:
    """Delete schedules or tasks.

    If a task is running, its worker stops the task, and then deletes the row. The command ends at
    the first KEY that does not exist.
    """
    with open_to_change(settings_to_write(location), message) as schedules:
        for key in keys:
            is_deleted = schedules[key].delete()
            result = "deleted" if is_deleted else "will be deleted when its task has stopped"
            click.echo(f"{key}: {result}")

"""The commands that change existing schedules and tasks: cancel, requeue, delete."""

import sys
from collections.abc import Callable, Iterable

import click

from psched.base.errors import InvalidError, ScheduleError
from psched.cli import changes, options
from psched.cli.changes import open_to_change
from psched.cli.completion import complete_key
from psched.cli.exit_status import report_errors
from psched.cli.options import ConfigLocation
from psched.cli.other_database import settings_to_write
from psched.cli.time_format import parse_time


@click.command()
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, shell_complete=complete_key)
@changes.message
@options.database
@click.pass_obj
@report_errors
def cancel(location: ConfigLocation, keys: tuple[str, ...], message: str | None) -> None:
    """Cancel tasks or schedules: they never run again.

    If a task is running, its worker stops the task. A task that finishes before it is stopped gets
    the status finished, not cancelled.
    """
    with open_to_change(settings_to_write(location), message) as schedules:

        def cancel_one(key: str) -> str:
            is_cancelled = schedules[key].cancel()
            return "cancelled" if is_cancelled else "will be cancelled when its task has stopped"

        _for_each(keys, cancel_one)


@click.command()
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, shell_complete=complete_key)
@click.option("--at", metavar="TIME", help="Do not start before TIME. Default: now.")
@changes.message
@options.database
@click.pass_obj
@report_errors
def requeue(
    location: ConfigLocation, keys: tuple[str, ...], at: str | None, message: str | None
) -> None:
    """Run again what ended, was quarantined or is paused.

    Attempts are counted from 1 again. A TIME is Unix seconds or ISO 8601, such as
    2026-01-31T09:00; without an offset, it is in the configured timezone.
    """
    settings = settings_to_write(location)
    run_at = parse_time("at", at, settings.timezone)
    with open_to_change(settings, message) as schedules:

        def requeue_one(key: str) -> str:
            schedules[key].requeue(run_at)
            return "requeued"

        _for_each(keys, requeue_one)


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


def _for_each(keys: Iterable[str], change: Callable[[str], str]) -> None:
    """Change the schedule of each key, and print each result.

    If there is an error for a key, the command continues with the next key, and exits with status 1
    at the end.
    """
    failed = False
    for key in keys:
        try:
            click.echo(f"{key}: {change(key)}")
        except (InvalidError, ScheduleError) as error:
            failed = True
            click.echo(f"Error: {error}", err=True)
    if failed:
        sys.exit(1)

"""Converts errors to messages on standard error and to exit statuses."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec, TypeVar

import click

from psched.base.errors import ConfigError, PschedError
from psched.base.texts import brief, visible
from psched.cli.output import unfilter_output
from psched.config.references import current_folder
from psched.triggers.custom import Call, NextAfter, loading_by

P = ParamSpec("P")
R = TypeVar("R")


def report_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Decorate a command: psched's errors become a line on standard error and exit status 1.

    While the command runs, users' trigger classes are loaded and called in a child process.
    """

    @wraps(command)
    def reporting(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with loading_by(_find_by_helper):
                return command(*args, **kwargs)
        except BrokenPipeError:
            raise  # click exits with status 1 without a message
        except (PschedError, OSError) as error:  # OSError: the disk is full, or a path unreadable
            # Commands that show no time, such as health, would load it at each start.
            from psched.cli.time_format import local_times  # noqa: PLC0415

            raise click.ClickException(_deleted_folder(error) or local_times(str(error))) from error

    return reporting


def _deleted_folder(error: Exception) -> str | None:
    """What a system call means that found no file and names none: the current folder is gone."""
    if isinstance(error, FileNotFoundError) and error.filename is None:
        try:
            current_folder()
        except FileNotFoundError as deleted:
            return deleted.strerror
    return None


def _find_by_helper(call: Call) -> NextAfter:
    from psched.cli.trigger_helper import find  # noqa: PLC0415  # few commands need it

    return find(call)


def run_and_exit(run_master: Callable[[], int]) -> NoReturn:
    """Run a master, and exit with its status. Print an error at its start on standard error."""
    from psched.base.log_lines import is_journal  # noqa: PLC0415  # only for masters, as what follows
    from psched.master.generation_spec import BAD_CONFIG  # noqa: PLC0415
    from psched.master.pidfile import AlreadyRunningError  # noqa: PLC0415
    from psched.master.reports.sd_notify import Notifier  # noqa: PLC0415
    from psched.service.run import ALREADY_RUNNING  # noqa: PLC0415

    unfilter_output()
    try:
        status = run_master()
    except (ConfigError, AlreadyRunningError) as error:
        # In systemd's journal, each line needs the priority of an error.
        prefix = "<3>" if is_journal(2) else ""
        for line in f"Error: {visible(str(error), lines=True)}".split("\n"):
            click.echo(prefix + line, err=True)
        # The service manager shows this line in the status of the service, which has ended then.
        Notifier().send(STATUS=f"cannot start: {brief(str(error))}")
        status = BAD_CONFIG if isinstance(error, ConfigError) else ALREADY_RUNNING
    sys.exit(status)

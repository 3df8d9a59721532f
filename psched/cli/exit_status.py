"""Turns errors into a message on standard error and an exit status."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec, TypeVar

import click

from psched.base.errors import ConfigError, PschedError
from psched.base.texts import visible
from psched.cli.output import unfilter_output
from psched.triggers.custom import Call, NextAfter, loading_by

P = ParamSpec("P")
R = TypeVar("R")


def report_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Decorate a command: psched's errors become a line on standard error and exit status 1.

    While the command runs, a child process loads and calls users' trigger classes.
    """

    @wraps(command)
    def reporting(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with loading_by(_find_by_helper):
                return command(*args, **kwargs)
        except BrokenPipeError:
            raise  # click handles it
        except (PschedError, OSError) as error:  # OSError: a full disk, an unreadable path
            raise click.ClickException(str(error)) from error

    return reporting


def _find_by_helper(call: Call) -> NextAfter:
    from psched.cli.trigger_helper import find  # noqa: PLC0415  # few schedules have such triggers

    return find(call)


def run_and_exit(run_master: Callable[[], int]) -> NoReturn:
    """Run a master, and exit with its status; print a startup error on standard error."""
    from psched.master.generation_spec import BAD_CONFIG  # noqa: PLC0415
    from psched.master.pidfile import AlreadyRunningError  # noqa: PLC0415
    from psched.service.run import ALREADY_RUNNING  # noqa: PLC0415

    unfilter_output()
    try:
        status = run_master()
    except (ConfigError, AlreadyRunningError) as error:
        click.echo(f"Error: {visible(str(error), lines=True)}", err=True)
        status = BAD_CONFIG if isinstance(error, ConfigError) else ALREADY_RUNNING
    sys.exit(status)

"""What a command says when it is refused: one clear line, and an exit status."""

import errno
import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import click

from psched.base.errors import ConfigError, InvalidError, LoadError, ScheduleError, StoreError
from psched.base.texts import visible
from psched.cli.output import unfilter_output
from psched.triggers.custom import Call, NextAfter, loading_by

P = ParamSpec("P")
R = TypeVar("R")


def refusing(command: Callable[P, R]) -> Callable[P, R]:
    """Turn what psched raises on purpose into a line on standard error and exit status 1.

    Triggers of the users' own are asked by a child meanwhile.
    """

    @wraps(command)
    def refused(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with loading_by(_by_a_child):
                return command(*args, **kwargs)
        except (ConfigError, InvalidError, LoadError, ScheduleError, StoreError) as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            # A folder that cannot be made, a full disk. Of a reader that has left click knows.
            if error.errno == errno.EPIPE:
                raise
            raise click.ClickException(str(error)) from error

    return refused


def _by_a_child(call: Call) -> NextAfter:
    from psched.cli.schedules.trigger_child import find  # noqa: PLC0415  # few schedules have such triggers

    return find(call)


def serving(serve: Callable[[], int]) -> None:
    """Run a master and exit with its status."""
    from psched.master.generation_spec import BAD_CONFIG  # noqa: PLC0415
    from psched.master.pidfile import AlreadyRunningError  # noqa: PLC0415
    from psched.service.run import ALREADY_RUNNING  # noqa: PLC0415

    unfilter_output()
    try:
        status = serve()
    except ConfigError as error:
        click.echo(f"Error: {visible(str(error), lines=True)}", err=True)
        status = BAD_CONFIG
    except AlreadyRunningError as error:
        click.echo(f"Error: {visible(str(error), lines=True)}", err=True)
        status = ALREADY_RUNNING
    sys.exit(status)

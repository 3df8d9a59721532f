"""Options that several commands have."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])

HELP = {"help_option_names": ["-h", "--help"]}
"""For a command's context_settings."""

Place = tuple[str | None, str | None]
"""What `configuration` passes on: path of the configuration file, and environment."""


_CONFIG: dict[str, Any] = {
    "type": click.Path(dir_okay=False),
    "help": "Configuration file. Default: $PSCHED_CONFIG, config/psched.yml,"
    " /etc/psched/psched.yml; with none, a database in your state folder.",
}
_ENVIRONMENT: dict[str, Any] = {
    "help": "Section of the configuration file. Default: $PSCHED_ENV, else development."
}


def configuration(command: F) -> F:
    """Add -c and -e: which settings."""
    command = click.option("-e", "--environment", **_ENVIRONMENT)(command)
    return click.option("-c", "--config", **_CONFIG)(command)


def _choose_file(context: click.Context, _parameter: click.Parameter, path: str | None) -> None:
    if path is not None:
        context.obj = (path, context.obj[1])


def _choose_section(context: click.Context, _parameter: click.Parameter, name: str | None) -> None:
    if name is not None:
        context.obj = (context.obj[0], name)


AFTER_COMMAND: Sequence[click.Option] = (
    click.Option(["-c", "--config"], callback=_choose_file, expose_value=False, **_CONFIG),
    click.Option(
        ["-e", "--environment"], callback=_choose_section, expose_value=False, **_ENVIRONMENT
    ),
)
"""``-c`` and ``-e`` of a subcommand; they replace those that precede its name."""

perfectqueue_file = click.option(
    "-f",
    "--file",
    type=click.Path(dir_okay=False),
    callback=_choose_file,
    expose_value=False,
    help="PerfectQueue's word for -c.",
)


def database(command: F) -> F:
    """Add --database and --table, as parameters of the settings' names; see `psched.app`."""
    command = click.option("--table", metavar="NAME", help="Its table. Sets table.")(command)
    return click.option(
        "--database", "url", metavar="URL", help="The database. Sets url, and means the same."
    )(command)


daemon = click.option(
    "-d",
    "--daemon",
    metavar="PIDFILE",
    type=click.Path(dir_okay=False),
    help="Go on in the background and keep the pid in this file.",
)

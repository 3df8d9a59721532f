"""Options that several commands share, and the settings that these options choose."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])

HELP = {"help_option_names": ["-h", "--help"]}
"""A value of ``context_settings``: ``-h`` and ``--help`` show the help of a command."""


class ConfigLocation(NamedTuple):
    """The source of a command's settings; its fields are the arguments of `psched.app.read_config`.

    Attributes:
        config: the configuration file; None: the file in one of the default places.
        environment: the section of the file; None: the default section.
        overrides: values of the command's options, which replace settings of the file.
    """

    config: str | None = None
    environment: str | None = None
    overrides: Mapping[str, object] = MappingProxyType({})


_CONFIG: dict[str, Any] = {
    "type": click.Path(dir_okay=False),
    "help": "Configuration file. Default: $PSCHED_CONFIG, else config/psched.yml, else"
    " /etc/psched/psched.yml; without any, a database in your state folder.",
}
_ENVIRONMENT: dict[str, Any] = {
    "metavar": "NAME",
    "help": "Section of the configuration file. Default: $PSCHED_ENV, else development.",
}


def config_options(command: F) -> F:
    """Add -c and -e, as parameters of the command."""
    command = click.option("-e", "--environment", **_ENVIRONMENT)(command)
    return click.option("-c", "--config", **_CONFIG)(command)


def _set(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.obj = context.obj._replace(**{str(parameter.name): value})


def _set_override(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        overrides = {**context.obj.overrides, parameter.name: value}
        context.obj = context.obj._replace(overrides=overrides)


SUBCOMMAND_OPTIONS: Sequence[click.Option] = (
    click.Option(["-c", "--config"], callback=_set, expose_value=False, **_CONFIG),
    click.Option(["-e", "--environment"], callback=_set, expose_value=False, **_ENVIRONMENT),
)
"""``-c`` and ``-e`` after a subcommand's name; they override ``-c`` and ``-e`` before the name."""

perfectqueue_file = click.option(
    "-f",
    "--file",
    "config",
    type=click.Path(dir_okay=False),
    callback=_set,
    expose_value=False,
    help="The same as -c, for users of PerfectQueue.",
)


def database(command: F) -> F:
    """Add --database and --table, which replace the settings ``url`` and ``table``."""
    for names, metavar, text in (
        (("--table",), "NAME", "Table of that database. Replaces the setting table."),
        (("--database", "url"), "URL", "Url of the database. Replaces the setting url."),
    ):
        command = click.option(
            *names, metavar=metavar, callback=_set_override, expose_value=False, help=text
        )(command)
    return command


daemon = click.option(
    "-d",
    "--daemon",
    metavar="PIDFILE",
    type=click.Path(dir_okay=False),
    help="Run in the background, and write the process id to this file.",
)

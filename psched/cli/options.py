"""Options that several commands have."""

from collections.abc import Callable
from typing import TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])

HELP = {"help_option_names": ["-h", "--help"]}
"""For a command's context_settings."""

Place = tuple[str | None, str | None]
"""What `configuration` passes on: path of the configuration file, and environment."""


def configuration(command: F) -> F:
    """Add -c and -e: which settings."""
    for option in (
        click.option(
            "-e",
            "--environment",
            help="Section of the configuration file. Default: $PSCHED_ENV, else development.",
        ),
        click.option(
            "-c",
            "--config",
            type=click.Path(dir_okay=False),
            help="Configuration file. Default: $PSCHED_CONFIG, config/psched.yml,"
            " /etc/psched/psched.yml; with none, a database in your state folder.",
        ),
    ):
        command = option(command)
    return command


daemon = click.option(
    "--daemon",
    metavar="PIDFILE",
    type=click.Path(dir_okay=False),
    help="Go on in the background and keep the pid in this file.",
)

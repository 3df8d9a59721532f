"""The command ``psched`` and its subcommands."""

import click

from psched.cli import options
from psched.cli.check import check
from psched.cli.configure import configure
from psched.cli.listing import list_, show
from psched.cli.migrate import migrate
from psched.cli.queue import cancel, push, requeue
from psched.cli.schedules import add, delete, init
from psched.cli.serve import run
from psched.cli.status import status
from psched.memory import MEMORY


@click.group(context_settings=options.HELP)
@click.version_option(package_name="psched")
@options.configuration
@click.pass_context
def psched(context: click.Context, config: str | None, environment: str | None) -> None:
    """A highly available cron and task queue on the database you already run."""
    MEMORY.visit()
    context.obj = (config, environment)


for command in (
    *(init, add, push, list_, show, cancel, requeue, delete),
    *(run, configure, check, status, migrate),
):
    psched.add_command(command)

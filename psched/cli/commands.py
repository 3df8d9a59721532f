"""The command ``psched`` and its subcommands."""

import click

from psched.cli.check import check
from psched.cli.schedules import add, delete, init, list_
from psched.cli.serve import run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="psched")
@click.option(
    "-c",
    "--config",
    type=click.Path(dir_okay=False),
    help="Configuration file. Default: $PSCHED_CONFIG, config/psched.yml,"
    " /etc/psched/psched.yml; with none, a database in your state folder.",
)
@click.option(
    "-e",
    "--environment",
    help="Section of the configuration file. Default: $PSCHED_ENV, else development.",
)
@click.pass_context
def psched(context: click.Context, config: str | None, environment: str | None) -> None:
    """A highly available cron and task queue on the database you already run."""
    context.obj = (config, environment)


for command in (init, add, list_, delete, run, check):
    psched.add_command(command)

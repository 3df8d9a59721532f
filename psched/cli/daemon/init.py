"""The command init."""

import click

from psched.app import make_store, read_config
from psched.cli.exit_status import report_errors
from psched.cli.options import ConfigLocation


@click.command()
@click.pass_obj
@report_errors
def init(location: ConfigLocation) -> None:
    """Create the table, or upgrade it to this version.

    A table of this version is left as it is.
    """
    settings = read_config(*location)
    for line in make_store(settings).init():
        click.echo(line)
    click.echo(f"{settings.table} on {settings.safe_url} is ready")

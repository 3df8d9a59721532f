"""The command init."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

from psched.app import make_store
from psched.cli import options
from psched.cli.exit_status import report_errors
from psched.cli.options import ConfigLocation
from psched.cli.other_database import settings_to_write
from psched.cli.progress import quiet_option

_PATIENCE = 1.0
"""Seconds of work after which the command says what it does."""


@click.command()
@quiet_option
@options.database
@click.pass_obj
@report_errors
def init(location: ConfigLocation, *, quiet: bool) -> None:
    """Create the table, or upgrade it to this version.

    A table that already has this version is not changed.
    """
    settings = settings_to_write(location)
    text = f"working on {settings.table}; a column or an index for millions of rows takes minutes"
    with say_if_slow(text, quiet=quiet):
        lines = make_store(settings).init()
    for line in lines:
        click.echo(line)
    click.echo(f"{settings.table} on {settings.safe_url} is ready")


@contextmanager
def say_if_slow(text: str, *, quiet: bool = False) -> Iterator[None]:
    """Print a text on standard error if the work in the ``with`` block takes more than a second.

    The database does the work in one statement, so nobody knows how far the work has come.
    """
    timer = threading.Timer(_PATIENCE, click.echo, (text,), {"err": True})
    timer.daemon = True
    if not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()

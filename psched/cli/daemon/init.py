"""The command init."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

from psched.app import make_store
from psched.cli import options
from psched.cli.opening import settings_to_write
from psched.cli.options import ConfigLocation
from psched.cli.progress import quiet_option
from psched.core.store_protocol import Store
from psched.handlers.permissions import describe_programs

_PATIENCE = 1.0
"""Seconds of work after which the command says what it does."""


@click.command()
@quiet_option
@options.database
@click.option(
    "--plan", is_flag=True, help="Print the SQL and the locks that it takes; change nothing."
)
@click.option(
    "--force",
    is_flag=True,
    help="Upgrade although workers of an older version run, which fail then.",
)
@click.pass_obj
def init(location: ConfigLocation, *, quiet: bool, plan: bool, force: bool) -> None:
    """Create the tables, or upgrade them to this version.

    Tables that already have this version are not changed.
    """
    settings = settings_to_write(location)
    if plan:
        _print_plan(make_store(settings), f"{settings.table} on {settings.safe_url}")
        return
    text = f"working on {settings.table}; the time grows with its rows, see psched init --plan"
    with say_if_slow(text, quiet=quiet):
        lines = make_store(settings).init(force=force)
    for line in lines:
        click.echo(line)
    click.echo(f"{settings.table} on {settings.safe_url} is ready")
    click.echo(f"programs: {describe_programs(settings)}")


def _print_plan(store: Store, name: str) -> None:
    """Print the statements that `init` would execute."""
    try:
        statements = store.plan_init()
    finally:
        store.disconnect()
    for statement, lock in statements:
        click.echo(f"-- locks: {lock}\n{statement};")
    if not statements:
        click.echo(f"{name} is ready; there is nothing to do")


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

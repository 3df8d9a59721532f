"""``psched check``: would a master start, and would its workers find everything?"""

import click

from psched import zone
from psched.app import open_schedules, read_config
from psched.application.router import load_dispatch
from psched.cli.options import Place
from psched.cli.refusals import refusing


@click.command()
@click.pass_obj
@refusing
def check(place: Place) -> None:
    """Validate the configuration, import the handlers, try the database."""
    settings = read_config(*place)
    click.echo(f"configuration: {settings.origin or 'built-in defaults'}: ok")
    dispatch = load_dispatch(settings.load_path, settings.require, settings.dispatch)
    if dispatch is not None:
        dispatch.load_all()
    routes = 0 if dispatch is None else len(dispatch.routes)
    click.echo(f"handlers: {routes} routes: ok")
    click.echo(f"zones: tzdata {zone.VERSION}")
    with open_schedules(settings) as schedules:
        number = sum(1 for _ in schedules.list())
    click.echo(f"database: {settings.safe_url}, table {settings.table}, {number} schedules: ok")

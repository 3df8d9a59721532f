"""``psched check``: would a master start, and would its workers find everything?"""

import click

from psched import zone
from psched.app import make_store, read_config
from psched.cli.options import Place
from psched.cli.refusals import refusing
from psched.exec_type import missing, who_can_run_code
from psched.handlers import Only, load_handlers


@click.command()
@click.pass_obj
@refusing
def check(place: Place) -> None:
    """Validate the configuration, import the handlers, try the database."""
    settings = read_config(*place)
    click.echo(f"configuration: {settings.origin or 'built-in defaults'}: ok")
    dispatch = load_handlers(settings)
    if isinstance(dispatch, Only):
        click.echo(f"handlers: {dispatch.name} for every type: ok")
    elif dispatch is not None:
        dispatch.load_all()
        click.echo(f"handlers: {len(dispatch.routes)} routes: ok")
    else:
        click.echo("handlers: none configured")
    if dispatch is not None and dispatch.find("exec") is not None:
        click.echo("programs: type exec is routed to a handler, which exec_type does not restrict")
    else:
        click.echo(f"programs: {who_can_run_code(settings)}")
    if isinstance(settings.allowed_programs, tuple):
        for program in missing(settings.allowed_programs):
            click.echo(f"  {program}: is not on this host, or cannot be run")
    click.echo(f"zones: tzdata {zone.VERSION}")
    store = make_store(settings)
    try:
        facts = store.examine()
        click.echo(f"database: {settings.safe_url}, table {settings.table}")
        for name, value in facts:
            click.echo(f"  {name}: {value}")
        store.try_rights()
    finally:
        store.disconnect()
    click.echo("  rights: may be read and written: ok")

"""``psched check``: would a master start, and would its workers find everything?"""

from collections.abc import Callable, Iterator

import click

from psched.app import CLOCK, make_store, read_config
from psched.base import lease_times
from psched.base.errors import ConfigError
from psched.base.retry import retry_while_unavailable
from psched.cli.exit_status import refusing
from psched.cli.options import Place
from psched.config import Config
from psched.core.store_protocol import Store
from psched.handlers.configured import SingleHandler, load_handlers
from psched.handlers.permissions import describe_programs, describe_triggers, find_missing
from psched.triggers import zone

_TRIES = 5
"""How often the store is asked, to be connected to or to be measured."""

_ROOM = 2.0
"""So many times as long as now, answers should be allowed to take in a bad moment."""


@click.command()
@click.pass_obj
@refusing
def check(place: Place) -> None:
    """Validate the configuration, import the handlers, try the database."""
    settings = read_config(*place)
    click.echo(f"configuration: {settings.origin or 'built-in defaults'}: ok")
    dispatch = load_handlers(settings)
    if isinstance(dispatch, SingleHandler):
        click.echo(f"handlers: {dispatch.name} for every type: ok")
    elif dispatch is not None:
        dispatch.load_all()
        click.echo(f"handlers: {len(dispatch.routes)} routes: ok")
    else:
        click.echo("handlers: none configured")
    if dispatch is not None and dispatch.find("exec") is not None:
        click.echo("programs: type exec is routed to a handler, which exec_type does not restrict")
    else:
        click.echo(f"programs: {describe_programs(settings)}")
    if isinstance(settings.allowed_programs, tuple):
        for program in find_missing(settings.allowed_programs):
            click.echo(f"  {program}: is not on this host, or cannot be run")
    click.echo(f"triggers: {describe_triggers(settings)}")
    click.echo(f"zones: tzdata {zone.VERSION}")
    store = make_store(settings)
    try:
        # A slow one is connected to in more than one request.
        facts = retry_while_unavailable(store.examine, clock=CLOCK, tries=_TRIES)
        click.echo(f"database: {settings.safe_url}, table {settings.table}")
        for name, value in facts:
            click.echo(f"  {name}: {value}")
        store.try_rights()
        click.echo("  rights: may be read and written: ok")
        for line in _paces(store, settings):
            click.echo(f"  {line}")
    finally:
        store.disconnect()


def _paces(store: Store, settings: Config) -> Iterator[str]:
    """Whether the store answers fast enough for the leases.

    Raises:
        ConfigError: it does not.
    """
    answer = min(_seconds(store.now) for _ in range(_TRIES))
    store.disconnect()
    connecting = max(
        0.0,
        _seconds(lambda: retry_while_unavailable(store.now, clock=CLOCK, tries=_TRIES)) - answer,
    )
    yield f"connecting: {connecting * 1000:.3f} ms"
    alive_time, timeout = settings.alive_time, settings.driver_timeout
    longest = lease_times.longest_answer(alive_time, timeout)
    enough = lease_times.sufficient_alive_time(_ROOM * answer, settings.database_timeout)
    mend = (
        f"set alive_time to {max(enough, alive_time + 1)} or more, or make the store or the way to"
        " it faster"
    )
    if answer >= longest:
        raise ConfigError(
            f"alive_time: {alive_time} is too short for a store that answers in {answer:.3f} s:"
            f" tasks would be killed although it answers; {mend}"
        )
    if _ROOM * answer >= longest:
        yield (
            f"warning: answers take {answer:.3f} s, and leases with alive_time {alive_time} are"
            f" kept while they take less than {longest:.3f} s; {mend}"
        )
    if connecting >= timeout:
        yield (
            f"warning: to connect takes {connecting:.3f} s, and it is given up after"
            f" {2 * timeout:g} s (twice database_timeout): a lost connection may not come back"
            " while the link is slow; raise alive_time, and database_timeout if it is set, or make"
            " the way to the store faster"
        )


def _seconds(request: Callable[[], object]) -> float:
    """How long a request takes."""
    begun = CLOCK.monotonic()
    request()
    return CLOCK.monotonic() - begun

"""The command check, which tests whether a master and its workers could run."""

from collections.abc import Callable, Iterator

import click

from psched.app import CLOCK, make_store, read_config
from psched.base import lease_times
from psched.base.errors import ConfigError
from psched.base.retry import retry_while_unavailable
from psched.cli.exit_status import report_errors
from psched.cli.options import ConfigLocation
from psched.config import Config
from psched.core.store_protocol import Store
from psched.handlers.configured import SingleHandler, load_handlers
from psched.handlers.permissions import describe_programs, describe_triggers, find_missing
from psched.triggers import zone

_TRIES = 5
"""The maximum number of attempts to connect, and the number of requests that are measured."""

_SAFETY_FACTOR = 2.0
"""A warning is shown if answers that take this many times as long would lose leases."""


@click.command()
@click.pass_obj
@report_errors
def check(location: ConfigLocation) -> None:
    """Check the configuration, handlers and database.

    The configuration is validated, the handlers are imported, and the database is connected to,
    read, written and measured. The first problem ends the command with exit status 1.
    """
    settings = read_config(*location)
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
        click.echo("programs: your own handler runs type exec; exec_type does not restrict it")
    else:
        click.echo(f"programs: {describe_programs(settings)}")
    if isinstance(settings.allowed_programs, tuple):
        for program in find_missing(settings.allowed_programs):
            click.echo(f"  {program}: is not on this host, or not executable")
    click.echo(f"triggers: {describe_triggers(settings)}")
    click.echo(f"zones: tzdata {zone.VERSION}")
    store = make_store(settings)
    try:
        # The request is repeated, because a slow store may answer only after a first timeout.
        facts = retry_while_unavailable(store.examine, clock=CLOCK, tries=_TRIES)
        click.echo(f"database: {settings.safe_url}, table {settings.table}")
        for name, value in facts:
            click.echo(f"  {name}: {value}")
        store.try_rights()
        click.echo("  rights: may be read and written: ok")
        for line in _measure(store, settings):
            click.echo(f"  {line}")
    finally:
        store.disconnect()


def _measure(store: Store, settings: Config) -> Iterator[str]:
    """Measure whether the store answers fast enough for the leases; yields lines to print.

    Raises:
        ConfigError: the store is too slow.
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
    enough = lease_times.sufficient_alive_time(_SAFETY_FACTOR * answer, settings.database_timeout)
    fix = (
        f"set alive_time to {max(enough, alive_time + 1)} or more, or make the store or the"
        " network faster"
    )
    if answer >= longest:
        raise ConfigError(
            f"alive_time: {alive_time} is too short for a store that answers in {answer:.3f} s:"
            f" tasks would be killed although the store answers; {fix}"
        )
    if _SAFETY_FACTOR * answer >= longest:
        yield (
            f"warning: answers take {answer:.3f} s; with alive_time {alive_time}, leases are lost"
            f" when answers take {longest:.3f} s or more; {fix}"
        )
    if connecting >= timeout:
        yield (
            f"warning: connecting takes {connecting:.3f} s, and times out after {2 * timeout:g} s"
            " (twice database_timeout): while the network is slow, a lost connection may not be"
            " restored; raise alive_time, and database_timeout if it is set, or make the network"
            " faster"
        )


def _seconds(request: Callable[[], object]) -> float:
    """The duration of a request, in seconds."""
    begun = CLOCK.monotonic()
    request()
    return CLOCK.monotonic() - begun

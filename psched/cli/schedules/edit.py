"""Commands about schedules: init, add, delete."""

import click

from psched.app import make_store, open_schedules, read_config
from psched.cli.options import Place
from psched.cli.refusals import refusing
from psched.cli.schedules.next_times import warn_of_oddities
from psched.cli.time_format import moment, when
from psched.core.columns import decode
from psched.triggers.zone import find_zone


@click.command()
@click.pass_obj
@refusing
def init(place: Place) -> None:
    """Create the table, or upgrade an older one; may be repeated."""
    settings = read_config(*place)
    for line in make_store(settings).init():
        click.echo(line)
    click.echo(f"{settings.table} on {settings.safe_url} is ready")


@click.command()
@click.argument("key")
@click.argument("type")
@click.argument("cron", required=False)
@click.argument("data", required=False)
@click.option(
    "--every", type=int, metavar="SEC", help="Instead of CRON: at this interval, not all at once."
)
@click.option("-d", "--delay", type=int, default=0, help="Seconds from scheduled time to run.")
@click.option("-t", "--timezone", help="Zone in which CRON is read. Default: the setting.")
@click.option("-s", "--start", metavar="TIME", help="First scheduled time at or after this.")
@click.option("-a", "--at", metavar="TIME", help="First run. Default: start + delay.")
@click.option("--jitter", type=int, metavar="SEC", help="Each run starts up to so much later.")
@click.option("--catchup", type=click.Choice(["all", "latest", "skip"]), help="What was missed.")
@click.option("--dst-policy", type=click.Choice(["debian", "wallclock"]), help="Clock changes.")
@click.pass_obj
@refusing
def add(
    place: Place,
    key: str,
    type: str,  # noqa: A002  # the word of the table
    cron: str | None,
    data: str | None,
    every: int | None,
    delay: int,
    timezone: str | None,
    start: str | None,
    at: str | None,
    jitter: int | None,
    catchup: str | None,
    dst_policy: str | None,
) -> None:
    """Register a schedule.

    KEY names it, TYPE is what handlers are routed by, CRON is five fields, @daily and its like,
    '@every 90' or '@call module:Class {…}', DATA is a JSON object for the handler. With --every
    there is no CRON.

    A TIME is Unix seconds or ISO 8601; one without an offset is in the schedule's zone.
    """
    if every is not None:
        if data is not None:
            raise click.UsageError("--every stands instead of CRON; leave one out")
        cron, data = None, cron
    elif cron is None:
        raise click.UsageError("CRON is missing, or --every")
    settings = read_config(*place)
    zone = settings.timezone if timezone is None else timezone
    find_zone(zone)  # an empty one, of an unset variable, is not the default
    more = {"every": every, "jitter": jitter, "catchup": catchup, "dst_policy": dst_policy}
    with open_schedules(settings) as schedules:
        added = schedules.add(
            key,
            type,
            cron=cron,
            delay=delay,
            timezone=zone,
            next_time=when("start", start, zone),
            next_run_time=when("at", at, zone),
            data=decode("data", "{}" if data is None else data, values=None),
            **more,
        ).metadata()
    click.echo(f"{key}: first at {moment(added.next_time)}")
    warn_of_oddities(added.row, settings)


@click.command()
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@click.pass_obj
@refusing
def delete(place: Place, keys: tuple[str, ...]) -> None:
    """Delete schedules; a task that is running is stopped first, by its worker."""
    with open_schedules(read_config(*place)) as schedules:
        for key in keys:
            gone = schedules[key].delete()
            click.echo(f"{key}: {'deleted' if gone else 'deleted as soon as its task has stopped'}")

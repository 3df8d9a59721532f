"""The command add."""

import click

from psched.base.errors import InvalidError
from psched.cli import changes, options
from psched.cli.changes import open_to_change
from psched.cli.exit_status import report_errors
from psched.cli.options import ConfigLocation, duration
from psched.cli.other_database import settings_to_write
from psched.cli.schedules.next import warn_of_clock_changes
from psched.cli.time_format import format_time, parse_time
from psched.core.columns import decode
from psched.triggers.zone import find_zone

_OPTIONS = {"next_time": "start", "next_run_time": "at"}
"""For each field whose option has a different name: the name of the option, which errors show."""


@click.command()
@click.argument("key")
@click.argument("type")
@click.argument("cron", required=False)
@click.argument("data", required=False)
@click.option(
    "--every",
    type=duration(whole=True),
    metavar="DURATION",
    help="Run at this interval, in place of CRON. Schedules with one interval start at different"
    " times within it.",
)
@click.option(
    "-d",
    "--delay",
    type=duration(whole=True),
    default=0,
    metavar="DURATION",
    help="Start each run this long after its scheduled time. Default: 0.",
)
@click.option(
    "-t",
    "--timezone",
    metavar="ZONE",
    help="Time zone of CRON, such as Asia/Tokyo. Default: the setting timezone.",
)
@click.option(
    "-s",
    "--start",
    metavar="TIME",
    help="The first run is the first scheduled time at or after TIME. Default: now.",
)
@click.option(
    "-a",
    "--at",
    metavar="TIME",
    help="Do not start the first run before TIME, which must not be before its scheduled time."
    " Default: the scheduled time plus the delay.",
)
@click.option(
    "--jitter",
    type=duration(whole=True),
    metavar="DURATION",
    help="Start each run up to this much later, so that not all schedules start at once. Default:"
    " the setting jitter.",
)
@click.option(
    "--catchup",
    type=click.Choice(["all", "latest", "skip"]),
    help="Which of the missed runs to make up for: all, the latest, or none (skip). Default: the"
    " setting catchup.",
)
@click.option(
    "--dst-policy",
    type=click.Choice(["debian", "wallclock"]),
    help="At a clock change: debian runs a skipped time right afterwards, and a repeated time"
    " once; wallclock loses a skipped time, and runs a repeated time twice. Default: the setting"
    " dst_policy.",
)
@changes.message
@options.database
@click.pass_obj
@report_errors
def add(
    location: ConfigLocation,
    key: str,
    type: str,  # noqa: A002  # named like the column of the table
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
    message: str | None,
) -> None:
    """Add a schedule.

    KEY is the schedule's unique name, TYPE selects the handler that runs its tasks, CRON says when
    they run, and DATA is a JSON object for the handler.

    CRON is a cron line of five fields, or a name such as @daily; or '@every 5m', an interval;
    or '@call module:Class {…}', a trigger class of your own. With --every, leave CRON out.

    A DURATION is seconds, or a number with the unit s, m, h or d: 30s, 5m, 1h, 30d.

    A TIME is Unix seconds or ISO 8601, such as 2026-01-31T09:00; without an offset, it is in the
    schedule's time zone.
    """
    if every is not None:
        if data is not None:
            raise click.UsageError("--every replaces CRON; leave one out")
        cron, data = None, cron
    elif cron is None:
        raise click.UsageError("CRON or --every is missing")
    settings = settings_to_write(location)
    zone = settings.timezone if timezone is None else timezone
    find_zone(zone)  # refuses an empty name, which an unset shell variable can cause
    more = {"every": every, "jitter": jitter, "catchup": catchup, "dst_policy": dst_policy}
    with open_to_change(settings, message) as schedules:
        try:
            added = schedules.add(
                key,
                type,
                cron=cron,
                delay=delay,
                timezone=zone,
                next_time=parse_time("start", start, zone),
                next_run_time=parse_time("at", at, zone),
                data=decode("data", "{}" if data is None else data, values=None),
                **more,
            ).metadata()
        except InvalidError as error:
            raise InvalidError(_OPTIONS.get(error.field, error.field), error.problem) from None
    click.echo(f"{key}: first at {format_time(added.next_time)}")
    warn_of_clock_changes(added.row, settings)

"""The command next, and warnings about triggers that probably mean something else."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from math import ceil

import click

from psched.app import CLOCK, open_schedules, read_config
from psched.cli import options
from psched.cli.completion import complete_key
from psched.cli.opening import settings_to_read
from psched.cli.options import ConfigLocation
from psched.cli.output import one_line
from psched.cli.schedules.arguments import warn_of_steps
from psched.cli.shown import overdue, shown_reason
from psched.cli.time_format import format_distance, format_time, local_times, parse_time
from psched.config import Config
from psched.core.columns import instant
from psched.core.definition import parse_row
from psched.core.model import PAUSED, WAITING, Row
from psched.core.preview import UpcomingTime, upcoming_times
from psched.reports.redaction import Redaction
from psched.triggers.zone import find_zone


@click.command("next")
@click.argument("key", required=False, shell_complete=complete_key)
@click.option(
    "--cron",
    metavar="CRON",
    help="Show the times of this cron line, or @every or @call trigger, in place of a schedule's.",
)
@click.option(
    "-t", "--timezone", metavar="ZONE", help="Time zone of CRON. Default: the setting timezone."
)
@click.option(
    "--dst-policy",
    type=click.Choice(["debian", "wallclock"]),
    help="What CRON does at a clock change; see psched add --help. Default: the setting"
    " dst_policy.",
)
@click.option(
    "-s", "--start", metavar="TIME", help="Show the times of CRON at or after TIME. Default: now."
)
@click.option(
    "-n",
    "number",
    type=click.IntRange(1, 1000),
    default=10,
    metavar="N",
    help="Number of times to show. Default: 10.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@options.zone()
@options.database
@click.pass_obj
def next_(
    location: ConfigLocation,
    *,
    key: str | None,
    cron: str | None,
    timezone: str | None,
    dst_policy: str | None,
    start: str | None,
    number: int,
    as_json: bool,
) -> None:
    """Show the next times of a schedule or cron line.

    Each time is shown in the schedule's time zone with its offset, in yours, and as the distance
    from now. A note is shown after a time that a clock change skips or repeats, and after a missed
    run that will be dropped.

    KEY is the name of a schedule. With --cron, neither a schedule nor a database is needed. A TIME
    is 18:00, 2026-01-31T09:00 or Unix seconds; without an offset, it is in the zone of --timezone,
    else in yours.
    """
    if (key is None) == (cron is None):
        raise click.UsageError("name a KEY, or give a trigger with --cron")
    if cron is None and any(each is not None for each in (timezone, dst_policy, start)):
        raise click.UsageError("--timezone, --dst-policy and --start need --cron")
    if key is not None:
        _show_schedule(key, number, settings_to_read(location), as_json=as_json)
        return
    settings = read_config(*location)
    zone = settings.timezone if timezone is None else timezone
    find_zone(zone)  # refuses an empty name, which an unset shell variable can cause
    own = settings if dst_policy is None else settings.with_settings(dst_policy=dst_policy)
    trigger = parse_row(Row(key="next", cron=cron, timezone=zone), own).trigger
    warn_of_steps("--cron", cron)
    now = CLOCK.wall()
    begin = parse_time("start", start, now, zone=None if timezone is None else find_zone(zone))
    after = (ceil(now) if begin is None else instant("start", begin)) - 1
    listed = upcoming_times(trigger, zone, after, number)
    if as_json:
        _print_object({"cron": cron, "timezone": zone}, listed)
    else:
        _print_lines(listed, now)


def _show_schedule(key: str, number: int, settings: Config, *, as_json: bool) -> None:
    with open_schedules(settings) as schedules:
        schedule = schedules[key]
        row = schedules.shown_as_paused()(schedule.metadata().row)
        listed = schedule.next(number) if row.status in {WAITING, PAUSED} else []
        now = schedules.now()
    own = parse_row(row, settings).settings if listed else settings
    names = ("key", "status", "reason", "cron", "timezone", "delay", "next_time", "next_run_time")
    about = {name: getattr(row, name) for name in names} | {
        "status": row.state,
        "jitter": own.jitter if row.cron is not None else 0,
    }
    redaction = Redaction(settings.redact)
    cron, reason = redaction.text(row.cron or ""), redaction.text(shown_reason(row))
    if as_json:
        _print_object(
            about | {"cron": cron or None, "reason": redaction.text(row.reason or "") or None},
            listed,
        )
        return
    parts = [
        row.state,
        one_line(cron) or "once",
        f"in {one_line(row.timezone) or settings.timezone}",
    ]
    parts += [f"{name} {about[name]} s" for name in ("delay", "jitter") if about[name]]
    click.echo(
        f"{key}: {', '.join(parts)}" + (f"  # {one_line(local_times(reason))}" if reason else "")
    )
    _print_lines(listed, now, row)


def _print_object(about: dict[str, object], listed: Iterable[UpcomingTime]) -> None:
    occurrences = [asdict(each) for each in listed]
    click.echo(json.dumps({**about, "occurrences": occurrences}))


def _print_lines(listed: Iterable[UpcomingTime], now: float, row: Row | None = None) -> None:
    """Print one line for each time."""
    for each in listed:
        due_for = None if row is None else overdue(each, row, now)
        note = local_times(each.note or "")
        ahead = due_for or format_distance(each.time - now)
        if each.run_at is None:
            click.echo(f"{'(none)':25}  {format_time(each.time)}  {ahead:14}  # {note}")
            continue
        line = f"{each.local.replace('T', ' '):25}  {format_time(each.time)}  {ahead:14}"
        if each.run_at != each.time:
            line += f"  runs from {format_time(each.run_at)}"
        click.echo(f"{line}  # {note}" if note else line.rstrip())

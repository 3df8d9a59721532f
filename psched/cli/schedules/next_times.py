"""The command next, and the warnings about times that a clock change meddles with."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from itertools import islice
from math import ceil

import click

from psched.app import CLOCK, open_schedules, read_config
from psched.cli.options import Place
from psched.cli.refusals import refusing
from psched.cli.schedules.listing import text
from psched.cli.time_format import moment, when
from psched.config import Config
from psched.core.definition import parse_row
from psched.core.model import WAITING, Row
from psched.core.preview import UpcomingTime, clock_change_effects, upcoming_times
from psched.core.shorthands import instant
from psched.triggers.zone import find_zone

_WARNED_AHEAD = 400 * 86_400
"""Seconds; in them the clocks go forward and back at least once, where they do."""

_MOST_WARNINGS = 4

_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


@click.command("next")
@click.argument("key", required=False)
@click.option("--cron", metavar="CRON", help="Not a schedule's, but those of this trigger.")
@click.option("-t", "--timezone", help="Zone in which CRON is read. Default: the setting.")
@click.option(
    "--dst-policy",
    type=click.Choice(["debian", "wallclock"]),
    help="Clock changes, for CRON. Default: the setting.",
)
@click.option("-s", "--start", metavar="TIME", help="For CRON, those at or after this, not now.")
@click.option("-n", "number", type=click.IntRange(1, 1000), default=10, help="How many; 10.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_obj
@refusing
def next_(
    place: Place,
    *,
    key: str | None,
    cron: str | None,
    timezone: str | None,
    dst_policy: str | None,
    start: str | None,
    number: int,
    as_json: bool,
) -> None:
    """Show when a schedule runs next, in its zone, in UTC and from now.

    What is odd about a time is said: that it does not exist on the day of a clock change, or
    exists twice, and what happens then; and which missed occurrences will be dropped.

    KEY names a schedule; --cron needs none, nor a database. A TIME is Unix seconds or ISO 8601; one
    without an offset is in the zone.
    """
    if (key is None) == (cron is None):
        raise click.UsageError("name a KEY, or a trigger by --cron")
    if cron is None and any(each is not None for each in (timezone, dst_policy, start)):
        raise click.UsageError("--timezone, --dst-policy and --start go with --cron")
    settings = read_config(*place)
    if key is not None:
        _show_schedule(key, number, settings, as_json=as_json)
        return
    zone = settings.timezone if timezone is None else timezone
    find_zone(zone)  # an empty one, of an unset variable, is not the default
    own = settings if dst_policy is None else settings.with_settings(dst_policy=dst_policy)
    trigger = parse_row(Row(key="next", cron=cron, timezone=zone), own).trigger
    now = CLOCK.wall()
    begin = when("start", start, zone)
    after = (ceil(now) if begin is None else instant("start", begin)) - 1
    listed = upcoming_times(trigger, zone, after, number)
    if as_json:
        _print_object({"cron": cron, "timezone": zone}, listed)
    else:
        _print_lines(listed, now)


def warn_of_oddities(row: Row, settings: Config) -> None:
    """Say on standard error what clock changes of the next year do to a schedule."""
    trigger, start = parse_row(row, settings).trigger, row.next_time or 0
    found = clock_change_effects(trigger, start - 1, start + _WARNED_AHEAD)
    for odd in islice(found, _MOST_WARNINGS):
        click.echo(f"Warning: {row.key}: {odd.text}", err=True)


def _show_schedule(key: str, number: int, settings: Config, *, as_json: bool) -> None:
    with open_schedules(settings) as schedules:
        schedule = schedules[key]
        row = schedule.metadata().row
        listed = schedule.next(number) if row.status == WAITING else []
        now = schedules.now()
    own = parse_row(row, settings).settings if listed else settings
    names = ("key", "status", "reason", "cron", "timezone", "delay", "next_time", "next_run_time")
    about = {name: getattr(row, name) for name in names} | {
        "status": row.state,
        "jitter": own.jitter if row.cron is not None else 0,
    }
    if as_json:
        _print_object(about, listed)
        return
    parts = [row.state, text(row.cron) or "once", f"in {text(row.timezone) or settings.timezone}"]
    parts += [f"{name} {about[name]} s" for name in ("delay", "jitter") if about[name]]
    click.echo(f"{key}: {', '.join(parts)}" + (f"  # {text(row.reason)}" if row.reason else ""))
    _print_lines(listed, now)


def _print_object(about: dict[str, object], listed: Iterable[UpcomingTime]) -> None:
    occurrences = [asdict(each) for each in listed]
    click.echo(json.dumps({**about, "occurrences": occurrences}))


def _print_lines(listed: Iterable[UpcomingTime], now: float) -> None:
    for each in listed:
        ahead = relative(each.time - now)
        if each.run_at is None:
            click.echo(f"{'(none)':25}  {moment(each.time)}  {ahead:14}  # {each.note}")
            continue
        line = f"{each.local.replace('T', ' '):25}  {moment(each.time)}  {ahead:14}"
        if each.run_at != each.time:
            line += f"  runs from {moment(each.run_at)}"
        click.echo(f"{line}  # {each.note}" if each.note else line.rstrip())


def relative(seconds: float) -> str:
    """How far away an instant is, for people, in its two largest units."""
    left, words = round(abs(seconds)), list[str]()
    for unit, size in _UNITS:
        number, left = divmod(left, size)
        if number or words:
            words.append(f"{number} {unit}")
    span = " ".join(word for word in words[:2] if word[0] != "0")
    if not span:
        return "now"
    return f"in {span}" if seconds > 0 else f"{span} ago"

"""Commands about schedules: init, add, list, delete."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import click

from psched.app import make_store, open_schedules, read_config
from psched.cli.options import Place
from psched.cli.refusals import refusing
from psched.definition import decode
from psched.errors import InvalidError
from psched.model import WAITING, Row
from psched.zone import find_zone

_HEADINGS = (
    "key", "type", "cron", "delay", "timezone", "next_time", "next_run_time", "data",
)  # fmt: skip
_WIDTHS = (26, 15, 18, 7, 11, 28, 28)
"""PerfectSched's."""

_DATES_IN_DIGITS = (8, 12)
"""Digits of a date, and of one with hours and minutes. As Unix seconds they are in 1970, when
nobody schedules anything, and after the year 5000."""


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
@click.argument("cron")
@click.argument("data", default="{}")
@click.option("-d", "--delay", type=int, default=0, help="Seconds from scheduled time to run.")
@click.option("-t", "--timezone", help="Zone in which CRON is read. Default: the setting.")
@click.option("-s", "--start", metavar="TIME", help="First scheduled time at or after this.")
@click.option("-a", "--at", metavar="TIME", help="First run. Default: start + delay.")
@click.option("--catchup", type=click.Choice(["all", "latest", "skip"]), help="What was missed.")
@click.option("--dst-policy", type=click.Choice(["debian", "wallclock"]), help="Clock changes.")
@click.pass_obj
@refusing
def add(
    place: Place,
    key: str,
    type: str,  # noqa: A002  # the word of the table
    cron: str,
    data: str,
    delay: int,
    timezone: str | None,
    start: str | None,
    at: str | None,
    catchup: str | None,
    dst_policy: str | None,
) -> None:
    """Register a schedule.

    KEY names it, TYPE is what handlers are routed by, CRON is five fields or @daily and its like,
    DATA is a JSON object for the handler.

    A TIME is Unix seconds or ISO 8601; one without an offset is in the schedule's zone.
    """
    settings = read_config(*place)
    zone = settings.timezone if timezone is None else timezone
    find_zone(zone)  # an empty one, of an unset variable, is not the default
    more = {"catchup": catchup, "dst_policy": dst_policy}
    with open_schedules(settings) as schedules:
        added = schedules.add(
            key,
            type,
            cron=cron,
            delay=delay,
            timezone=zone,
            next_time=_time("start", start, zone),
            next_run_time=_time("at", at, zone),
            data=decode("data", data),
            **more,
        ).metadata()
    click.echo(f"{key}: first at {_moment(added.next_time)}")


@click.command("list")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per line, with every column."
)
@click.pass_obj
@refusing
def list_(place: Place, *, as_json: bool) -> None:
    """Show the schedules, those due first, those at rest last."""
    number = 0
    with open_schedules(read_config(*place)) as schedules:
        for number, metadata in enumerate(schedules.list(), 1):
            if as_json:
                click.echo(json.dumps(_object(metadata.row), ensure_ascii=False))
                continue
            if number == 1:  # not before the database has answered
                click.echo(_line(_HEADINGS))
            click.echo(_line(_cells(metadata.row)))
    if not as_json:
        if not number:
            click.echo(_line(_HEADINGS))
        click.echo(f"{number} entries.")


@click.command()
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@click.pass_obj
@refusing
def delete(place: Place, keys: tuple[str, ...]) -> None:
    """Delete schedules; a task that is running is stopped first, by its worker."""
    with open_schedules(read_config(*place)) as schedules:
        for key in keys:
            gone = schedules[key].delete()
            click.echo(f"{key}: {'deleted' if gone else 'goes when its running task has stopped'}")


def _time(field: str, text: str | None, timezone: str) -> int | datetime | None:
    if text is None:
        return None
    digits = text.isdecimal() and text.isascii()
    if digits and len(text) in _DATES_IN_DIGITS:
        raise InvalidError(
            field, f"{text!r} could be a date or Unix seconds; write a date as 2026-01-31T09:00"
        )
    try:
        if digits:
            return int(text)  # no integer has more than a few thousand digits
        when = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidError(
            field, f"{text!r} is neither Unix seconds nor ISO 8601, such as 2026-01-31T09:00"
        ) from None
    if when.tzinfo is not None:
        return when
    zone, wall = find_zone(timezone), int(when.replace(tzinfo=UTC).timestamp())
    # A time that the clock skips is the instant at which it does.
    return (zone.instants(wall) or (zone.change(wall).instant,))[0]


def _cells(row: Row) -> Iterable[str]:
    resting = row.next_run_time is None or row.status != WAITING
    yield row.key
    yield row.type
    yield row.cron or ""
    yield str(row.delay)
    yield row.timezone or ""
    yield _moment(row.next_time)
    yield row.status if resting else _moment(row.next_run_time)
    data = _text(row.data) or "{}"
    yield f"{data}  # {row.reason}" if row.reason else data


def _line(cells: Iterable[str]) -> str:
    # What a row holds must not move the cursor.
    *columns, last = map(_text, cells)
    padded = (cell.rjust(width) for cell, width in zip(columns, _WIDTHS, strict=True))
    return "".join(f"{cell} " for cell in padded) + f" {last}"


def _object(row: Row) -> dict[str, Any]:
    columns = {name: getattr(row, name) for name in Row.__slots__}
    for name in ("data", "options"):
        try:
            columns[name] = decode(name, columns[name]) if columns[name] else {}
        except InvalidError:
            columns[name] = _text(columns[name])
    return columns


def _text(stored: str | bytes | None) -> str:
    if stored is None:
        return ""
    text = stored.decode(errors="backslashreplace") if isinstance(stored, bytes) else stored
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _moment(instant: int | None) -> str:
    if instant is None:
        return "-"
    try:
        return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return str(instant)

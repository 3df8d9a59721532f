"""The commands list and show."""

import json
from collections.abc import Collection, Iterable
from typing import Any

import click

from psched.app import open_schedules, read_config
from psched.base.compression import beginning
from psched.base.errors import InvalidError
from psched.base.texts import cut
from psched.cli import options
from psched.cli.exit_status import report_errors
from psched.cli.options import ConfigLocation
from psched.cli.output import one_line
from psched.cli.time_format import format_time
from psched.core.columns import decode
from psched.core.model import ENDED, STATUSES, WAITING, Row

_HEADINGS = (
    "key", "type", "cron", "delay", "timezone", "next_time", "next_run_time", "created_at", "data",
)  # fmt: skip
_WIDTHS = (26, 15, 18, 7, 11, 28, 28, 28)
"""The widths of the columns in characters, as in PerfectSched; the last column has no width."""

_LONGEST_LISTED = 2000
"""The maximum length of a payload in a line of the list, in bytes or characters as stored."""

_LONGEST_CELL = 30_000
"""The maximum length of a column in a line of the list, in characters."""

_LONGEST_SHOWN = 100_000
"""The longest column in `show`, or invalid JSON in --json, in bytes or characters."""

_STATES = (WAITING, "running", *sorted(ENDED), *sorted(STATUSES - ENDED - {WAITING}))

_INSTANTS = frozenset({"next_time", "next_run_time", "created_at", "retain_until"})


@click.command("list")
@click.option(
    "--status",
    "states",
    type=click.Choice(_STATES),
    metavar="STATUS",
    multiple=True,
    help=f"Only those with this status; may be repeated. One of {', '.join(_STATES)}.",
)
@click.option(
    "--type",
    "types",
    metavar="TYPE",
    multiple=True,
    help="Only those of this type; may be repeated.",
)
@click.option(
    "--label",
    "labels",
    metavar="LABEL",
    multiple=True,
    help="Only those with this label; may be repeated.",
)
@click.option("--due", is_flag=True, help="Only those that are due: a worker may start them now.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per line, with every column."
)
@options.database
@click.pass_obj
@report_errors
def list_(
    location: ConfigLocation,
    *,
    states: Collection[str],
    types: Collection[str],
    labels: Collection[str],
    due: bool,
    as_json: bool,
) -> None:
    """List schedules and tasks.

    They are listed in the order in which they are due; those that are paused, or will not run
    again, are listed last.
    """
    number = 0
    with open_schedules(read_config(*location)) as schedules:
        until = schedules.now() if due else None
        for metadata in schedules.list():
            row = metadata.row
            if (states and row.state not in states) or (types and row.type not in types):
                continue
            if labels and metadata.label not in labels:
                continue
            if until is not None and not _is_due(row, until):
                continue
            number += 1
            if as_json:
                click.echo(json.dumps(_object(row)))
                continue
            if number == 1:  # printed after the first row: the database may fail before
                click.echo(_line(_HEADINGS))
            click.echo(_line(_cells(row)))
    if not as_json:
        if not number:
            click.echo(_line(_HEADINGS))
        click.echo(f"{number} entries.")


@click.command()
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with every column.")
@click.pass_obj
@report_errors
def show(location: ConfigLocation, key: str, *, as_json: bool) -> None:
    """Show everything about one schedule or task.

    Each field is on a line of its own; fields without a value are left out.
    """
    with open_schedules(read_config(*location)) as schedules:
        metadata = schedules[key].metadata()
    row = metadata.row
    if as_json:
        click.echo(json.dumps(_object(row)))
        return
    known = {name: getattr(row, name) for name in Row.__slots__} | {"status": row.state}
    known |= {"label": metadata.label, "note": metadata.note}
    known = {name: value for name, value in known.items() if value is not None}
    width = max(map(len, known)) + 1
    for name, value in known.items():
        click.echo(f"{name + ':':{width}} {_shown(name, value)}")


def _beginning(stored: str | bytes | None, most: int) -> str:
    """The beginning of a payload, because a whole payload may be megabytes long."""
    if not stored:
        return ""
    plain, more = beginning(stored, most)
    if isinstance(plain, bytes) and more:
        plain = plain.decode(errors="ignore")  # the last character may have been cut in two
    return one_line(plain) + (" …" if more else "")


def _shown(name: str, value: Any) -> str:  # noqa: ANN401  # a column of any type
    if name in _INSTANTS:
        return format_time(value)
    return _beginning(value, _LONGEST_SHOWN) if isinstance(value, (str, bytes)) else str(value)


def _is_due(row: Row, now: float) -> bool:
    # The next run time of a running task is the end of its lease, after which it is due again.
    return row.status == WAITING and row.next_run_time is not None and row.next_run_time <= now


def _cells(row: Row) -> Iterable[str]:
    resting = row.next_run_time is None or row.status != WAITING
    yield row.key
    yield row.type
    yield row.cron or ""
    yield str(row.delay)
    yield row.timezone or ""
    yield format_time(row.next_time)
    yield row.status if resting else format_time(row.next_run_time)
    yield format_time(row.created_at)
    data = _beginning(row.data, _LONGEST_LISTED) or "{}"
    yield f"{data}  # {row.reason}" if row.reason else data


def _line(cells: Iterable[str]) -> str:
    *columns, last = (one_line(cut(cell, _LONGEST_CELL)) for cell in cells)
    padded = (cell.rjust(width) for cell, width in zip(columns, _WIDTHS, strict=True))
    return "".join(f"{cell} " for cell in padded) + f" {last}"


def _object(row: Row) -> dict[str, Any]:
    """Every column of a row, and ``state``: ``running`` or the status."""
    columns = {name: getattr(row, name) for name in Row.__slots__} | {"state": row.state}
    for name in ("data", "options"):
        try:
            columns[name] = decode(name, columns[name]) if columns[name] else {}
        except InvalidError:
            columns[name] = _beginning(columns[name], _LONGEST_SHOWN)
    return columns

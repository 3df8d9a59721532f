"""Commands that show schedules: list, show."""

import json
from collections.abc import Collection, Iterable
from typing import Any

import click

from psched.app import changed_config, open_schedules, read_config
from psched.base.compression import beginning
from psched.base.errors import InvalidError
from psched.base.texts import cut, visible
from psched.cli import options
from psched.cli.options import Place
from psched.cli.refusals import refusing
from psched.cli.time_format import moment
from psched.core.columns import decode
from psched.core.model import ENDED, STATUSES, WAITING, Row

_HEADINGS = (
    "key", "type", "cron", "delay", "timezone", "next_time", "next_run_time", "created_at", "data",
)  # fmt: skip
_WIDTHS = (26, 15, 18, 7, 11, 28, 28, 28)
"""PerfectSched's; of created_at that of the other times."""

_LONGEST_LISTED = 2000
"""Bytes or characters of a payload in a line of a list."""

_LONGEST_CELL = 30_000
"""Characters of any column in a line of a list."""

_LONGEST_SHOWN = 100_000
"""Characters of a column that `show` prints, and of a payload in JSON that cannot be parsed."""

_STATES = (WAITING, "running", *sorted(ENDED), *sorted(STATUSES - ENDED - {WAITING}))

_INSTANTS = frozenset({"next_time", "next_run_time", "created_at", "retain_until"})


@click.command("list")
@click.option(
    "--status",
    "states",
    type=click.Choice(_STATES),
    multiple=True,
    help="Only those that are this; may be given several times.",
)
@click.option(
    "--type", "types", multiple=True, help="Only those of this type; may be given several times."
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    help="Only those with this label; may be given several times.",
)
@click.option("--due", is_flag=True, help="Only those that a worker may take now.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per line, with every column."
)
@options.database
@click.pass_obj
@refusing
def list_(
    place: Place,
    *,
    states: Collection[str],
    types: Collection[str],
    labels: Collection[str],
    due: bool,
    as_json: bool,
    url: str | None,
    table: str | None,
) -> None:
    """Show the schedules and tasks, those due first, those at rest last."""
    number = 0
    with open_schedules(changed_config(*place, {"url": url, "table": table})) as schedules:
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
            if number == 1:  # not before the database has answered
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
@refusing
def show(place: Place, key: str, *, as_json: bool) -> None:
    """Show all that is known of a schedule or task, a field on each line."""
    with open_schedules(read_config(*place)) as schedules:
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


def text(stored: str | bytes | None) -> str:
    """What a row holds, on one line that does not move the cursor."""
    if stored is None:
        return ""
    words = stored.decode(errors="backslashreplace") if isinstance(stored, bytes) else stored
    return visible(words)


def _beginning(stored: str | bytes | None, most: int) -> str:
    """A payload's beginning: a listing is not to unpack and show megabytes of each row."""
    if not stored:
        return ""
    plain, more = beginning(stored, most)
    if isinstance(plain, bytes) and more:
        plain = plain.decode(errors="ignore")  # the last character may have been cut in two
    return text(plain) + (" …" if more else "")


def _shown(name: str, value: Any) -> str:  # noqa: ANN401  # of a column
    if name in _INSTANTS:
        return moment(value)
    return _beginning(value, _LONGEST_SHOWN) if isinstance(value, (str, bytes)) else str(value)


def _is_due(row: Row, now: float) -> bool:
    # A lease that has ended is anybody's to take.
    return row.status == WAITING and row.next_run_time is not None and row.next_run_time <= now


def _cells(row: Row) -> Iterable[str]:
    resting = row.next_run_time is None or row.status != WAITING
    yield row.key
    yield row.type
    yield row.cron or ""
    yield str(row.delay)
    yield row.timezone or ""
    yield moment(row.next_time)
    yield row.status if resting else moment(row.next_run_time)
    yield moment(row.created_at)
    data = _beginning(row.data, _LONGEST_LISTED) or "{}"
    yield f"{data}  # {row.reason}" if row.reason else data


def _line(cells: Iterable[str]) -> str:
    *columns, last = (text(cut(cell, _LONGEST_CELL)) for cell in cells)
    padded = (cell.rjust(width) for cell, width in zip(columns, _WIDTHS, strict=True))
    return "".join(f"{cell} " for cell in padded) + f" {last}"


def _object(row: Row) -> dict[str, Any]:
    """Every column, and beside the stored ``status`` what the row is."""
    columns = {name: getattr(row, name) for name in Row.__slots__} | {"state": row.state}
    for name in ("data", "options"):
        try:
            columns[name] = decode(name, columns[name]) if columns[name] else {}
        except InvalidError:
            columns[name] = _beginning(columns[name], _LONGEST_SHOWN)
    return columns

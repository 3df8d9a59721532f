"""PerfectSched's layout of the command list."""

from collections.abc import Iterable

import click

from psched.base.texts import cut
from psched.cli.output import one_line
from psched.cli.schedules.columns import LONGEST_CELL, LONGEST_DATA, payload_beginning
from psched.cli.time_format import format_time
from psched.core.history.redaction import Redaction
from psched.core.model import WAITING, Row
from psched.core.operations.pauses import UTC

_HEADINGS = (
    "key", "type", "cron", "delay", "timezone", "next_time", "next_run_time", "data",
)  # fmt: skip
_WIDTHS = (30, 15, 18, 7, 11, 28, 28)
"""The widths of all columns but the last, in characters; they are the same as in PerfectSched."""


def print_legacy_table(rows: Iterable[Row], redaction: Redaction) -> None:
    """Print rows while they are read, and then their number."""
    number = 0
    for number, row in enumerate(rows, start=1):
        if number == 1:  # no headings before, because reading the first row can fail
            click.echo(_line(_HEADINGS))
        click.echo(_line(_cells(row, redaction)))
    if not number:
        click.echo(_line(_HEADINGS))
    click.echo(f"{number} entries.")


def _cells(row: Row, redaction: Redaction) -> Iterable[str]:
    resting = row.next_run_time is None or row.status != WAITING
    yield row.key
    yield row.type
    yield redaction.text(row.cron or "")
    yield str(row.delay)
    yield row.timezone or ""
    yield format_time(row.next_time, UTC)
    yield row.status if resting else format_time(row.next_run_time, UTC)
    data = payload_beginning(row.data, LONGEST_DATA, redaction) or "{}"
    yield f"{data}  # {redaction.text(row.reason)}" if row.reason else data


def _line(cells: Iterable[str]) -> str:
    *columns, last = (one_line(cut(cell, LONGEST_CELL)) for cell in cells)
    padded = (cell.rjust(width) for cell, width in zip(columns, _WIDTHS, strict=True))
    return "".join(f"{cell} " for cell in padded) + f" {last}"

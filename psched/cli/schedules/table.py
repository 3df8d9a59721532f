"""The table of the command list: its columns, their widths, and the colours of statuses."""

import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice

import click

from psched.base.compression import beginning
from psched.base.texts import cut
from psched.cli.output import one_line, write_styled
from psched.cli.schedules.status import DUE, shown_status
from psched.cli.time_format import format_span, format_time, short_time
from psched.core.columns import annotation
from psched.core.model import RUNNING, Row

COLUMNS = ("KEY", "STATUS", "SCHEDULE", "NEXT", "REASON")
"""The columns that are shown unless the user chooses others."""

LINE = 100
"""The width of the table on a terminal that is narrower, or in a file. All widths are in columns of
a terminal, of which a Chinese or Japanese character takes two."""

FIRST_ROWS = 500
"""The widths of the columns follow the contents of so many rows, so that a long listing need not be
kept in memory."""

_NARROWEST = 8
"""The width below which no column is cut."""

LONGEST_CELL = 30_000
"""The maximum length of a cell, in characters."""

LONGEST_DATA = 2000
"""The maximum length of a payload, in bytes or characters, depending on how it is stored."""

_GAP = "  "

_COLOURS = {
    RUNNING: "green",
    DUE: "yellow",
    "failed": "red",
    "quarantined": "red",
    "expired": "magenta",
    "cancelled": "magenta",
    "paused": "cyan",
    "finished": "bright_black",
}

_EVERY = re.compile(r"@every ([0-9]{1,12})( \+[0-9]+)?")
_CALL = re.compile(r"@call (\S+)")

Cell = Callable[[Row, float, bool], str]
"""Returns a cell's text for a row, the time of the store's clock, and whether times are in UTC."""


def _attribute(name: str) -> Cell:
    return lambda row, _now, _utc: one_line_of(getattr(row, name))


def _time(name: str) -> Cell:
    return lambda row, _now, utc: format_time(getattr(row, name), local=not utc)


def _note(name: str) -> Cell:
    return lambda row, _now, _utc: one_line(annotation(row, name))


def payload_beginning(stored: str | bytes | None, most: int) -> str:
    """Return the beginning of a payload as one line; a whole payload can be megabytes long."""
    if not stored:
        return ""
    plain, more = beginning(stored, most)
    if isinstance(plain, bytes) and more:
        plain = plain.decode(errors="ignore")  # drops the rest of a character that was cut in two
    return one_line(plain) + (" …" if more else "")


def _payload(name: str) -> Cell:
    return lambda row, _now, _utc: payload_beginning(getattr(row, name), LONGEST_DATA)


def one_line_of(value: object) -> str:
    """The text of any value of a column as one line; empty for None."""
    if value is None:
        return ""
    return one_line(cut(value, LONGEST_CELL)) if isinstance(value, str) else str(value)


def schedule_in_short(row: Row) -> str:
    """When a schedule runs: its cron line and zone, ``every 1h``, a class, or ``once``."""
    if row.cron is None:
        return "once"
    if found := _EVERY.fullmatch(row.cron):
        return f"every {format_span(int(found[1]))}"
    if found := _CALL.match(row.cron):
        return one_line_of(found[1])
    return one_line_of(row.cron if row.timezone is None else f"{row.cron} {row.timezone}")


def next_in_short(row: Row, now: float, utc: bool) -> str:  # noqa: FBT001  # see `Cell`
    """When a schedule runs next.

    For a running row, this is the scheduled time of the occurrence that is running: its
    ``next_run_time`` is the end of its lease.
    """
    status = shown_status(row, now)
    if status == DUE and row.next_run_time is not None:
        late = int(now) - row.next_run_time
        # A row that was inserted by plain SQL can have the time 0, which means at once.
        return f"{format_span(late, most=2)} late" if late and row.next_run_time > 0 else "now"
    instant = row.next_time if status == RUNNING else row.next_run_time
    return "-" if instant is None else short_time(instant, now, utc=utc)


CELLS: Mapping[str, Cell] = {
    "KEY": _attribute("key"),
    "STATUS": lambda row, now, _utc: one_line_of(shown_status(row, now)),
    "SCHEDULE": lambda row, _now, _utc: schedule_in_short(row),
    "NEXT": next_in_short,
    "REASON": _attribute("reason"),
    "TYPE": _attribute("type"),
    "LABEL": _note("label"),
    "NOTE": _note("note"),
    "DATA": _payload("data"),
    "CRON": _attribute("cron"),
    "TIMEZONE": _attribute("timezone"),
    "DELAY": _attribute("delay"),
    "NEXT_TIME": _time("next_time"),
    "NEXT_RUN_TIME": _time("next_run_time"),
    "CREATED_AT": _time("created_at"),
    "RETAIN_UNTIL": _time("retain_until"),
    "ATTEMPT": _attribute("attempt"),
    "ALIVE_TIME": _attribute("alive_time"),
    "OPTIONS": _payload("options"),
    "OWNER": _attribute("owner"),
    "FENCE": _attribute("fence"),
    "SETTLED_BY": _attribute("settled_by"),
    "VERSION": _attribute("version"),
}
"""What each column shows, by its heading."""


def print_table(rows: Iterable[Row], columns: Sequence[str], now: float, *, utc: bool) -> int:
    """Print rows as a table while they are read; print nothing if there are none.

    Args:
        rows: the rows.
        columns: the headings, which are keys of `CELLS`.
        now: the time of the store's clock, in Unix seconds.
        utc: whether times are in UTC; otherwise in the time zone of the user.

    Returns:
        The number of rows.
    """
    coloured, line = _is_coloured(), _line_width()
    left, number = iter(rows), 0
    first = [_cells(row, columns, now, utc=utc) for row in islice(left, FIRST_ROWS)]
    if not first:
        return 0
    widths = _widths([columns, *first], line)
    status = columns.index("STATUS") if coloured and "STATUS" in columns else None
    _print_line(columns, widths, line, None)
    for cells in chain(first, (_cells(row, columns, now, utc=utc) for row in left)):
        _print_line(cells, widths, line, status)
        number += 1
    return number


def _cells(row: Row, columns: Sequence[str], now: float, *, utc: bool) -> Sequence[str]:
    return [CELLS[column](row, now, utc) for column in columns]


def _widths(table: Sequence[Sequence[str]], line: int) -> list[int]:
    """The widths of all columns. If a line would be too long, the widest columns are cut."""
    widths = [min(line, max(map(_width, column))) for column in zip(*table, strict=True)]
    room = line - len(_GAP) * (len(widths) - 1)
    while sum(widths) > room and max(widths) > _NARROWEST:
        # Of columns of the same width, the last is cut: a key is more important than a reason.
        widest = max(range(len(widths)), key=lambda place: (widths[place], place))
        widths[widest] -= 1
    return widths


def _print_line(
    cells: Sequence[str], widths: Sequence[int], line: int, coloured: int | None
) -> None:
    if _width(_GAP.join(_padded(cells, widths))) > line:
        cells = [_cut(cell, width) for cell, width in zip(cells, widths, strict=True)]
    padded = _padded(cells, widths)
    if coloured is not None:
        colour = _COLOURS.get(cells[coloured])
        padded[coloured] = click.style(padded[coloured], fg=colour) if colour else padded[coloured]
        write_styled(_GAP.join(padded).rstrip() + "\n")
    else:
        click.echo(_GAP.join(padded).rstrip())


def _padded(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    *most, last = cells
    padded = (
        cell + " " * (width - _width(cell)) for cell, width in zip(most, widths, strict=False)
    )
    return [*padded, last]


def _cut(cell: str, width: int) -> str:
    if _width(cell) <= width:
        return cell
    kept = cell[: width - 1]
    while _width(kept) > width - 1:
        kept = kept[:-1]
    return kept + "…"


def _width(text: str) -> int:
    """The number of columns that a terminal needs for a text."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _is_coloured() -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout is not None and sys.stdout.isatty()


def _line_width() -> int:
    try:
        return max(LINE, os.get_terminal_size(sys.stdout.fileno()).columns)
    except (OSError, ValueError, AttributeError):  # a file, a test's replacement, or closed
        return LINE

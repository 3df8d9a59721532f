"""Prints tables whose columns are as wide as their contents, as far as the line allows."""

import os
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import NamedTuple

import click

from psched.cli.output import are_terminals, write_styled
from psched.cli.time_format import zone_label

LINE = 100
"""The width of a table in a file, unless the variable COLUMNS says another one. All widths are in
columns of a terminal, of which a Chinese or Japanese character takes two."""

FIRST_ROWS = 500
"""The widths of the columns follow the contents of so many rows, so that a long listing need not be
kept in memory."""

_LONG = 24
"""The width above which columns are cut first; the keys of most extra runs are no longer."""

_NARROWEST = 8
"""The width below which columns are cut only if nothing else is left."""

_TIMES = (
    *("WHEN", "NEXT", "SINCE", "CLOSED", "NEXT_TIME", "NEXT_RUN_TIME", "CREATED_AT"),
    *("RETAIN_UNTIL", "MINUTE", "HOUR"),
)
"""The headings of columns that show times, of which a part says nothing."""

_LEAST = {"KEY": 20, "STATUS": 11, "OUTCOME": 9, "FATE": 14}
"""The widths below which these columns are cut only if nothing else is left."""

_DIGITS = 4
"""The most digits of COLUMNS; a larger number is a mistake."""

GAP = "  "
"""What is between two columns."""


class TableRow(NamedTuple):
    """One row of a table.

    Attributes:
        cells: the text of each column, in one line.
        details: lines that are printed below the row, whole.
    """

    cells: Sequence[str]
    details: Sequence[str] = ()


class Colours(NamedTuple):
    """The colours of the texts in one column.

    Attributes:
        column: the heading of the column.
        of: the colour of each text; other texts have none.
    """

    column: str
    of: Mapping[str, str]


def with_zone(headings: Sequence[str], now: float) -> Sequence[str]:
    """The headings of a table, of which the first one of a time names the zone of all times."""
    first = next((name for name in headings if name in _TIMES), None)
    return [f"{name} ({zone_label(now)})" if name == first else name for name in headings]


def print_table(
    headings: Sequence[str], rows: Iterable[TableRow], colours: Colours | None = None
) -> int:
    """Print rows as a table while they are read; print nothing if there are none.

    Returns:
        The number of rows.
    """
    line, left, number = line_width(), iter(rows), 0
    if colours is not None and (colours.column not in headings or not is_coloured()):
        colours = None
    first = [*islice(left, FIRST_ROWS)]
    widths = widths_of([headings, *(row.cells for row in first)], line)
    for number, row in enumerate(chain(first, left), 1):
        if number == 1:
            _print_line(headings, widths, line)
        colour = None
        if colours is not None:
            place = headings.index(colours.column)
            colour = place, colours.of.get(row.cells[place])
        _print_line(row.cells, widths, line, colour)
        for detail in row.details:
            click.echo(detail)
    return number


def widths_of(table: Sequence[Sequence[str]], line: int) -> list[int]:
    """The widths of all columns, of a table that begins with its headings.

    If a line would be too long, the widest columns are cut first, then the last one, because it is
    free text, then others. Keys and statuses are cut after these, and times only if nothing else is
    left.
    """
    widths = [min(line, max(map(width_of, column))) for column in zip(*table, strict=True)]
    too_long = sum(widths) + len(GAP) * (len(widths) - 1) - line
    names, places = table[0], range(len(widths))
    others = [place for place in places if names[place].partition(" (")[0] not in _TIMES]
    for may_be_cut, least in (
        (others, dict.fromkeys(others, _LONG)),
        (others[-1:], {}),
        (others, {place: _LEAST.get(names[place], _NARROWEST) for place in others}),
        (others, {}),
        (others[-1:], dict.fromkeys(others, 1)),
        (others, dict.fromkeys(others, 3)),
        (places, dict.fromkeys(places, 1)),
    ):
        while too_long > 0:
            left = [place for place in may_be_cut if widths[place] > least.get(place, _NARROWEST)]
            if not left:
                break
            # Of columns of the same width, the last is cut: a key says more than a reason.
            widths[max(left, key=lambda place: (widths[place], place))] -= 1
            too_long -= 1
    return widths


def _print_line(
    cells: Sequence[str],
    widths: Sequence[int],
    line: int,
    colour: tuple[int, str | None] | None = None,
) -> None:
    """Print a row; ``colour`` is the place of the cell with a colour, and its colour, if any."""
    # The last cell may be longer than the others of its column, as long as the line has room.
    room = max(widths[-1], line - sum(widths[:-1]) - len(GAP) * (len(widths) - 1))
    wide = (*widths[:-1], room)
    padded = padded_to([*map(cut_to, cells, wide)], widths)
    text = GAP.join(padded).rstrip()
    if colour is None or width_of(text) > line:
        click.echo(cut_to(text, line))
        return
    place, name = colour
    padded[place] = click.style(padded[place], fg=name) if name else padded[place]
    write_styled(GAP.join(padded).rstrip() + "\n")


def padded_to(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """The cells of a row, each but the last one followed by blanks up to its width."""
    *most, last = cells
    padded = (
        cell + " " * (width - width_of(cell)) for cell, width in zip(most, widths, strict=False)
    )
    return [*padded, last]


def cut_to(cell: str, width: int) -> str:
    """The text; if it needs more columns of a terminal, its beginning and an ellipsis."""
    if width_of(cell) <= width:
        return cell
    if width < 1:
        return ""
    kept = cell[: width - 1]
    while width_of(kept) > width - 1:
        kept = kept[:-1]
    return kept + "…"


def width_of(text: str) -> int:
    """The number of columns that a terminal needs for a text."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def is_coloured() -> bool:
    """Whether standard output is a terminal for which the user wants colours."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return are_terminals(sys.stdout)


def line_width() -> int:
    """The width of the terminal; in a file or a pipe, that of COLUMNS, or `LINE`."""
    with suppress(OSError, ValueError, AttributeError):  # a file, a test's replacement, or closed
        if (columns := os.get_terminal_size(sys.stdout.fileno()).columns) > 0:
            return columns
    given = os.environ.get("COLUMNS", "")
    is_number = given.isascii() and given.isdecimal() and len(given) <= _DIGITS
    return (int(given) if is_number else 0) or LINE

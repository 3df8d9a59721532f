"""Prints tables whose columns are as wide as their contents, as far as the line allows."""

import os
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

import click

from psched.cli.output import are_terminals, write_styled

LINE = 100
"""The width of the table on a terminal that is narrower, or in a file. All widths are in columns of
a terminal, of which a Chinese or Japanese character takes two."""

FIRST_ROWS = 500
"""The widths of the columns follow the contents of so many rows, so that a long listing need not be
kept in memory."""

_LONG = 24
"""The width above which columns are cut first; the keys of most extra runs are no longer."""

_NARROWEST = 8
"""The width below which no column is cut."""

_TIMES = frozenset(
    {"WHEN", "NEXT", "SINCE", "CLOSED", "NEXT_TIME", "NEXT_RUN_TIME", "CREATED_AT", "RETAIN_UNTIL"}
)
"""The headings of columns that show times, of which a part says nothing."""

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


def print_table(
    headings: Sequence[str], rows: Iterable[TableRow], colours: Colours | None = None
) -> int:
    """Print rows as a table while they are read; print nothing if there are none.

    Args:
        headings: the headings of the columns.
        rows: the rows.
        colours: the colours on a terminal; None for none.

    Returns:
        The number of rows.
    """
    line, left, number = _line_width(), iter(rows), 0
    first = [*islice(left, FIRST_ROWS)]
    if not first:
        return 0
    widths = widths_of([headings, *(row.cells for row in first)], line)
    if colours is not None and (colours.column not in headings or not is_coloured()):
        colours = None
    _print_line(headings, widths, line)
    for row in chain(first, left):
        colour = None
        if colours is not None:
            place = headings.index(colours.column)
            colour = place, colours.of.get(row.cells[place])
        _print_line(row.cells, widths, line, colour)
        for detail in row.details:
            click.echo(detail)
        number += 1
    return number


def widths_of(table: Sequence[Sequence[str]], line: int) -> list[int]:
    """The widths of all columns, of a table that begins with its headings.

    If a line would be too long, the widest columns are cut first, then the last one, because it is
    free text, then others. Times are cut only if nothing else is left.
    """
    widths = [min(line, max(map(width_of, column))) for column in zip(*table, strict=True)]
    too_long = sum(widths) + len(GAP) * (len(widths) - 1) - line
    places = range(len(widths))
    others = [place for place in places if table[0][place] not in _TIMES]
    for may_be_cut, least in (
        (others, _LONG),
        (others[-1:], _NARROWEST),
        (others, _NARROWEST),
        (places, _NARROWEST),
    ):
        while too_long > 0 and may_be_cut:
            # Of columns of the same width, the last is cut: a key says more than a reason.
            widest = max(may_be_cut, key=lambda place: (widths[place], place))
            if widths[widest] <= least:
                break
            widths[widest] -= 1
            too_long -= 1
    return widths


def _print_line(
    cells: Sequence[str],
    widths: Sequence[int],
    line: int,
    colour: tuple[int, str | None] | None = None,
) -> None:
    """Print a row; ``colour`` is the place of the cell with a colour, and its colour, if any."""
    if width_of(GAP.join(padded_to(cells, widths))) > line:
        cells = [cut_to(cell, width) for cell, width in zip(cells, widths, strict=True)]
    padded = padded_to(cells, widths)
    if colour is None:
        click.echo(GAP.join(padded).rstrip())
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


def _line_width() -> int:
    try:
        return max(LINE, os.get_terminal_size(sys.stdout.fileno()).columns)
    except (OSError, ValueError, AttributeError):  # a file, a test's replacement, or closed
        return LINE

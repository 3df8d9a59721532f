"""Prints tables whose columns are as wide as their contents, as far as the line allows."""

import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import click

from psched.cli.output import are_terminals, write_styled
from psched.cli.time_format import zone_label
from psched.reports.redaction import Redaction

Item = TypeVar("Item")

LINE = 100
"""The width of a table in a file, unless the variable COLUMNS says another one. All widths are in
columns of a terminal, of which a Chinese or Japanese character takes two."""

FIRST_ROWS = 500
"""The widths of the columns follow the contents of so many rows, so that a long listing need not be
kept in memory."""

_LONG = 24  # the width above which columns are cut first; the keys of most extra runs are no longer
_NARROWEST = 8  # the width below which columns are cut only if nothing else is left
_DIGITS = 4  # the most digits of COLUMNS; a larger number is a mistake
GAP = "  "  # what is between two columns


class View(NamedTuple):
    """How values are shown: ``now`` is the time of the store's clock, in Unix seconds."""

    now: float
    redaction: Redaction


class Column(NamedTuple, Generic[Item]):
    """A column of a table, of the terminal and of the web.

    Attributes:
        heading: its heading.
        text: what it shows of an item, in one line.
        is_time: whether it shows times, of which a part says nothing.
        least: the width below which it is cut only if nothing else is left.
        colours: the colour of each text; other texts have none.
    """

    heading: str
    text: Callable[[Item, View], str]
    is_time: bool = False
    least: int = _NARROWEST
    colours: Mapping[str, str] = MappingProxyType({})


def headings_of(columns: Sequence[Column[Item]], now: float) -> list[str]:
    """The headings of a table, of which the first one of a time names the zone of all times."""
    headings = [column.heading for column in columns]
    for place, column in enumerate(columns):
        if column.is_time:
            headings[place] += f" ({zone_label(now)})"
            break
    return headings


def print_table(
    columns: Sequence[Column[Item]],
    items: Iterable[Item],
    view: View,
    details: Callable[[Item], Iterable[str]] = lambda _item: (),
) -> int:
    """Print items as a table while they are read; print nothing if there are none.

    ``details`` are lines below the row of an item, which are printed whole. The number of the items
    is returned.
    """
    line, number, coloured = line_width(), 0, is_coloured()
    left = ((item, [column.text(item, view) for column in columns]) for item in items)
    first = [*islice(left, FIRST_ROWS)]
    headings = headings_of(columns, view.now)
    widths = widths_of(columns, [headings, *(cells for _, cells in first)], line)
    for number, (item, cells) in enumerate(chain(first, left), 1):
        if number == 1:
            _print_line(headings, widths, line)
        colours = [
            column.colours.get(cell) if coloured else None
            for column, cell in zip(columns, cells, strict=True)
        ]
        _print_line(cells, widths, line, colours)
        for detail in details(item):
            click.echo(detail)
    return number


def widths_of(
    columns: Sequence[Column[Any]], table: Sequence[Sequence[str]], line: int
) -> list[int]:
    """The widths of all columns, of a table that begins with its headings.

    If a line would be too long, the widest columns are cut first, then the last one, because it is
    free text, then others. Keys and statuses are cut after these, and times only if nothing else is
    left.
    """
    widths = [min(line, max(map(width_of, cells))) for cells in zip(*table, strict=True)]
    too_long = sum(widths) + len(GAP) * (len(widths) - 1) - line
    places = range(len(widths))
    others = [place for place in places if not columns[place].is_time]
    for may_be_cut, least in (
        (others, dict.fromkeys(others, _LONG)),
        (others[-1:], {}),
        (others, {place: columns[place].least for place in others}),
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


def joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    """The cells of a row as a line; each but the last one is padded with blanks."""
    return GAP.join(_padded(cells, widths)).rstrip()


def _padded(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    cut = [cut_to(cell, width) for cell, width in zip(cells, widths, strict=True)]
    return [
        *(
            cell + " " * (width - width_of(cell))
            for cell, width in zip(cut, widths[:-1], strict=False)
        ),
        cut[-1],
    ]


def _print_line(
    cells: Sequence[str],
    widths: Sequence[int],
    line: int,
    colours: Sequence[str | None] = (),
) -> None:
    # The last cell may be longer than the others of its column, as long as the line has room.
    room = max(widths[-1], line - sum(widths[:-1]) - len(GAP) * (len(widths) - 1))
    padded = _padded(cells, (*widths[:-1], room))
    text = GAP.join(padded).rstrip()
    if not any(colours) or width_of(text) > line:
        click.echo(cut_to(text, line))
        return
    styled = (
        click.style(cell, fg=colour) if colour else cell
        for cell, colour in zip(padded, colours, strict=True)
    )
    write_styled(GAP.join(styled).rstrip() + "\n")


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

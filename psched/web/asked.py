"""What every page of the command web is made from, and the parts that pages have in common."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlencode

from psched.base.errors import InvalidError
from psched.base.texts import visible
from psched.cli.shown import columns_for
from psched.cli.text_table import Column, Item, View, headings_of
from psched.cli.time_format import local_times
from psched.cli.top.snapshot import Reader
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.core.history.run import Run
from psched.core.operations.extra_runs import schedule_key
from psched.reports.redaction import Redaction
from psched.web.fates import kind_of
from psched.web.users import READ, Right

REFRESH = 5  # seconds after which a browser reads a page of what happens now again
LOOK = 2  # seconds between two looks for what has changed, and for what a run has printed
POLL = 10  # seconds after which a browser that is told of no changes reads any other page again
DEADLINE = 5.0  # seconds in which the store must answer
PATIENCE = 2.0  # seconds in which the masters of this host must answer, while other requests wait
_ROWS = 100  # the rows of a table, unless the reader asks for more
_MOST_ROWS = 5000  # the most rows of a table


class Parameter(NamedTuple):
    """A field of the query of a page: its name, what it is, and its JSON schema."""

    name: str
    about: str
    schema: Mapping[str, Any] = MappingProxyType({"type": "string"})
    is_needed: bool = False


def choosing(name: str, about: str, choices: Iterable[str]) -> Parameter:
    """A field that has one of some values."""
    return Parameter(name, about, {"type": "string", "enum": [*choices]})


KEY = Parameter("key", "The key of a schedule or task.", is_needed=True)
LIMIT = Parameter(
    "limit", "The most rows.", {"type": "integer", "minimum": 1, "maximum": _MOST_ROWS}
)
SEARCH = Parameter("q", "Keys, and qualifiers such as state:failing, type:exec and label:billing.")


class Asked(NamedTuple):
    """What a page is made from.

    ``is_gone`` returns whether the client has hung up, so that nobody will read the page. ``right``
    is what the visitor may do.
    """

    schedules: ScheduleCollection
    settings: Config
    reader: Reader
    redaction: Redaction
    query: Mapping[str, str]
    is_gone: Callable[[], bool]
    right: Right = READ

    def view(self) -> View:
        """How runs are shown."""
        return View(self.schedules.now(), self.redaction)

    def limit(self) -> int:
        """The most rows of a table."""
        text = self.query.get("limit", str(_ROWS))
        # The first digits suffice, and int() refuses thousands of them.
        number = int(text[:9]) if text.isascii() and text.isdecimal() else 0
        if 0 < number <= _MOST_ROWS:
            return number
        raise InvalidError("limit", f"{text!r} is no number from 1 to {_MOST_ROWS}")

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        """One of the values that a field of the query can have."""
        text = self.query.get(name) or default
        if text in {default, *choices}:
            return text
        raise InvalidError(name, f"{text!r} is unknown; choose from {', '.join(choices)}")

    def key(self) -> str:
        """The key that the query names."""
        if key := self.query.get("key"):
            return key
        raise InvalidError("key", "is missing")

    def sentence(self, text: str) -> str:
        """A text of a report, with the times of its reader and without what is hidden."""
        return visible(local_times(self.redaction.text(text)))

    def lines(self, text: str) -> str:
        """A text of several lines, such as output, without what is hidden."""
        return visible(self.redaction.text(text), lines=True)


class Page(NamedTuple):
    """A page, which a browser reads again after so many seconds; 0 means if something changes.

    ``document`` makes what the page shows as JSON. ``is_away`` is whether the store has not
    answered.
    """

    name: str
    values: Mapping[str, Any]
    document: Callable[[], Any]
    status: HTTPStatus = HTTPStatus.OK
    refresh: int = 0
    is_away: bool = False


class Cell(NamedTuple):
    """A cell of a table, with what it links to, and its style; both can be empty.

    ``kind`` is the kind of `psched.web.fates` whose icon stands before the text; often empty.
    """

    text: str
    href: str = ""
    style: str = ""
    kind: str = ""


class Table(NamedTuple):
    """A table; ``more`` is what it links to if there are more rows."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    more: str = ""


def table_of_runs(runs: Sequence[Run], key: str | None, view: View) -> Table:
    """A table of runs, which lead to the pages of the runs and of their schedules."""

    def links(run: Run) -> Mapping[str, str]:
        when = run_link(run.key, run.scheduled_time)
        return {"WHEN": when, "KEY": schedule_link(schedule_key(run.key))}

    columns = columns_for(runs, key)
    made = table_of(columns, runs, view, links)
    at = next(place for place, column in enumerate(columns) if column.heading == "OUTCOME")
    return with_icons(made, at, map(kind_of, runs))


def with_icons(table: Table, at: int, kinds: Iterable[str]) -> Table:
    """The table with the icon of a kind in each row, before the text of one column."""
    rows = []
    for cells, kind in zip(table.rows, kinds, strict=True):
        rows.append([*cells[:at], cells[at]._replace(kind=kind), *cells[at + 1 :]])
    return table._replace(rows=rows)


def table_of(
    columns: Sequence[Column[Item]],
    items: Iterable[Item],
    view: View,
    links: Callable[[Item], Mapping[str, str]],
) -> Table:
    """A table of items; ``links`` are those of a row, by the heading of the column."""
    rows = []
    for item in items:
        of_row, cells = links(item), []
        for column in columns:
            text = column.text(item, view)
            href, style = of_row.get(column.heading, ""), column.colours.get(text, "")
            cells.append(Cell(text, href, style))
        rows.append(cells)
    return Table(headings_of(columns, view.now), rows)


def link(page: str, /, **query: str) -> str:
    """The address of a page, relative to the others, so that they can be below any path."""
    given = {name: value for name, value in query.items() if value}
    return f"{page}?{urlencode(given, errors='replace')}" if given else page


def schedule_link(key: str) -> str:
    """The address of the page of a schedule."""
    return link("schedule", key=key)


def run_link(key: str, time: int) -> str:
    """The address of the page of an occurrence."""
    return f"{_occurrences_link(key)}&time={time}"


@lru_cache(maxsize=1000)  # a timeline has many occurrences of each key
def _occurrences_link(key: str) -> str:
    return link("occurrence", key=key)


def more_link(page: str, query: Mapping[str, str], limit: int) -> str:
    """The address of the same page with more rows."""
    return link(page, **{**query, "limit": str(min(10 * limit, _MOST_ROWS))})

"""Reads the rows of a selection, or all of them, so that queries are short and memory use is small.

The table is read page by page. If a selection is narrow, the database first finds the keys and
times of its rows through the index of one condition, and the rows are then read by their keys. If a
selection is wide, the table is read in the order of the listing, and the database omits the rows
that do not match: then most of what it reads does match, and no list of keys fills the memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Self

from sqlalchemy import TextClause, text
from typing_extensions import override

from psched.base.texts import storable
from psched.core.model import RUNNING, WAITING, Row
from psched.core.selection import SelectedRows, Selection
from psched.stores.pages import Page, Pages
from psched.stores.sql.conditions import numbered, placeholders
from psched.stores.sql.dialects import Dialect

PAGE = 500
"""The most rows that one query returns."""

FIRST_PAGE = 20
"""The most rows that the first query returns: few, because the size of a row is still unknown."""

_GROWTH = 4

SIZE = 4_000_000
"""The most bytes of payload that a page should have.

The number of rows of a page is estimated from the size of the rows of the previous page.
"""


def next_limit(limit: int, rows: Sequence[Row]) -> int:
    """The number of rows of the next page, given the limit and the rows of the last page."""
    if not rows:
        return limit
    size = 1 + sum(len(row.data or "") + len(row.options or "") for row in rows)
    return min(PAGE, _GROWTH * limit, max(1, SIZE * len(rows) // size))


Read = Callable[[TextClause, Mapping[str, Any]], Sequence[Sequence[Any]]]
"""A function that sends a statement with its values, and returns the rows of its result."""


Parts = Sequence[tuple[TextClause, TextClause]]
"""Two statements for each part of a table.

The first reads the first page; the second reads the page after the row whose key is bound as
``:id`` and whose time, if it is not NULL, is bound as ``:time``. Both return the stored bytes of
the key, the time, and what makes a row. The key is returned as bytes, because a key that is not
UTF-8 would be decoded to a different key, and the next page would begin at the wrong row.
"""


def listing(read: Read, parts: Parts, row_of: Callable[..., Row]) -> Iterator[Row]:
    """Iterate over every row, one part of the table after the other; see `Pages`."""
    limit = min(FIRST_PAGE, PAGE)

    def page(place: Any, _most: int) -> Page[Row]:  # noqa: ANN401  # a part, and where it continues
        nonlocal limit
        part, after = place or (0, dict[str, Any]())
        first, following = parts[part]
        found = read(following if after else first, {**after, "limit": limit})
        is_last = len(found) < limit
        rows = [row_of(*columns) for _, _, *columns in found]
        limit = next_limit(limit, rows)
        if is_last:
            return Page(rows, (part + 1, {}) if part + 1 < len(parts) else None)
        key, time, *_ = found[-1]
        return Page(rows, (part, {"id": key} if time is None else {"id": key, "time": time}))

    return Pages(page, None, PAGE)


MOST_KEYS = 50_000
"""The most rows of a narrow selection. Their keys are kept in memory, about 10 MB."""

AT_REST = "(status <> 'waiting' OR next_run_time IS NULL)"
"""The condition of the index of statuses, which some databases use only if a query repeats it."""


@dataclass(frozen=True, slots=True)
class _Condition:
    """One condition of a selection.

    Attributes:
        arms: SQL conditions that together select the condition's rows, each through one index.
        plain: the condition written so that the planner uses no index for it.
        values: the values that are bound in both.
    """

    arms: Sequence[str]
    plain: str
    values: Mapping[str, Any] = field(default_factory=dict)


class SelectingStatements:
    """Builds the statements for one selection.

    A statement may return more rows than the selection has: `Selection.matches` decides. The name
    of the table is quoted already, and the columns are SQL.
    """

    def __init__(self, table: str, columns: str, dialect: Dialect, selection: Selection) -> None:
        self._table = table
        self._dialect = dialect
        place = f"{dialect.payload.format('id')}, next_run_time"
        self._page = f"SELECT {place}, {columns} FROM {table} WHERE "  # noqa: S608  # values are bound
        self._selection = selection
        self.conditions = [*self._build_conditions()]

    def _build_conditions(self) -> Iterator[_Condition]:
        selection, hidden = self._selection, self._dialect.exact.format
        if selection.statuses:
            yield self._status()
        for column, chosen in ("type", selection.types), ("label", selection.labels):
            if chosen:
                values = numbered(column, chosen)
                listed = placeholders(values)
                yield _Condition(
                    [f"{column} IN ({listed})"], f"{hidden(column)} IN ({listed})", values
                )
        if selection.prefix:
            values = {"prefix": storable(selection.prefix)}
            between = "{0} >= :prefix"
            if end := _after(values["prefix"]):
                values["prefix_end"] = end
                between += " AND {0} < :prefix_end"
            yield _Condition([between.format("id")], between.format(hidden("id")), values)
        if selection.lanes is not None:
            values = dict(zip(("lane", "lane_end"), selection.lanes, strict=True))
            between = "{0} >= :lane AND {0} < :lane_end"
            yield _Condition([between.format("lane")], between.format(hidden("lane")), values)
        if selection.due:
            now, waits = self._dialect.now_floor, f"{hidden('status')} = 'waiting'"
            yield _Condition(
                [f"next_run_time <= {now} AND {waits}"], f"next_run_time + 0 <= {now} AND {waits}"
            )

    def _status(self) -> _Condition:
        statuses, status = self._selection.statuses, self._dialect.exact.format("status")
        arms = []
        stored = statuses - {RUNNING}
        values = numbered("status", stored)
        listed = placeholders(values)
        if stored:
            arms.append(f"status IN ({listed}) AND {AT_REST}")
        if WAITING in statuses:
            owned = "" if RUNNING in statuses else " AND leased_by IS NULL"
            # A comparison instead of IS NOT NULL, for which SQLite would not use the index.
            arms.append(f"next_run_time >= :earliest AND {status} = 'waiting'{owned}")
            values["earliest"] = -(2**63)
        elif RUNNING in statuses:
            # A running row of any time is found through the index of owners, which has few rows.
            arms.append(f"leased_by IS NOT NULL AND {status} = 'waiting'")
        if RUNNING in statuses:
            values["status"] = WAITING
            listed = ", ".join(filter(None, (listed, ":status")))
        return _Condition(arms, f"{status} IN ({listed})", values)

    def count(self, condition: _Condition, read: Read) -> int:
        """Count the rows of one condition; each arm only up to `MOST_KEYS` + 1."""
        return sum(
            read(
                text(
                    f"SELECT COUNT(*) FROM (SELECT 1 FROM {self._table} WHERE {arm}"  # noqa: S608
                    " LIMIT :most) AS counted"
                ),
                {**condition.values, "most": MOST_KEYS + 1},
            )[0][0]
            for arm in condition.arms
        )

    def keys(self, through: _Condition, read: Read) -> list[tuple[Any, int | None]]:
        """Read key and time of each row; each arm of ``through`` gives up to `MOST_KEYS` + 1."""
        others = self._matching(besides=through)
        values = {**self.values, "most": MOST_KEYS + 1}
        found: list[tuple[Any, int | None]] = []
        for arm in through.arms:
            statement = text(
                f"SELECT {self._dialect.payload.format('id')}, next_run_time FROM {self._table}"  # noqa: S608
                f" WHERE {arm}{others} LIMIT :most"
            )
            found += [(key, time) for key, time in read(statement, values)]
        return found

    def rows(self, keys: Sequence[Any], read: Read) -> Mapping[Any, Sequence[Any]]:
        """Read the rows with these keys, as columns by the key's stored bytes.

        Rows that do not match any more are omitted: a row that was due may have been claimed.
        """
        named = {f"id{i}": key for i, key in enumerate(keys)}
        listed = ", ".join(self._dialect.text.format(f":{name}") for name in named)
        statement = text(f"{self._page}id IN ({listed}){self._matching()}")
        found = read(statement, {**self.values, **named})
        return {key: columns for key, _, *columns in found}

    @property
    def parts(self) -> Parts:
        """What reads the matching rows page by page in the order of the selection: `listing`."""
        dialect, matching = self._dialect, self._matching()
        key, limit = dialect.text.format(":id"), "LIMIT :limit"
        after = dialect.after.format("next_run_time", "id", ":time", key)
        in_time, at_rest = (
            f"{matching} ORDER BY {order} {limit}"
            for order in ("next_run_time, id", dialect.rest_order)
        )
        if self._selection.due:
            # Otherwise the last page would read all rows that are not due yet.
            in_time = f" AND next_run_time <= {dialect.now_floor}{in_time}"
        timed = f"next_run_time IS NOT NULL{in_time}", f"{after}{in_time}"
        resting = (
            f"next_run_time IS NULL{at_rest}",
            f"next_run_time IS NULL AND id > {key}{at_rest}",
        )
        parts = [timed] if self._selection.due else [timed, resting]
        if self._selection.sorted_by_key:
            in_order = f"{matching} ORDER BY id {limit}"
            parts = [(f"1 = 1{in_order}", f"id > {key}{in_order}")]
        return [
            (text(f"{self._page}{first}"), text(f"{self._page}{following}"))
            for first, following in parts
        ]

    def _matching(self, *, besides: _Condition | None = None) -> str:
        """The SQL that omits rows for which a condition, other than ``besides``, is false."""
        others = (each for each in self.conditions if each is not besides)
        return "".join(f" AND ({each.plain})" for each in others)

    @property
    def values(self) -> Mapping[str, Any]:
        """The values that are bound in all conditions."""
        return {name: value for each in self.conditions for name, value in each.values.items()}


class SelectedListing(Iterator[Row]):
    """Iterates over the rows of a selection; ``next`` passes on the exceptions of ``read``."""

    def __init__(
        self,
        build: Callable[[Selection], SelectingStatements],
        selection: Selection,
        read: Read,
    ) -> None:
        self._build = build
        self._selection = selection
        self._read = read
        self._rows: Iterator[Row] | None = None

    @override
    def __iter__(self) -> Self:
        return self

    @override
    def __next__(self) -> Row:
        if self._rows is None:
            self._rows = SelectedRows(self._open(), self._selection)
        return next(self._rows)

    def _open(self) -> Iterator[Row]:
        statements = self._build(self._selection)
        read = self._read
        counted = [(statements.count(each, read), each) for each in statements.conditions]
        if counted:
            count, narrowest = min(counted, key=itemgetter(0))
            # Several wide conditions can be narrow together, but one cannot.
            if count <= MOST_KEYS or len(counted) > 1:
                keys = statements.keys(narrowest, read)
                if len(keys) <= MOST_KEYS:
                    return _rows_by_key(self._sorted(keys), statements, read)
        values = statements.values
        return listing(
            lambda statement, place: read(statement, {**values, **place}),
            statements.parts,
            Row,
        )

    def _sorted(self, keys: list[tuple[Any, int | None]]) -> list[Any]:
        if self._selection.sorted_by_key:
            keys.sort(key=lambda each: each[0])
        else:
            keys.sort(key=lambda each: (each[1] is None, each[1] or 0, each[0]))
        # A row that moved between two queries may have been found twice.
        return [*dict.fromkeys(key for key, _ in keys)]


def _rows_by_key(keys: list[Any], statements: SelectingStatements, read: Read) -> Iterator[Row]:
    """Read rows by their keys, in the order of the keys; omit rows that are gone."""
    limit = FIRST_PAGE

    def page(begun: int, _most: int) -> Page[Row]:
        nonlocal limit
        begun = begun or 0
        end = begun + limit
        found = statements.rows(keys[begun:end], read)
        rows = [Row(*found[key]) for key in keys[begun:end] if key in found]
        limit = next_limit(limit, rows)
        return Page(rows, end if end < len(keys) else None)

    return Pages(page, None, PAGE) if keys else iter(())


def _after(prefix: str) -> str | None:
    """The smallest text that is greater than each text that begins with the prefix, if any."""
    largest, first_surrogate, after_surrogates = 0x10FFFF, 0xD800, 0xE000
    kept = prefix.rstrip(chr(largest))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(after_surrogates if following == first_surrogate else following)

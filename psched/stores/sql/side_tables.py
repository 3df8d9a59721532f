"""The tables beside the table of schedules: history, changes, workers, output and alerts.

Their rows are inserted, read page by page, the newest first, and deleted when they are old. What
all of these tables need stands here; the modules of the parts of the store contain the rest.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, TextClause, text

from psched.base.errors import SchemaError, StoreError, TransientStoreError
from psched.stores.pages import Page, Pages
from psched.stores.sql.conditions import Request, numbered, placeholders
from psched.stores.sql.connector import Connector
from psched.stores.sql.dialects import Dialect

PAGE = 200
"""The most records that one query returns."""


class SideTable:
    """One table, and the statements that every such table needs.

    Args:
        read: the columns of a record.
        others: its other columns.
        unique: the columns that identify a record, which have a unique index.
    """

    def __init__(
        self,
        name: str,
        dialect: Dialect,
        quote: Callable[[str], str],
        *,
        read: Sequence[str],
        others: Sequence[str] = (),
        unique: Sequence[str] = (),
    ) -> None:
        self.name, self.quoted = name, quote(name)
        self.columns = ", ".join(map(quote, read))
        self._quote, self._unique = quote, unique
        every, some = ", ".join(map(quote, [*read, *others])), quote(read[0])
        self.rights = rights_on(self.quoted, every, some)
        # This statement also fails if the table does not exist, or lacks a column.
        self.check = self.rights["SELECT"]
        # The end of an INSERT that leaves out a record that exists already.
        self.ignore = ""
        if unique:
            identity = ", ".join(map(quote, unique))
            self.ignore = dialect.ignore_duplicate.format(identity, quote("id"))
        # A condition that selects record number {0} of several.
        self.each = " AND ".join(f"{quote(name)} = :{name}{{0}}" for name in unique)
        # The condition that selects one record.
        self.one = self.each.format("")
        self.of_key, self.newest_of_key = (
            part.format(quote("key"), ":key") for part in dialect.newest_of_key
        )
        self._delete = (f"DELETE FROM {self.quoted} WHERE id IN (", ":id{0}", ")")

    def insertion(
        self, names: Sequence[str], computed: Mapping[str, str] | None = None, ignore: str = ""
    ) -> TextClause:
        """The statement that inserts a row: values that are bound, and values that are SQL."""
        values = {name: f":{name}" for name in names} | {**(computed or {})}
        return text(
            f"INSERT INTO {self.quoted} ({', '.join(map(self._quote, values))})"
            f" VALUES ({', '.join(values.values())}) {ignore}"
        )

    def delete(self, ids: Sequence[int]) -> Request:
        """A request that deletes rows."""
        return many(self._delete, len(ids)), {f"id{i}": id_ for i, id_ in enumerate(ids)}

    def for_each(self, query: str, records: Sequence[object], **values: object) -> Request:
        """A request that sends a query for each of some records, in one statement.

        The query is about record number {0}, see `each`, and binds the values besides.
        """
        for i, record in enumerate(records):
            values |= {f"{name}{i}": getattr(record, name) for name in self._unique}
        return unite(query, len(records)), values

    def trimming(self, time: str) -> tuple[TextClause, TextClause]:
        """The statements that read the oldest ids with a time, and that delete a range of ids.

        The ids grow nearly in the order of time, so that the old records are nearly a range.
        """
        return (
            text(
                f"SELECT id, {time} FROM {self.quoted} WHERE id > :after ORDER BY id LIMIT :limit"
            ),
            text(
                f"DELETE FROM {self.quoted} WHERE id >= :first AND id <= :last AND {time} < :before"
            ),
        )

    def page(self, where: "Where", order: str, limit: int) -> Request:
        """A request that reads one page of records."""
        statement = f"SELECT {self.columns} FROM {self.quoted}{where} ORDER BY {order} LIMIT :limit"
        return cached_text(statement), {**where.values, "limit": limit}


class Where:
    """The conditions of a query, and the values that they bind."""

    def __init__(self) -> None:
        self.conditions: list[str] = []
        self.values: dict[str, Any] = {}

    def add(self, condition: str, **values: Any) -> None:  # noqa: ANN401  # of any column
        """Add a condition, unless one of its values is None."""
        if None not in values.values():
            self.conditions.append(condition)
            self.values |= values

    def one_of(self, column: str, name: str, chosen: Iterable[str]) -> str:
        """A condition that a column has one of some values, which are bound."""
        values = numbered(name, chosen)
        self.values |= values
        return f"{column} IN ({placeholders(values)})"

    def __str__(self) -> str:
        return f" WHERE {' AND '.join(self.conditions)}" if self.conditions else ""


class SideStore:
    """A part of a store that keeps records in tables beside the table of schedules.

    Args:
        check: sets ``missing`` anew, because somebody may have run `psched init` meanwhile.

    Attributes:
        missing: why nothing is kept, as of the last connection; None if it is.
    """

    def __init__(
        self, connector: Connector, check: Callable[[Connection], None], *tables: SideTable
    ) -> None:
        self._connector = connector
        self._query, self._write = connector.query, connector.write
        self._check = check
        self.tables = tables
        self.missing: str | None = "not connected yet"

    def problem(self) -> str | None:
        """Why nothing is kept, for example because the tables do not exist; None if it is."""
        self._connector.read(self._check)
        return self.missing

    def try_rights(self) -> None:
        """Check that the user may do to the tables what psched does; see `Store.try_rights`."""
        if self.missing is None:
            for table in self.tables:
                try_rights(self._connector, table.rights, table.name)

    def _require(self) -> None:
        """Raise an error if nothing is kept."""
        if self.missing is not None and (problem := self.problem()) is not None:
            raise SchemaError(problem)


def rights_on(table: str, columns: str, changed: str) -> Mapping[str, TextClause]:
    """Statements that change no row, each of which needs the right that is its key."""
    return {
        "SELECT": text(f"SELECT {columns} FROM {table} WHERE 1 = 0"),
        "INSERT": text(
            f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {table} WHERE 1 = 0"
        ),
        "UPDATE": text(f"UPDATE {table} SET {changed} = {changed} WHERE 1 = 0"),
        "DELETE": text(f"DELETE FROM {table} WHERE 1 = 0"),
    }


def try_rights(connector: Connector, tried: Mapping[str, TextClause], table: str) -> None:
    """Send statements that change nothing, each of which needs the right that is its key."""
    refused: dict[str, str] = {}
    for right, statement in tried.items():
        try:
            connector.write(statement, {})
        except (SchemaError, TransientStoreError):
            raise
        except StoreError as error:
            refused[right] = str(error)
    if refused:
        rights, reason = ", ".join(refused), next(iter(refused.values()))
        raise StoreError(f"cannot {rights} in the table {table!r}: {reason}")


class _Numbered(Protocol):
    @property
    def id(self) -> int | None: ...


T = TypeVar("T", bound=_Numbered)


def pages(
    read: Callable[[int | None, int], Sequence[T]],
    limit: int | None,
    size: int = PAGE,
    keep: Callable[[T], bool] = lambda _record: True,
) -> Iterator[T]:
    """Read records by their ids, the newest first; see `Pages`.

    ``read`` gets the id before which the page is, None for the first page, and its most records.
    """

    def page(place: Any, most: int) -> Page[T]:  # noqa: ANN401  # an id, or the empty text
        found = read(place or None, most)
        return Page([*filter(keep, found)], found[-1].id if len(found) == most else None)

    return Pages(page, limit, size)


@lru_cache(maxsize=256)
def many(parts: tuple[str, str, str], count: int, separator: str = ", ") -> TextClause:
    """A statement: a head, a part for each of ``count`` values, and a tail."""
    head, each, tail = parts
    return text(head + separator.join(each.format(i) for i in range(count)) + tail)


def unite(query: str, count: int) -> TextClause:
    """A statement of ``count`` queries, in each of which {0} is its number."""
    return many(("", query, ""), count, " UNION ALL ")


@lru_cache(maxsize=256)
def cached_text(statement: str) -> TextClause:
    """A statement; the same object for the same text, so that it is compiled once."""
    return text(statement)

"""PerfectSched's table: how it is made, as PerfectSched makes it, and read page by page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from sqlalchemy import (
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    TextClause,
    inspect,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex, CreateTable

from psched.backends.compat.rows import Stored
from psched.backends.compat.statements import Statements
from psched.backends.dialects import Dialect
from psched.model import Row

PAGE = 500
"""Rows in one query."""

Read = Callable[[TextClause, Mapping[str, Any]], Sequence[Sequence[Any]]]
"""Sends a statement with its values; the rows that it returns."""


def make(connection: Connection, name: str, dialect: Dialect) -> Sequence[str]:
    """Create the table and its index where they are missing; what is there stays as it is.

    Returns:
        What was done, one line each, for people.
    """
    for statement in dialect.init_session:
        connection.execute(text(statement))
    table = _table(name)
    if not inspect(connection).has_table(name):
        connection.execute(CreateTable(table, if_not_exists=True))
        done = [f"created table {name}"]
    else:
        done = []
    (index,) = table.indexes
    if not _has_index_on_timeout(connection, name):
        try:
            connection.execute(CreateIndex(index))
        except DBAPIError:
            # Of two that do this at once, one finds it done.
            if not _has_index_on_timeout(connection, name):
                raise
        else:
            done.append(f"created index {index.name}")
    return done


def _table(name: str) -> Table:
    blob = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
    return Table(
        name,
        MetaData(),
        Column("id", String(255), primary_key=True, nullable=False),
        Column("timeout", Integer, nullable=False),
        Column("next_time", Integer, nullable=False),
        Column("cron", String(128), nullable=False),
        Column("delay", Integer, nullable=False),
        Column("data", blob, nullable=False),
        Column("timezone", String(255)),
        Index(f"index_{name}_on_timeout", "timeout"),
    )


def _has_index_on_timeout(connection: Connection, name: str) -> bool:
    indexes = inspect(connection).get_indexes(name)
    return any(index["column_names"][:1] == ["timeout"] for index in indexes)


class Listing(Iterator[Row]):
    """Every row, those due first, those at rest last.

    Not a generator: when the store has been away, it goes on where it was.

    Args:
        read: reads from the store; what it raises is passed on.
        sql: the table's statements.
        understand: what a row is to psched, by the store's clock when it was read.
    """

    def __init__(
        self, read: Read, sql: Statements, understand: Callable[[Stored, float], Row]
    ) -> None:
        self._read = read
        self._sql = sql
        self._understand = understand
        self._next: TextClause | None = sql.first
        self._at: dict[str, Any] = {}
        self._page: list[Row] = []  # the last one comes first

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Row:
        while not self._page:
            if self._next is None:
                raise StopIteration
            self._turn(self._next)
        return self._page.pop()

    def _turn(self, statement: TextClause) -> None:
        found = self._read(statement, {**self._at, "limit": PAGE})
        rows = [(Stored(*columns), float(now)) for _, now, *columns in found]
        self._page = [self._understand(*row) for row in reversed(rows)]
        if len(found) == PAGE:
            self._at = {"id": found[-1][0], "timeout": rows[-1][0].timeout}
            self._next = self._sql.same_time
        elif statement is self._sql.same_time:
            self._at = {"timeout": self._at["timeout"]}
            self._next = self._sql.later
        else:
            self._next = None

"""Statements sent through the driver itself, as SQLAlchemy has compiled them.

Around each statement SQLAlchemy builds a context, and for a result a description of every column
and an object for every row. That is ten times the work that SQLite has with a claim that finds
nothing, and what workers ask all the time are a dozen statements whose rows are tuples to us. So
SQLAlchemy opens the connections, makes the tables and compiles what is sent; and what is sent
again and again goes past it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

from sqlalchemy import ClauseElement, Connection
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError

Columns = Sequence[Any]
"""A row as a query has returned it."""


def rows(
    connection: Connection, statement: ClauseElement, values: Mapping[str, Any]
) -> Sequence[Columns]:
    """All that a query returns.

    Raises:
        DBAPIError: what the driver raised is in it, as if SQLAlchemy had asked.
    """
    found: Sequence[Columns] = _sent(connection, statement, values, _fetch_all)
    return found


def count(connection: Connection, statement: ClauseElement, values: Mapping[str, Any]) -> int:
    """Send a statement that writes; the number of rows that it met.

    Raises:
        DBAPIError: what the driver raised is in it, as if SQLAlchemy had asked.
    """
    met: int = _sent(connection, statement, values, _row_count)
    return met


def only_rows(connection: Connection, script: str) -> Sequence[Columns]:
    """Send statements without values as one request; the rows of the only one that returns any.

    Raises:
        DBAPIError: what the driver raised is in it, as if SQLAlchemy had asked.
    """
    found: Sequence[Columns] = _executed(connection, script, None, _fetch_only)
    return found


_fetch_all = methodcaller("fetchall")
_row_count = attrgetter("rowcount")


def _fetch_only(cursor: Any) -> Sequence[Columns]:  # noqa: ANN401  # PEP 249
    while cursor.description is None:
        if not cursor.nextset():
            return []
    found: Sequence[Columns] = cursor.fetchall()
    return found


def _sent(
    connection: Connection,
    statement: ClauseElement,
    values: Mapping[str, Any],
    answer: Callable[[Any], Any],
) -> Any:  # noqa: ANN401  # PEP 249
    compiled = _compiled(statement, connection.dialect)
    return _executed(connection, compiled.text, compiled.bound(values), answer)


def _executed(
    connection: Connection,
    text: str,
    bound: Any,  # noqa: ANN401  # PEP 249
    answer: Callable[[Any], Any],
) -> Any:  # noqa: ANN401  # PEP 249
    refused = connection.dialect.loaded_dbapi.Error
    cursor = None
    try:
        cursor = connection.connection.cursor()
        cursor.execute(text, bound)
        return answer(cursor)
    except refused as error:
        if cursor is not None:
            # Or it would hold what it has read until nobody knows of the error any more.
            with suppress(refused):
                cursor.close()
        raise DBAPIError(text, None, error, hide_parameters=True) from None
    except BaseException:
        # Somebody was stopped here, say. Nobody has read the answer to its end: the next one
        # would be taken for another's.
        connection.invalidate()
        raise


class _Compiled(NamedTuple):
    """A statement in a driver's own words.

    Attributes:
        text: with its placeholders.
        names: of the values for these, one by one; None: they have the names themselves.
        own: the values that belong to the statement.
    """

    text: str
    names: Sequence[str] | None
    own: Mapping[str, Any]

    def bound(self, values: Mapping[str, Any]) -> Any:  # noqa: ANN401  # PEP 249
        """What the driver takes."""
        every = {**self.own, **values} if self.own else values
        return every if self.names is None else [*map(every.__getitem__, self.names)]


@lru_cache(maxsize=128)
def _compiled(statement: ClauseElement, dialect: Dialect) -> _Compiled:
    compiled: Any = statement.compile(dialect=dialect)  # a SQLCompiler
    own = {name: bind.value for name, bind in compiled.binds.items() if not bind.required}
    return _Compiled(str(compiled), compiled.positiontup, own)

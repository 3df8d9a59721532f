"""Executes statements with the driver itself, after SQLAlchemy has compiled them.

For each statement, SQLAlchemy builds a context, a description of every column of the result, and an
object for every row. This work takes ten times as long as SQLite takes for a claim that finds
nothing. Workers repeatedly send the same dozen statements, whose rows psched reads as tuples. So
SQLAlchemy opens the connections, creates the tables and compiles these statements, but the driver
executes them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ClauseElement, Connection
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError

T = TypeVar("T")

Columns = Sequence[Any]
"""The values of one row of a query's result, in the order of its columns."""


def rows(
    connection: Connection, statement: ClauseElement, values: Mapping[str, Any]
) -> Sequence[Columns]:
    """Send a query; return all rows of its result."""
    compiled = _compile(statement, connection.dialect)
    return _execute(connection, compiled.text, compiled.bind(values), _fetch_all)


def rows_after(
    connection: Connection,
    first: Sequence[tuple[ClauseElement, Mapping[str, Any]]],
    statement: ClauseElement,
    values: Mapping[str, Any],
) -> Sequence[Columns]:
    """Send statements and a query in one round trip; return the rows of the query.

    With psycopg, all of them are one transaction. With PyMySQL, it is committed before the query,
    and after an error it has to be rolled back.
    """
    driver_error = connection.dialect.loaded_dbapi.Error
    by_pipeline = connection.dialect.driver == "psycopg"
    send_all = _last_of_pipeline if by_pipeline else _last_of_script
    try:
        cursor = send_all(connection, driver_error, (*first, (statement, values)))
        found: Sequence[Columns] = cursor.fetchall()
    except driver_error as error:
        raise DBAPIError(str(statement), None, error, hide_parameters=True) from None
    except BaseException:
        connection.invalidate()  # as in `_execute`
        raise
    return found


def _last_of_script(
    connection: Connection,
    _driver_error: type[Exception],
    requests: Sequence[tuple[ClauseElement, Mapping[str, Any]]],
) -> Any:  # noqa: ANN401  # PEP 249
    cursor: Any = connection.connection.cursor()
    texts = ["BEGIN"]
    for statement, values in requests:
        compiled = _compile(statement, connection.dialect)
        texts.append(cursor.mogrify(compiled.text, compiled.bind(values)))
    texts.insert(-1, "COMMIT")
    cursor.execute(";".join(texts))
    for _ in texts[1:]:
        cursor.nextset()
    return cursor


def _last_of_pipeline(
    connection: Connection,
    driver_error: type[Exception],
    requests: Sequence[tuple[ClauseElement, Mapping[str, Any]]],
) -> Any:  # noqa: ANN401  # PEP 249
    opened: Any = connection.connection.driver_connection
    cursors: list[Any] = []
    failure: Exception | None = None
    try:
        with opened.pipeline():
            try:
                for statement, values in requests:
                    compiled = _compile(statement, connection.dialect)
                    cursors.append(opened.execute(compiled.text, compiled.bind(values)))
            except driver_error as error:
                failure = error  # it does not leave the block, or psycopg would log what follows
    except driver_error as error:
        failure = failure or error  # the first one is the cause
    if failure is not None:
        raise failure
    return cursors[-1]


def count(connection: Connection, statement: ClauseElement, values: Mapping[str, Any]) -> int:
    """Send a statement that writes; return the number of rows that it matched."""
    compiled = _compile(statement, connection.dialect)
    return _execute(connection, compiled.text, compiled.bind(values), _row_count)


def repeat(
    connection: Connection, statement: ClauseElement, values: Sequence[Mapping[str, Any]]
) -> None:
    """Send a statement that writes once for each mapping of values; the driver may combine them."""
    compiled = _compile(statement, connection.dialect)
    bound = [compiled.bind(each) for each in values]
    many = len(bound) > 1
    _execute(connection, compiled.text, bound if many else bound[0], _nothing, many=many)


def insert_many(
    connection: Connection,
    head: ClauseElement,
    row: ClauseElement,
    given: Sequence[Sequence[Any]],
    values: Mapping[str, Any],
) -> None:
    """Send one statement that inserts rows, all or none.

    SQLAlchemy compiles the two parts of the statement, because it would take longer to compile
    thousands of placeholders than the database takes to insert the rows.
    """
    once, names = _by_position(row, connection.dialect)
    same = [values[name] for name in names[len(given[0]) :]]
    text = _compile(head, connection.dialect).text + ", ".join([once] * len(given))
    bound: list[Any] = []
    for each in given:
        bound += each
        bound += same
    _execute(connection, text, bound, _nothing)


def send(connection: Connection, statement: str) -> None:
    """Send a statement that has neither values nor a result, such as ``COMMIT``."""
    _execute(connection, statement, (), _nothing)


def rows_of_script(connection: Connection, script: str) -> Sequence[Columns]:
    """Send statements without values in one request; return the rows of the one query."""
    return _execute(connection, script, None, _fetch_only)


_fetch_all = methodcaller("fetchall")
_row_count: Callable[[Any], int] = attrgetter("rowcount")


def _nothing(_cursor: object) -> None:
    pass


def _fetch_only(cursor: Any) -> Sequence[Columns]:  # noqa: ANN401  # PEP 249
    while cursor.description is None:
        if not cursor.nextset():
            return []
    found: Sequence[Columns] = cursor.fetchall()
    return found


def _execute(
    connection: Connection,
    text: str,
    bound: Any,  # noqa: ANN401  # PEP 249
    read_result: Callable[[Any], T],
    *,
    many: bool = False,
) -> T:
    driver_error = connection.dialect.loaded_dbapi.Error
    cursor = None
    try:
        cursor = connection.connection.cursor()
        (cursor.executemany if many else cursor.execute)(text, bound)
        return read_result(cursor)
    except driver_error as error:
        if cursor is not None:
            # The error's traceback refers to the cursor, and the cursor to the rows that were read.
            # So the cursor is closed, which frees the rows.
            with suppress(driver_error):
                cursor.close()
        raise DBAPIError(text, None, error, hide_parameters=True) from None
    except BaseException:
        # An interruption, such as a signal, may have left part of the answer unread. The connection
        # is dropped, because the next statement would read that part as its own answer.
        connection.invalidate()
        raise


class _Compiled(NamedTuple):
    """A statement in the form that the driver requires.

    Attributes:
        text: the statement with the driver's placeholders.
        names: the names of the values in the order of their placeholders; None if the
            placeholders contain the names.
        own: the values that were bound when the statement was built, by name.
    """

    text: str
    names: Sequence[str] | None
    own: Mapping[str, Any]

    def bind(self, values: Mapping[str, Any]) -> Any:  # noqa: ANN401  # PEP 249
        """The values, including ``own``, as the list or mapping that the driver requires."""
        every = {**self.own, **values} if self.own else values
        return every if self.names is None else [*map(every.__getitem__, self.names)]


@lru_cache(maxsize=128)
def _compile(statement: ClauseElement, dialect: Dialect) -> _Compiled:
    compiled: Any = statement.compile(dialect=dialect)  # its class is SQLCompiler
    own = {name: bind.value for name, bind in compiled.binds.items() if not bind.required}
    return _Compiled(str(compiled), compiled.positiontup, own)


_NAMED_PLACEHOLDER = re.compile(r"%\((\w+)\)s")


def _by_position(statement: ClauseElement, dialect: Dialect) -> tuple[str, Sequence[str]]:
    """A statement whose placeholders have no names, and the names of its values in their order."""
    compiled = _compile(statement, dialect)
    if compiled.names is not None:
        return compiled.text, compiled.names
    names = _NAMED_PLACEHOLDER.findall(compiled.text)
    return _NAMED_PLACEHOLDER.sub("%s", compiled.text), names

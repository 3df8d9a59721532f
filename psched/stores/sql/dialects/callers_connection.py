"""Accepts the connections that programs have: SQLAlchemy's, Django's and those of the drivers."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import URL, Connection, create_engine
from sqlalchemy.pool import StaticPool

from psched.base.errors import InvalidError

_URLS: Mapping[str, str] = {
    "sqlite3": "sqlite://",
    "psycopg": "postgresql+psycopg://",
    "pymysql": "mysql+pymysql://",
    "MySQLdb": "mysql+mysqldb://",
}
"""The urls that make SQLAlchemy use a driver, by the name of the driver's package."""


_KINDS = {"mariadb": "mysql"}
"""Names of SQLAlchemy's for a kind of database that has another name, too."""


def callers_connection(given: object, url: URL) -> Connection:
    """The program's connection, in the form that `JoinedTransaction` needs.

    Args:
        given: a connection of SQLAlchemy's, of Django's, or of the database's driver (PEP 249).
        url: the url of the schedules' database.

    Raises:
        InvalidError: the object is none of these, or a connection to another kind of database.
    """
    connection = _of_sqlalchemy(given)
    names = connection.dialect.name, url.get_backend_name()
    theirs, ours = (_KINDS.get(name, name) for name in names)
    if theirs != ours:
        raise InvalidError("connection", f"is to {theirs}, but the schedules are in {ours}")
    return connection


def _of_sqlalchemy(given: Any) -> Connection:  # noqa: ANN401  # one of three kinds
    if isinstance(given, Connection):
        return given
    if hasattr(given, "ensure_connection"):  # Django's: it contains the driver's, once it is open
        given.ensure_connection()
        return _of_sqlalchemy(given.connection)
    for ancestor in type(given).__mro__:
        url = _URLS.get(ancestor.__module__.partition(".")[0])
        if url is not None and hasattr(given, "cursor") and hasattr(given, "rollback"):
            return _around(given, url)
    raise InvalidError(
        "connection",
        "must be a connection of SQLAlchemy's, of Django's, or of one of the drivers"
        f" {', '.join(_URLS)}; not {type(given).__name__}. That of a Session is"
        " session.connection()",
    )


def _around(driver_connection: object, url: str) -> Connection:
    """A connection of SQLAlchemy's that sends statements through an open one of the driver's."""
    engine = create_engine(
        url,
        creator=lambda: driver_connection,
        poolclass=StaticPool,
        pool_reset_on_return=None,
        hide_parameters=True,
        _initialize=False,  # SQLAlchemy would query the server's properties, and roll back
    )
    # The transaction is the program's: SQLAlchemy must not end it, nor close the connection, when
    # its own object is no longer used.
    for ending in "do_commit", "do_rollback", "do_close", "do_terminate":
        setattr(engine.dialect, ending, _nothing)
    return engine.connect()


def _nothing(_connection: object) -> None:
    pass

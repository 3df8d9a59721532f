"""A transaction of the calling program, in which schedules are added.

The program's connection is one of SQLAlchemy's, Django's or a driver's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache, partial
from inspect import iscoroutinefunction
from sys import modules
from typing import Any, NamedTuple

from sqlalchemy import URL, Connection, Engine, TextClause, create_engine, event, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool
from typing_extensions import override

from psched.base.errors import InvalidError, StoreError
from psched.core.model import Row
from psched.core.store_protocol import CallersTransaction
from psched.stores.sql.conditions import Request
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.errors import ErrorKind, exception_for


class JoinedTransaction(CallersTransaction):
    """A transaction that a program has begun on its own connection, and that adds schedules.

    Args:
        inserts: returns the statements that insert rows; each row stores the given nonce.
        announcement: the statement that announces that rows may be due; None if there is none.
    """

    def __init__(
        self,
        caller: "Caller",
        dialect: Dialect,
        now: TextClause,
        inserts: Callable[[Sequence[Row], str], Sequence[Request]],
        announcement: str | None,
    ) -> None:
        self._connection = caller.connection
        self._after_commit = caller.after_commit
        self._dialect = dialect
        self._now = now
        self._inserts = inserts
        self._announcement = announcement

    @override
    def now(self) -> float:
        with self._raising(nothing_can_be_committed=True):
            return float(self._connection.execute(self._now).scalar_one())

    @override
    def add(self, rows: Sequence[Row], *, nonce: str) -> None:
        self._write(self._inserts(rows, nonce))

    def after_commit(self, function: Callable[[], object]) -> None:
        """Have a function called after the commit; see `TellsOfCommit.after_commit`."""
        if self._after_commit is not None:
            self._after_commit(function)

    def announce(self) -> None:
        """Announce when the transaction commits; see `AnnouncesInTransaction.announce`."""
        if self._announcement is not None:
            self._write([(text(self._announcement), {})])

    def _write(self, requests: Sequence[Request]) -> None:
        """Send statements of which all are applied, or none; a failure undoes nothing else."""
        # In PostgreSQL, an error aborts the whole transaction, unless it is behind a savepoint.
        within = not _commits_by_itself(self._connection)
        with (
            self._raising(nothing_can_be_committed=within),
            self._connection.begin_nested() if within and self._dialect.aborts else nullcontext(),
        ):
            for request in requests:
                self._connection.execute(*request)

    @contextmanager
    def _raising(self, *, nothing_can_be_committed: bool) -> Iterator[None]:
        """Raise psched's exceptions for the database's errors within the block."""
        try:
            yield
        except DBAPIError as error:
            cause, dialect = error.orig or error, self._dialect
            kind = dialect.classify(cause)
            if kind is ErrorKind.UNKNOWN and nothing_can_be_committed:
                kind = ErrorKind.UNAVAILABLE
            raise exception_for(kind, dialect.explain(cause)) from None
        except UnicodeEncodeError as error:
            text = f"{error.object[error.start : error.end]!r} is not in its character set"
            raise InvalidError("connection", f"{text}; open it with UTF-8") from None
        except SQLAlchemyError as error:
            raise StoreError(f"connection: {error}") from None


def _commits_by_itself(connection: Connection) -> bool:
    """Whether a connection commits the next statement by itself, so that no savepoint can be set.

    The answer for drivers other than psycopg can be wrong: only PostgreSQL needs savepoints.
    """
    driver: Any = connection.connection.driver_connection
    if not getattr(driver, "autocommit", False):
        return False
    # psycopg's `Connection.transaction` begins one on a connection that commits by itself, too.
    return not getattr(getattr(driver, "info", None), "transaction_status", 0)


class _Driver(NamedTuple):
    """A driver whose connections can be given.

    Attributes:
        url: makes SQLAlchemy use the driver.
        cursor: opens a cursor that binds values, and returns rows, as SQLAlchemy expects it: the
            program may have set that cursors do otherwise. Its arguments are the driver's package
            and the connection.
    """

    url: str
    cursor: Callable[[Any, Any], Any]


def _of_sqlite(_package: Any, connection: Any) -> Any:  # noqa: ANN401  # PEP 249
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


_DRIVERS: Mapping[str, _Driver] = {
    "sqlite3": _Driver("sqlite://", _of_sqlite),
    "psycopg": _Driver(
        "postgresql+psycopg://",
        lambda package, connection: package.Cursor(connection, row_factory=package.rows.tuple_row),
    ),
    "pymysql": _Driver(
        "mysql+pymysql://", lambda package, connection: package.cursors.Cursor(connection)
    ),
    "MySQLdb": _Driver(
        "mysql+mysqldb://", lambda package, connection: package.cursors.Cursor(connection)
    ),
}
"""The drivers, by the names of their packages."""

_KINDS = {"mariadb": "mysql"}
"""Names of SQLAlchemy's for a kind of database that has another name, too."""


class Caller(NamedTuple):
    """A program's connection, in the form that `JoinedTransaction` needs.

    Attributes:
        connection: the connection, as one of SQLAlchemy's.
        after_commit: has a function called after the next commit; see
            `TellsOfCommit.after_commit`. None if nobody knows when the program commits.
    """

    connection: Connection
    after_commit: Callable[[Callable[[], object]], object] | None


def callers_connection(given: object, url: URL) -> Caller:
    """Prepare a program's connection for a request of psched's."""
    caller = _caller(given)
    names = caller.connection.engine.url.get_backend_name(), url.get_backend_name()
    theirs, ours = (_KINDS.get(name, name) for name in names)
    if theirs != ours:
        raise InvalidError("connection", f"is to {theirs}, but the schedules are in {ours}")
    return caller


def _caller(given: Any) -> Caller:  # noqa: ANN401  # one of three kinds
    if isinstance(given, Connection):
        return Caller(given, partial(_after_return, given))
    if hasattr(given, "ensure_connection"):  # Django's: it contains the driver's, once it is open
        given.ensure_connection()
        # Django refuses `on_commit` if the program has switched off both its ways to commit.
        knows = given.in_atomic_block or given.get_autocommit()
        driver = _caller(given.connection)
        return driver._replace(after_commit=given.on_commit if knows else None)
    kind = type(given)
    if hasattr(given, "cursor") and not iscoroutinefunction(getattr(given, "rollback", None)):
        for package in (ancestor.__module__.partition(".")[0] for ancestor in kind.__mro__):
            if package in _DRIVERS:
                return Caller(_around(given, package), None)
    raise InvalidError(
        "connection",
        "must be a connection of SQLAlchemy's, of Django's, or of one of the drivers"
        f" {', '.join(_DRIVERS)}; not {kind.__module__}.{kind.__qualname__}. That of a Session is"
        " session.connection()",
    )


_WAITING = "psched_after_return"
"""The entry in the ``info`` of a connection that contains the functions of `_after_return`."""


def _after_return(connection: Connection, function: Callable[[], object]) -> None:
    """Call a function when a connection has returned to its pool.

    SQLAlchemy tells of a commit before the commit, so that event is of no use. A connection usually
    returns as soon as its transaction has ended.
    """
    pool = connection.engine.pool
    # `event.contains` is of no use: it takes a new pool for a deleted one that was at its address.
    if _returned not in pool.dispatch.checkin:
        event.listen(pool, "checkin", _returned)
    connection.info.setdefault(_WAITING, set()).add(function)


def _returned(_connection: object, record: ConnectionPoolEntry) -> None:
    for function in record.info.pop(_WAITING, ()):
        function()


class _DriversConnection:
    """A connection of a driver with plain cursors; everything else is that of the connection."""

    def __init__(self, connection: object, package: str) -> None:
        self._connection = connection
        self._package = package

    def cursor(self) -> Any:  # noqa: ANN401  # PEP 249
        """Open a cursor."""
        return _DRIVERS[self._package].cursor(modules[self._package], self._connection)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # that of the connection
        return getattr(self._connection, name)


_given: ContextVar[_DriversConnection] = ContextVar("_given")


def _around(connection: object, package: str) -> Connection:
    """A connection of SQLAlchemy's that sends statements through an open one of the driver's."""
    token = _given.set(_DriversConnection(connection, package))
    try:
        return _engine(_DRIVERS[package].url).connect()
    finally:
        _given.reset(token)


@lru_cache
def _engine(url: str) -> Engine:
    """An engine that connects through what `_given` contains; it keeps the compiled statements."""
    engine = create_engine(
        url,
        creator=_given.get,
        poolclass=NullPool,
        pool_reset_on_return=None,
        hide_parameters=True,
        _initialize=False,  # SQLAlchemy would query the server's properties, and roll back
    )
    # The transaction is the program's: SQLAlchemy must not end it, nor close the connection, when
    # its own object is no longer used.
    for ending in "do_commit", "do_rollback", "do_close", "do_terminate":
        setattr(engine.dialect, ending, _nothing)
    return engine


def _nothing(_connection: object) -> None:
    pass

"""A transaction of the calling program, in which schedules are added."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from typing_extensions import override

from psched.base.errors import InvalidError, StoreError
from psched.core.model import Row
from psched.core.store_protocol import CallersTransaction
from psched.stores.sql.conditions import Request
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.dialects.callers_connection import Caller
from psched.stores.sql.errors import ErrorKind, exception_for


class JoinedTransaction(CallersTransaction):
    """A transaction that a program has begun on its own connection, and that adds schedules.

    Args:
        caller: the program's connection.
        dialect: the kind of database.
        now: the statement that reads the store's clock.
        inserts: returns the statements that insert rows; each row stores the given nonce.
        announcement: the statement that announces that rows may be due; None if there is none.
    """

    def __init__(
        self,
        caller: Caller,
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

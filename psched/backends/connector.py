"""One connection to the database, opened when needed, dropped when broken.

There is no pool and no transaction: every write of psched is one statement, conditional on
what it expects to find, and commits by itself. That costs one round trip instead of three,
and leaves no half-done work behind whatever dies.
"""

import random
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from psched.backends.dialect import Dialect, Fault, dialect_of
from psched.clock import Clock
from psched.config import urls
from psched.errors import (
    AlreadyExistsError,
    ConfigError,
    ScheduleError,
    SchemaError,
    StoreError,
    StoreUnavailableError,
    UnknownOutcomeError,
)

T = TypeVar("T")

LOCK_WAIT = 1.0
"""Seconds that a statement waits for somebody else's lock, at most."""

_PAUSES = (0.0005, 0.003)
"""Seconds between two tries for SQLite's write lock, drawn anew for each."""

_MESSAGES = {
    Fault.NOT_APPLIED: "the database is busy",
    Fault.UNAVAILABLE: "the database is unavailable",
    Fault.READ_ONLY: "the database is read-only",
    Fault.UNKNOWN: "the connection to the database broke",
    Fault.SCHEMA: "the table is not as psched needs it, run `psched init`",
    Fault.DUPLICATE: "a row with this key exists",
    Fault.UNFIT: "the database refused",
    Fault.MISCONFIGURED: "the database server cannot be used as it is configured",
    Fault.REFUSED: "the database refused",
}


class UnfitError(StoreError):
    """A value does not fit: the row's own fault, and no other row's."""


_ERRORS: dict[Fault, type[StoreError | ScheduleError]] = {
    Fault.NOT_APPLIED: StoreUnavailableError,
    Fault.UNAVAILABLE: StoreUnavailableError,
    Fault.READ_ONLY: StoreUnavailableError,
    Fault.UNKNOWN: UnknownOutcomeError,
    Fault.SCHEMA: SchemaError,
    Fault.DUPLICATE: AlreadyExistsError,
    Fault.UNFIT: UnfitError,
    Fault.MISCONFIGURED: StoreError,
    Fault.REFUSED: StoreError,
}


class Connector:
    """Runs pieces of work on a connection and tells their failures apart.

    Args:
        url: database URL in SQLAlchemy's form.
        timeout: seconds; bound of every wait for the server.
        clock: measures the wait for SQLite's lock.
        rng: draws the pauses between tries.
        greet: called with every new connection before it is used; may refuse it.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        clock: Clock,
        rng: random.Random,
        greet: Callable[[Connection], None],
    ) -> None:
        try:
            parsed = make_url(url)
            self.dialect: Dialect = dialect_of(parsed)
            self._engine: Engine = create_engine(
                parsed,
                poolclass=NullPool,
                isolation_level="AUTOCOMMIT",
                connect_args=dict(self.dialect.connect_args(timeout)),
                # Errors must not carry a payload into the log.
                hide_parameters=True,
            )
        except (ArgumentError, NoSuchModuleError, ImportError, TypeError, ValueError) as error:
            # The last two: an option after its question mark that is no number, say.
            raise ConfigError(f"url: {error}") from None
        self.url = parsed
        self._shown = urls.safe(url)
        self._clock = clock
        self._rng = rng
        self._greet = greet
        self._connection: Connection | None = None
        event.listen(self._engine, "connect", self._set_up_session)

    def run(self, work: Callable[[Connection], T]) -> T:
        """Do a piece of work: at most one statement that writes.

        Raises:
            StoreUnavailableError: nothing was applied; asking again later makes sense.
            UnknownOutcomeError: it may have been applied.
            AlreadyExistsError: a row with this key exists.
            SchemaError: the table or a column is missing.
            UnfitError: a value does not fit.
            StoreError: the database will not do this.
        """
        give_up_at = self._clock.monotonic() + LOCK_WAIT
        while True:
            try:
                return work(self._connected())
            except DBAPIError as error:
                fault = self._fault(error)
                if fault is Fault.NOT_APPLIED and self._clock.monotonic() < give_up_at:
                    self._clock.sleep(self._rng.uniform(*_PAUSES))
                    continue
                raise self._failure(fault, error) from None

    def read(self, work: Callable[[Connection], T]) -> T:
        """Do a piece of work that only reads.

        Raises:
            StoreUnavailableError: asking again later makes sense.
            SchemaError: the table or a column is missing.
            StoreError: the database will not do this.
        """
        try:
            return self.run(work)
        except UnknownOutcomeError as error:
            raise StoreUnavailableError(str(error)) from None

    def quote(self, name: str) -> str:
        """An identifier as this database wants it quoted."""
        return self._engine.dialect.identifier_preparer.quote(name)

    def disconnect(self) -> None:
        """Close the connection; the next piece of work opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # Not a polite goodbye, which waits: the other end may not be listening.
            connection.invalidate()
            connection.close()

    def _connected(self) -> Connection:
        if self._connection is None:
            try:
                connection = self._engine.connect()
            except DBAPIError as error:
                if self._fault(error) is Fault.NOT_APPLIED:
                    raise  # SQLite: somebody is opening or closing the file this very moment
                # Nothing has been asked yet, whatever it was.
                raise StoreUnavailableError(
                    f"cannot connect to {self._shown}: {error.orig}; {self.dialect.unreachable}"
                ) from None
            except (TypeError, ValueError) as error:
                # What follows a question mark in the url is the driver's affair.
                raise StoreError(f"cannot connect to {self._shown}: {error}") from None
            try:
                self._greet(connection)
            except BaseException as error:
                connection.invalidate()
                connection.close()
                if isinstance(error, DBAPIError) and self._fault(error) is Fault.UNKNOWN:
                    raise self._failure(Fault.UNAVAILABLE, error) from None
                raise
            self._connection = connection
        return self._connection

    def _set_up_session(self, driver_connection: Any, _record: object) -> None:  # noqa: ANN401  # PEP 249
        self.dialect.set_up(driver_connection)
        cursor = driver_connection.cursor()
        for statement in self.dialect.session:
            cursor.execute(statement)
        cursor.close()

    def _fault(self, error: DBAPIError) -> Fault:
        return self.dialect.classify(error.orig if error.orig is not None else error)

    def _failure(self, fault: Fault, error: DBAPIError) -> StoreError | ScheduleError:
        """The exception for a fault; drops a connection that is no use any more."""
        if fault in (Fault.UNAVAILABLE, Fault.READ_ONLY, Fault.UNKNOWN):
            self.disconnect()
        mend = f"; {self.dialect.mend}" if fault is Fault.MISCONFIGURED else ""
        return _ERRORS[fault](f"{_MESSAGES[fault]}: {error.orig}{mend}")

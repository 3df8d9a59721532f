"""One connection to the database, opened when it is needed and dropped when it has broken.

There is no pool, and there are few transactions: nearly every write of psched is one statement,
which commits by itself and is conditional on the row being as expected. That takes one round trip
instead of three, and leaves no half-done work behind, whatever dies.

A url may name several servers, of which one can be written. Each request that needs a connection
tries one of them, so that no request takes longer because there are more.
"""

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from psched.base.clock import Clock
from psched.base.errors import (
    ConfigError,
    ScheduleError,
    StoreError,
    StoreSlowError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from psched.config import urls
from psched.config.tls import Tls
from psched.stores.deadline_socket import Budget
from psched.stores.sql import galera, raw_execute
from psched.stores.sql.clock_steps import ClockSteps
from psched.stores.sql.dialects import Dialect, ServerInfo, dialect_of
from psched.stores.sql.errors import ErrorKind, exception_for

T = TypeVar("T")

LOCK_WAIT = 1.0
"""Seconds that a statement waits for another session's lock, at most."""

_PAUSES = (0.0005, 0.003)
"""Seconds between two tries for SQLite's write lock; each pause is drawn from this range."""


class Connector:
    """Runs work on a connection, and raises psched's exceptions for the database's errors.

    A piece of work is a function of the connection.

    Args:
        url: database URL in SQLAlchemy's form.
        timeout: seconds that an answer of the server may take.
        clock: measures the wait for SQLite's lock.
        rng: draws the pauses between two tries for the lock.
        greet: called with every new connection before it is used; may refuse it.
        tls: how connections are encrypted; None: the url's own options, or the driver's defaults,
            decide.
        reflects: whether tables will be created or inspected. SQLAlchemy then asks each new server
            first what it is, which takes six answers.

    Attributes:
        clock_steps: when this host's clock was last set.
        server_info: what the server of the last connection is.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        clock: Clock,
        rng: random.Random,
        greet: Callable[[Connection], None],
        tls: Tls | None = None,
        reflects: bool = False,
    ) -> None:
        hosts = urls.each_host(url)
        self._budget = Budget(clock, timeout)
        self._in_request = False
        self._milliseconds = round(timeout * 1000)
        self._reflects = reflects
        try:
            self.url = make_url(hosts[0])
            self.dialect: Dialect = dialect_of(self.url)
            self._engines = deque(self._engine(host, timeout, tls) for host in hosts)
        except (ArgumentError, NoSuchModuleError, ImportError, TypeError, ValueError) as error:
            # The last two errors: for example an option after the question mark is no number.
            raise ConfigError(f"url: {_explain_url(error)}") from None
        self.clock_steps = ClockSteps(clock)
        self._clock = clock
        self._rng = rng
        self._greet = greet
        self._unreachable = self.dialect.unreachable + (f" {tls.checklist}" if tls else "")
        self._is_read_only = text(f"SELECT {self.dialect.read_only}")
        self._connection: Connection | None = None
        self._prepared = 0  # steps of `_connected` completed so far
        self.server_info = ServerInfo()

    @property
    def is_replica(self) -> bool:
        """Whether the server of the last connection was a replica."""
        return self.server_info.replica

    @property
    def in_cluster(self) -> bool:
        """Whether the server of the last connection was a node of a Galera cluster."""
        return self.server_info.in_cluster

    @property
    def server(self) -> Hashable:
        """The server and its version: a key for what this server was found to support."""
        return self._engines[0].url, self.server_info.version

    def _engine(self, url: str, timeout: float, tls: Tls | None) -> Engine:
        ours = make_url(url).get_dialect().driver == self.dialect.driver
        engine = create_engine(
            url,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args=dict(self.dialect.connect_args(timeout, tls)),
            # Errors must not carry a payload into the log.
            hide_parameters=True,
            # With this flag, which SQLAlchemy has for its own tests, it sends nothing on a new
            # connection. `Dialect.begin_session` sends what a session needs, in fewer requests.
            _initialize=self._reflects or not ours,
            **self.dialect.engine_args,
        )
        if ours:
            event.listen(
                engine,
                "do_connect",
                lambda _dialect, _record, _args, arguments: self.dialect.connect(
                    arguments, self._budget
                ),
            )
        return engine

    @contextmanager
    def request(self) -> Iterator[None]:
        """Give all work within one request's time, two timeouts at most; see `Budget`.

        Requests for which other tasks wait use it.
        """
        if self._in_request:
            yield
            return
        self._in_request = True
        self._budget.begin()
        try:
            yield
        finally:
            self._in_request = False

    def run(self, work: Callable[[Connection], T]) -> T:
        """Run work that sends at most one statement that writes.

        Raises:
            StoreUnavailableError: nothing was applied; trying again later makes sense.
            UnknownOutcomeError: it may have been applied.
            AlreadyExistsError: a row with this key exists.
            SchemaError: the table or a column is missing.
            InvalidValueError: a value does not fit.
            StoreError: the database refused, and will refuse again.
        """
        return self._run(work, writing=True)

    def _run(self, work: Callable[[Connection], T], *, writing: bool) -> T:
        with self.request():
            return self._run_until_unlocked(work, writing=writing)

    def _run_until_unlocked(self, work: Callable[[Connection], T], *, writing: bool) -> T:
        give_up_at = self._clock.monotonic() + LOCK_WAIT
        while True:
            try:
                connection = self._connected()
                self._step()
                if self.is_replica and (writing or len(self._engines) > 1):
                    self._update_replica(connection)  # it may be a primary by now
                    self.refuse_read_only(self.is_replica)
                return work(connection)
            except DBAPIError as error:
                kind = self._classify(error)
                if kind is ErrorKind.TRANSIENT and self._clock.monotonic() < give_up_at:
                    self._clock.sleep(self._rng.uniform(*_PAUSES))
                    self._budget.begin()
                    continue
                if kind is ErrorKind.TRANSIENT:
                    self._leave_desynced(error)
                raise self._failure(kind, error) from None

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run work that only reads.

        It reads from the only server there is, or from the primary, because a replica may lag.

        Raises:
            StoreUnavailableError: trying again later makes sense.
            SchemaError: the table or a column is missing.
            StoreError: the database refused, and will refuse again.
        """
        try:
            return self._run(work, writing=False)
        except UnknownOutcomeError as error:
            raise StoreUnavailableError(str(error)) from None

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Run work in a transaction, all of it or nothing.

        Raises:
            StoreError: as `run` does, after nothing was applied; and
            UnknownOutcomeError: it may have been applied.
        """

        def within(connection: Connection) -> T:
            connection.exec_driver_sql(self.dialect.begin)
            try:
                result = work(connection)
            except BaseException as error:
                self._roll_back(connection, error)
                if isinstance(error, DBAPIError) and self._classify(error) is ErrorKind.UNKNOWN:
                    # What has not been committed was not applied.
                    raise self._failure(ErrorKind.UNAVAILABLE, error) from None
                raise
            self.renew()
            try:
                connection.exec_driver_sql("COMMIT")
            except DBAPIError as error:
                self._roll_back(connection, error)
                raise
            return result

        return self.run(within)

    def renew(self) -> None:
        """Give the next statement of the present work its own time."""
        self._budget.renew()

    def catch_up(self) -> None:
        """Wait until the server has applied what other sessions have committed before.

        Raises:
            StoreUnavailableError: the server lags, and takes too long.
        """
        self.read(lambda _connection: None)  # this connects, and so learns what the server is
        if self.in_cluster:
            self.read(lambda c: galera.read_caught_up(c, self.dialect, _read_anything))

    def borrow(
        self, connection: Connection, work: Callable[[Connection], T], *, savepoint: bool = True
    ) -> T:
        """Run work on the caller's connection, as a part of the caller's transaction.

        Args:
            connection: the caller's.
            work: what to do on it.
            savepoint: undo this work alone if it fails, where an error would end the transaction.

        Raises:
            StoreError: as `run` does; nothing of it was applied, and the transaction can go on
                if the connection has not broken.
        """
        if not isinstance(connection.dialect, type(self._engines[0].dialect)):
            raise StoreError("connection: is to another kind of database than the schedules are in")
        try:
            nested = savepoint and self.dialect.aborts and not _commits_by_itself(connection)
            with connection.begin_nested() if nested else nullcontext():
                return work(connection)
        except DBAPIError as error:
            raise exception_for(self._classify(error), self._explain(error)) from None

    def quote(self, name: str) -> str:
        """An identifier, quoted as this database wants it."""
        return self._engines[0].dialect.identifier_preparer.quote(name)

    def refuse_read_only(self, read_only: object) -> None:
        """Leave a replica, because anything that is written there is lost.

        Args:
            read_only: what the database has answered to `Dialect.read_only`.

        Raises:
            StoreUnavailableError: the server is a replica.
        """
        if read_only:
            self.disconnect()
            self._engines.rotate(-1)
            raise exception_for(ErrorKind.READ_ONLY, "it is a replica, or was made to be read only")

    def disconnect(self) -> None:
        """Close the connection; the next work opens another."""
        connection, self._connection, self._prepared = self._connection, None, 0
        if connection is not None:
            # The protocol's goodbye is skipped, because it may wait for a server that does not
            # listen.
            connection.invalidate()
            connection.close()

    def _connected(self) -> Connection:
        """The connection, ready for work.

        If a slow server leaves no time for all steps in one request, the next request goes on.
        """
        if self._connection is not None and self._connection.invalidated:
            self.disconnect()
        if self._connection is not None and self._is_astray(self._connection):
            self.disconnect()
            raise exception_for(
                ErrorKind.UNAVAILABLE, "its file has been moved, removed or replaced"
            )
        if self._connection is None:
            self._connection = self._open()
        steps = self._begin_session, self._greet_caught_up
        while self._prepared < len(steps):
            self._step(answers=True)
            try:
                steps[self._prepared](self._connection)
            except BaseException as error:
                self.disconnect()
                self._engines.rotate(-1)
                if isinstance(error, DBAPIError) and self._classify(error) is ErrorKind.UNKNOWN:
                    raise self._failure(ErrorKind.UNAVAILABLE, error) from None
                raise
            self._prepared += 1
        return self._connection

    def _is_astray(self, connection: Connection) -> bool:
        return self.dialect.is_astray is not None and self.dialect.is_astray(connection)

    def _open(self) -> Connection:
        self._step(answers=True)
        with self._connecting():
            try:
                return self._engines[0].connect()
            except DBAPIError:
                self._engines.rotate(-1)
                raise

    def _begin_session(self, connection: Connection) -> None:
        with self._connecting():
            self.server_info = self.dialect.begin_session(connection, self._milliseconds)

    def _greet_caught_up(self, connection: Connection) -> None:
        if self.in_cluster:
            galera.read_caught_up(connection, self.dialect, self._greet)
        else:
            self._greet(connection)

    def _step(self, *, answers: bool = False) -> None:
        """Begin a step of a request; see `Budget.step`."""
        try:
            self._budget.step(answers=answers)
        except TimeoutError as error:
            # Nothing was sent, so the connection is kept.
            raise StoreSlowError(f"the database answers too slowly: {error}") from None

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        """Report any error within as a failure to connect."""
        shown = self._cannot_connect
        try:
            yield
        except DBAPIError as error:
            if self._classify(error) is ErrorKind.TRANSIENT:
                raise  # SQLite: another process opens or closes the file at this moment
            # Whatever the error was, no statement has been sent yet.
            raise StoreUnavailableError(
                f"{shown}: {self._explain(error)}; {self._unreachable}"
            ) from None
        except (TypeError, ValueError) as error:
            # The driver refuses one of the url's options.
            raise StoreError(f"{shown}: {error}") from None

    @property
    def _cannot_connect(self) -> str:
        shown = urls.without_secrets(self._engines[0].url.render_as_string(hide_password=False))
        return f"cannot connect to {shown}"

    def _update_replica(self, connection: Connection) -> None:
        replica = bool(raw_execute.rows(connection, self._is_read_only, {})[0][0])
        self.server_info = replace(self.server_info, replica=replica)

    def _leave_desynced(self, error: DBAPIError) -> None:
        """Leave a Galera node that blocks writes, as during a backup, if there are other nodes.

        Raises:
            StoreUnavailableError: it is such a node; the next connection is to another.
        """
        if self._connection is None or not self.in_cluster or len(self._engines) == 1:
            return
        try:
            # The previous step may have used nearly all its time waiting for the lock.
            self._budget.step()
        except TimeoutError:
            return
        if (state := galera.desynced_state(self._connection, self.dialect)) is None:
            return
        self.disconnect()
        self._engines.rotate(-1)
        raise exception_for(
            ErrorKind.UNAVAILABLE,
            f"this node of a Galera cluster is {state}, as a donor or a node that is being backed"
            f" up is: {self._explain(error)}",
        ) from None

    def _roll_back(self, connection: Connection, error: BaseException) -> None:
        """End a transaction that has failed; if that is impossible, drop the connection."""
        unknown = isinstance(error, DBAPIError) and self._classify(error) is ErrorKind.UNKNOWN
        if unknown or connection.invalidated:
            self.disconnect()
            return
        try:
            connection.exec_driver_sql("ROLLBACK")
        except SQLAlchemyError:
            self.disconnect()

    def _classify(self, error: DBAPIError) -> ErrorKind:
        return self.dialect.classify(error.orig or error)

    def _failure(self, kind: ErrorKind, error: DBAPIError) -> StoreError | ScheduleError:
        """The exception for an error; drops a connection that has become unusable."""
        if kind in (ErrorKind.UNAVAILABLE, ErrorKind.READ_ONLY, ErrorKind.UNKNOWN):
            self.disconnect()
        # A node that is being backed up (BACKUP STAGE BLOCK_COMMIT) answers queries but no write.
        if kind is ErrorKind.READ_ONLY or (kind is ErrorKind.UNKNOWN and self.in_cluster):
            self._engines.rotate(-1)
        fix = f"; {self.dialect.fix}" if kind is ErrorKind.MISCONFIGURED else ""
        return exception_for(kind, f"{self._explain(error)}{fix}")

    def _explain(self, error: DBAPIError) -> str:
        return self.dialect.explain(error.orig or error)


def _commits_by_itself(connection: Connection) -> bool:
    """Whether each statement is a transaction of its own; then there can be no savepoint."""
    return bool(getattr(connection.connection.driver_connection, "autocommit", False))


def _read_anything(connection: Connection) -> None:
    connection.exec_driver_sql("SELECT 1").close()


def _explain_url(error: Exception) -> str:
    if isinstance(error, ImportError) and error.name == "psycopg":
        return "needs the driver psycopg: pip install 'psched[postgresql]'"
    return str(error)

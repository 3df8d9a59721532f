"""One connection to the database, which is opened when it is needed and closed when it breaks.

There is no connection pool. Nearly every write is one statement, which commits by itself, and
changes a row only if it is as expected, so no partial work is left if a process dies.

A url can name several servers, one of which accepts writes. A request that has to connect tries
only one of them, so that the waits do not add up. After a failure, the next request tries the next.
"""

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, TypeVarTuple

from sqlalchemy import Connection, Engine, TextClause, create_engine, event, text
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
from psched.base.lease_times import LONGEST_ALIVE_TIME
from psched.config import urls
from psched.config.urls import Tls
from psched.stores import connection_advice, deadline_socket
from psched.stores.deadline_socket import Budget
from psched.stores.forks import FileOwnership, Ownership
from psched.stores.sql import galera, raw_execute
from psched.stores.sql.conditions import Request
from psched.stores.sql.dialects import Dialect, ServerInfo, dialect_of
from psched.stores.sql.errors import ErrorKind, exception_for
from psched.stores.sql.raw_execute import Columns

_SMALLEST_STEP = 1.0
"""The smallest change, in seconds, that counts as setting the clock.

psched compares the readings of two clocks. Smaller changes are ignored, because on a busy machine
nearly a second can pass between the two readings.
"""


class ClockSteps:
    """Detects when somebody sets this host's clock, which a store on this host uses for leases.

    After the clock was set, a lease can seem to have expired although its worker is alive. The
    worker soon extends the lease, which corrects the end of the lease. So a lease that seems to
    have expired must not be taken over until the clock was set longer ago than the lease is long:
    by then, a living worker has extended its lease.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.wall() - clock.boottime()
        self._last = -2.0 * LONGEST_ALIVE_TIME

    def seconds_since(self) -> float:
        """Return the seconds since the clock was last set.

        If the clock was never set, return more than the length of the longest lease.
        """
        boot = self._clock.boottime()
        offset = self._clock.wall() - boot
        if abs(offset - self._offset) > _SMALLEST_STEP:
            self._last = boot
        self._offset = offset
        return boot - self._last


T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LOCK_WAIT = 1.0
"""The most seconds for which psched repeats work that fails because of another session's lock."""

_BREAKING = frozenset(
    {ErrorKind.UNAVAILABLE, ErrorKind.NO_ROOM, ErrorKind.READ_ONLY, ErrorKind.UNKNOWN}
)
"""The kinds of errors after which the connection is closed."""

_PAUSES = (0.0005, 0.003)
"""Shortest and longest pause, in seconds, before the next try to get SQLite's write lock.

Each pause is chosen at random from this range.
"""


class Connector:
    """Runs work on a connection, and raises psched's exceptions for the database's errors.

    Work is a function that is called with the connection and the given arguments.

    Args:
        timeout: the longest wait for an answer of the server, in seconds.
        greet: is called with every new connection before any work; raises an exception to refuse
            the connection.
        tls: how connections are encrypted. None means that the url's options decide, or the
            driver's defaults if the url has no such options.
        reflects: whether tables will be created or inspected. If so, SQLAlchemy first queries the
            properties of each new server, which takes six round trips.

    Attributes:
        clock_steps: measures how long ago this host's clock was last set.
        server_info: the properties of the server of the last connection; the defaults before the
            first connection.
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
            # SQLAlchemy raises a TypeError or ValueError, for example, if an option of the url
            # should be a number and is not.
            raise ConfigError(f"url: {_explain_url(error)}") from None
        self.clock_steps = ClockSteps(clock)
        self._clock = clock
        self._rng = rng
        self._greet = greet
        self._tls = tls
        self._is_read_only = text(f"SELECT {self.dialect.read_only}")
        self._connection: Connection | None = None
        self._in_transaction: Connection | None = None
        self._ownership = (
            FileOwnership(self.url.database or "", self.disconnect)
            if self.dialect.is_file
            else Ownership()
        )
        self._prepared = 0  # how many steps `_connected` has completed
        self.server_info = ServerInfo()

    @property
    def server(self) -> Hashable:
        """The server's url and version: the key under which callers cache the server's features."""
        return self._engines[0].url, self.server_info.version

    def _engine(self, url: str, timeout: float, tls: Tls | None) -> Engine:
        ours = make_url(url).get_dialect().driver == self.dialect.driver
        engine = create_engine(
            url,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args=dict(self.dialect.connect_args(timeout, tls)),
            # Errors must not contain values, because errors are logged and values can be payloads.
            hide_parameters=True,
            # If this flag, which SQLAlchemy uses in its own tests, is false, SQLAlchemy sends
            # nothing on a new connection. `_begin_session` sets up the session instead.
            _initialize=not ours,
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
        """Treat all work within the block as one request, which takes at most two timeouts.

        Methods that send several statements use this, because the worker can do nothing else until
        such a method returns. `Budget` enforces the limit.
        """
        if self._in_request:
            yield
            return
        self._in_request = True
        try:
            with self._ownership.in_use():
                self._budget.begin()
                yield
        finally:
            self._in_request = False

    def run(self, work: Callable[[Connection, *Ts], T], *arguments: *Ts) -> T:
        """Run work that sends at most one statement that writes."""
        return self._run(work, arguments, writing=True)

    def _run(
        self, work: Callable[[Connection, *Ts], T], arguments: tuple[*Ts], *, writing: bool
    ) -> T:
        if self._in_transaction is not None:
            # An error is the transaction's, which explains it.
            self.step()
            return work(self._in_transaction, *arguments)
        give_up_at = self._clock.monotonic() + LOCK_WAIT
        with self.request():
            while True:
                try:
                    connection = self._connected()
                    self.step(answers=self.dialect.prepares)
                    if self.server_info.replica and (writing or len(self._engines) > 1):
                        self._update_replica(connection)  # the replica may have been promoted
                        self.refuse_read_only(self.server_info.replica)
                    return work(connection, *arguments)
                except DBAPIError as error:
                    self._pause_or_raise(error, give_up_at)

    def _pause_or_raise(self, error: DBAPIError, give_up_at: float) -> None:
        """Pause because of another session's lock, or raise the exception for an error."""
        kind = self._classify(error)
        if kind is ErrorKind.TRANSIENT:
            if self._clock.monotonic() < give_up_at:
                self._clock.sleep(self._rng.uniform(*_PAUSES))
                self._budget.begin()
                return
            self._leave_desynced(error)
        raise self._failure(kind, error) from None

    def read(self, work: Callable[[Connection, *Ts], T], *arguments: *Ts) -> T:
        """Run work that only reads.

        If the url names several servers, the work reads only from the primary, because the data of
        a replica can be out of date.
        """
        try:
            return self._run(work, arguments, writing=False)
        except UnknownOutcomeError as error:
            raise StoreUnavailableError(str(error)) from None

    def transact(self, work: Callable[[Connection], T], *, patient: bool = True) -> T:
        """Run work in a transaction: all of its writes are applied, or none.

        What the work runs by this object belongs to the transaction.
        """

        def within(connection: Connection) -> T:
            begun = self._clock.monotonic()
            raw_execute.send(connection, self.dialect.begin)
            try:
                if not patient:
                    # Two statements and COMMIT follow, and each may take as long as BEGIN.
                    self.step(ahead=3 * (self._clock.monotonic() - begun))
                self._in_transaction = connection
                try:
                    result = work(connection)
                finally:
                    self._in_transaction = None
                (self.renew if patient else self.step)()
            except BaseException as error:
                self._roll_back(connection, error)
                if isinstance(error, DBAPIError) and self._classify(error) is ErrorKind.UNKNOWN:
                    # Although the connection broke, the outcome is known: nothing was committed.
                    raise self._failure(ErrorKind.UNAVAILABLE, error) from None
                raise
            try:
                raw_execute.send(connection, "COMMIT")
            except DBAPIError as error:
                self._roll_back(connection, error)
                raise
            return result

        return self.run(within)

    def rows_after(
        self,
        first: Sequence[Request],
        statement: TextClause,
        values: Mapping[str, Any],
    ) -> Sequence[Columns]:
        """Send statements that write, all or nothing, and a query; return the rows of the query."""

        def work(connection: Connection) -> Sequence[Columns]:
            try:
                return raw_execute.rows_after(connection, first, statement, values)
            except BaseException as error:
                self._roll_back(connection, error)
                raise

        return self.run(work)

    def query(self, statement: TextClause, values: Mapping[str, Any]) -> Sequence[Columns]:
        """Send a query; return all rows of its result."""
        return self.read(raw_execute.rows, statement, values)

    def write(self, statement: TextClause, values: Mapping[str, Any]) -> int:
        """Send one statement that writes; return the number of rows that it matched."""
        return self.run(raw_execute.count, statement, values)

    def write_parts(self, parts: Sequence[T], write: Callable[[Connection, T], object]) -> None:
        """Write several parts, all or none; each one may take as long as a request.

        A single part needs no transaction, because ``write`` writes it by one statement.
        """
        if len(parts) == 1:
            self.run(write, parts[0])
            return

        def work(connection: Connection) -> None:
            for part in parts:
                self.renew()
                write(connection, part)

        if parts:
            self.transact(work)

    def renew(self) -> None:
        """Allow the next statement of the current work a full timeout."""
        self._budget.renew()

    def step(self, *, answers: bool = False, ahead: float = 0.0) -> None:
        """Begin a step of the current request; see `Budget.step`."""
        try:
            self._budget.step(answers=answers, ahead=ahead)
        except TimeoutError as error:
            # Nothing was sent, so the connection stays usable and open.
            raise StoreSlowError(f"the database answers too slowly: {error}") from None

    def open(self) -> None:
        """Open a connection, unless there is one, so that what it tells is known."""
        self.read(lambda _connection: None)

    def catch_up(self) -> None:
        """Wait until the server has applied all writes that other sessions have committed so far.

        Only a node of a Galera cluster has to wait.
        """
        self.open()
        if self.server_info.in_cluster:
            self.read(lambda c: galera.read_caught_up(c, self.dialect, _read_anything))

    def quote(self, name: str) -> str:
        """Quote an identifier for use in this database's SQL."""
        return self._engines[0].dialect.identifier_preparer.quote(name)

    def refuse_read_only(self, read_only: object) -> None:
        """If the server is a replica, disconnect and raise an error.

        Without this check, writes to a replica would be lost.
        """
        if read_only:
            self.disconnect()
            self._engines.rotate(-1)
            raise exception_for(ErrorKind.READ_ONLY, "it is a replica, or was made to be read only")

    def disconnect(self) -> None:
        """Close the connection; the next call that runs work opens a new one."""
        with self._ownership.in_use():
            connection, self._connection, self._prepared = self._connection, None, 0
            if self._ownership.lost:
                self._ownership.leave(connection)
            elif connection is not None:
                # It is invalidated first: sending could block if the server does not respond.
                connection.invalidate()
                connection.close()
                self._ownership.drop()

    def _connected(self) -> Connection:
        """Open and prepare the connection if necessary, and return it.

        If a slow server leaves no time for all steps, the next request continues with the rest.
        """
        if self._ownership.lost or (self._connection and self._has_ended(self._connection)):
            self.disconnect()
        if self._connection is not None and self.dialect.is_astray(self._connection):
            self.disconnect()
            raise exception_for(
                ErrorKind.UNAVAILABLE, "its file has been moved, removed or replaced"
            )
        if self._connection is None:
            self._connection = self._open()
        steps = self._begin_session, self._greet_caught_up
        while self._prepared < len(steps):
            self.step(answers=True)
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

    def _has_ended(self, connection: Connection) -> bool:
        """Whether the connection cannot be used, for example because it was idle for too long."""
        if connection.invalidated:
            return True
        opened: Any = connection.connection.driver_connection
        try:
            return hasattr(opened, "fileno") and deadline_socket.has_ended(opened.fileno())
        except connection.dialect.loaded_dbapi.Error:
            return True  # the driver has noticed it

    def _open(self) -> Connection:
        self.step(answers=True)
        self._ownership.take()
        try:
            with self._connecting():
                return self._engines[0].connect()
        except BaseException:
            self._ownership.drop()
            self._engines.rotate(-1)
            raise

    def _begin_session(self, connection: Connection) -> None:
        with self._connecting():
            self.server_info = self.dialect.begin_session(connection, self._milliseconds)
            if self._reflects and connection.dialect.server_version_info is None:
                # Only now, because SQLAlchemy must not see the server's defaults: with ANSI_QUOTES
                # it would quote names as the session does not understand them.
                connection.dialect.initialize(connection)

    def _greet_caught_up(self, connection: Connection) -> None:
        if self.server_info.in_cluster:
            galera.read_caught_up(connection, self.dialect, self._greet)
        else:
            self._greet(connection)

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        """Turn errors within the block into exceptions that say that psched cannot connect."""
        shown = self._cannot_connect
        try:
            yield
        except DBAPIError as error:
            if self._classify(error) is ErrorKind.TRANSIENT:
                raise  # SQLite: another process is opening or closing the file; try again
            cause = error.orig or error
            # Whatever the error was, nothing was applied, because no statement was sent yet.
            raise StoreUnavailableError(
                f"{shown}: {self.dialect.explain(cause)}; {self._fix(cause)}"
            ) from None
        except (TypeError, ValueError) as error:
            # The driver raises such an error if it does not accept an option of the url.
            raise StoreError(f"{shown}: {error}") from None

    def _fix(self, cause: BaseException) -> str:
        """How to correct the cause of an error on connecting."""
        fix = self.dialect.connecting_fix(cause, self._tls)
        fix = fix or connection_advice.network_fix(cause, self._tls)
        if fix is None:
            fix = self.dialect.other_fix + (f"; {self._tls.checklist}" if self._tls else "")
        return fix

    @property
    def _cannot_connect(self) -> str:
        shown = urls.without_secrets(self._engines[0].url.render_as_string(hide_password=False))
        return f"cannot connect to {shown}"

    def _update_replica(self, connection: Connection) -> None:
        replica = bool(raw_execute.rows(connection, self._is_read_only, {})[0][0])
        self.server_info = replace(self.server_info, replica=replica)

    def _leave_desynced(self, error: DBAPIError) -> None:
        """Disconnect from a Galera node that blocks writes, if the url names other nodes.

        A node blocks writes while it is backed up, for example.
        """
        if self._connection is None or not self.server_info.in_cluster or len(self._engines) == 1:
            return
        try:
            # The query needs a new step, because the statement may have used up its own step while
            # it waited for a lock.
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
        """Roll back a failed transaction; close the connection if it cannot be rolled back."""
        unknown = isinstance(error, DBAPIError) and self._classify(error) is ErrorKind.UNKNOWN
        if unknown or connection.invalidated:
            self.disconnect()
            return
        self._budget.finish()
        try:
            raw_execute.send(connection, "ROLLBACK")
        except SQLAlchemyError:
            self.disconnect()

    def _classify(self, error: DBAPIError) -> ErrorKind:
        return self.dialect.classify(error.orig or error)

    def _failure(self, kind: ErrorKind, error: DBAPIError) -> StoreError | ScheduleError:
        """Return the exception for an error; close the connection if the error made it unusable."""
        if kind in _BREAKING:
            self.disconnect()
        # If a Galera node did not answer a write, the node might be blocking writes for a backup
        # (BACKUP STAGE BLOCK_COMMIT), although it still answers queries. So the next connection is
        # to another node.
        unanswered = kind is ErrorKind.UNKNOWN and self.server_info.in_cluster
        if unanswered or kind is ErrorKind.READ_ONLY:
            self._engines.rotate(-1)
        fix = f"; {self.dialect.fix}" if kind is ErrorKind.MISCONFIGURED else ""
        return exception_for(kind, f"{self._explain(error)}{fix}")

    def _explain(self, error: DBAPIError) -> str:
        return self.dialect.explain(error.orig or error)


class _Connected(Protocol):
    _connector: Connector


S = TypeVar("S", bound=_Connected)
P = ParamSpec("P")


def one_request(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Limit a method of a store, or of a part of it, to the time of one request."""

    @wraps(method)
    def bounded(store: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with store._connector.request():  # noqa: SLF001
            return method(store, *args, **kwargs)

    return bounded


def _read_anything(connection: Connection) -> None:
    connection.exec_driver_sql("SELECT 1").close()


def _explain_url(error: Exception) -> str:
    if isinstance(error, ImportError) and error.name == "psycopg":
        return "needs the driver psycopg: pip install 'psched[postgresql]'"
    return str(error)

"""One connection to the database, opened when needed, dropped when broken.

There is no pool, and next to no transaction: nearly every write of psched is one statement,
conditional on what it expects to find, and commits by itself. That costs one round trip instead
of three, and leaves no half-done work behind whatever dies.

Of several servers (a url with several hosts), the one that may be written is looked for, one of
them at each request that needs a connection: no request takes longer for there being more.
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
from psched.stores.sql.dialects import Dialect, Fault, Standing, dialect_of
from psched.stores.sql.failures import ERRORS, MESSAGES

T = TypeVar("T")

LOCK_WAIT = 1.0
"""Seconds that a statement waits for somebody else's lock, at most."""

_PAUSES = (0.0005, 0.003)
"""Seconds between two tries for SQLite's write lock, drawn anew for each."""


class Connector:
    """Runs pieces of work on a connection and tells their failures apart.

    Args:
        url: database URL in SQLAlchemy's form.
        timeout: seconds; bound of every wait for the server.
        clock: measures the wait for SQLite's lock.
        rng: draws the pauses between tries.
        greet: called with every new connection before it is used; may refuse it.
        tls: how connections are encrypted; None: as the url's own options, or the driver, will.
        reflects: it will be asked how tables are made; SQLAlchemy then asks each new server first
            what it is, which takes it six answers.

    Attributes:
        evenness: for how long this host's clock has not been set.
        standing: what the server is that was connected to last.
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
            # The last two: an option after its question mark that is no number, say.
            raise ConfigError(f"url: {_unusable(error)}") from None
        self.evenness = ClockSteps(clock)
        self._clock = clock
        self._rng = rng
        self._greet = greet
        self._unreachable = self.dialect.unreachable + (f" {tls.checklist}" if tls else "")
        self._whether_replica = text(f"SELECT {self.dialect.read_only}")
        self._connection: Connection | None = None
        self._ready = 0  # how many steps of its greeting a new connection has behind it
        self.standing = Standing()

    @property
    def is_replica(self) -> bool:
        """Whether the server that was connected to last was one."""
        return self.standing.replica

    @property
    def in_cluster(self) -> bool:
        """Whether it was a node of a Galera cluster."""
        return self.standing.in_cluster

    @property
    def server(self) -> Hashable:
        """What it was, for who keeps what it has found out about a server."""
        return self._engines[0].url, self.standing.version, self.standing.in_cluster

    def _engine(self, url: str, timeout: float, tls: Tls | None) -> Engine:
        ours = make_url(url).get_dialect().driver == self.dialect.driver
        engine = create_engine(
            url,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args=dict(self.dialect.connect_args(timeout, tls)),
            # Errors must not carry a payload into the log.
            hide_parameters=True,
            # SQLAlchemy's own flag, for its tests: nothing is asked of a new connection. What a
            # session needs, `Dialect.begin_session` sends, in fewer requests.
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
        """What is done within is one request, also if it is several pieces of work; see `Budget`.

        For what is asked while others wait: it takes two timeouts at most.
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
        """Do a piece of work: at most one statement that writes.

        Raises:
            StoreUnavailableError: nothing was applied; asking again later makes sense.
            UnknownOutcomeError: it may have been applied.
            AlreadyExistsError: a row with this key exists.
            SchemaError: the table or a column is missing.
            UnfitError: a value does not fit.
            StoreError: the database will not do this.
        """
        return self._run(work, writing=True)

    def _run(self, work: Callable[[Connection], T], *, writing: bool) -> T:
        with self.request():
            return self._tried(work, writing=writing)

    def _tried(self, work: Callable[[Connection], T], *, writing: bool) -> T:
        give_up_at = self._clock.monotonic() + LOCK_WAIT
        while True:
            try:
                connection = self._connected()
                self._step()
                if self.is_replica and (writing or len(self._engines) > 1):
                    self._look_whether_replica(connection)  # it may have been promoted
                    self.refuse_read_only(self.is_replica)
                return work(connection)
            except DBAPIError as error:
                fault = self._fault(error)
                if fault is Fault.NOT_APPLIED and self._clock.monotonic() < give_up_at:
                    self._clock.sleep(self._rng.uniform(*_PAUSES))
                    self._budget.begin()
                    continue
                if fault is Fault.NOT_APPLIED:
                    self._leave_desynced(error)
                raise self._failure(fault, error) from None

    def read(self, work: Callable[[Connection], T]) -> T:
        """Do a piece of work that only reads.

        From the only server there is, or the primary: a replica may be late.

        Raises:
            StoreUnavailableError: asking again later makes sense.
            SchemaError: the table or a column is missing.
            StoreError: the database will not do this.
        """
        try:
            return self._run(work, writing=False)
        except UnknownOutcomeError as error:
            raise StoreUnavailableError(str(error)) from None

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Do a piece of work in a transaction, all of it or nothing.

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
                if isinstance(error, DBAPIError) and self._fault(error) is Fault.UNKNOWN:
                    # What has not been committed was not applied.
                    raise self._failure(Fault.UNAVAILABLE, error) from None
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
        """A further statement begins, in the midst of a piece of work: it may take its own time."""
        self._budget.renew()

    def catch_up(self) -> None:
        """Wait until the server has applied what was committed before, by others too.

        Raises:
            StoreUnavailableError: it is late, and takes too long.
        """
        self.read(lambda _connection: None)  # connected: so it is known what the server is
        if self.in_cluster:
            self.read(lambda c: galera.caught_up(c, self.dialect, _ask_anything))

    def borrow(self, connection: Connection, work: Callable[[Connection], object]) -> None:
        """Do a piece of work on somebody else's connection, as a part of their transaction.

        Raises:
            StoreError: as `run` does; nothing of it was applied, and their transaction can go on
                if the connection has not broken.
        """
        if not isinstance(connection.dialect, type(self._engines[0].dialect)):
            raise StoreError("connection: is to another kind of database than the schedules are in")
        try:
            # Where an error would end their transaction, it ends this part of it.
            with connection.begin_nested() if self.dialect.aborts else nullcontext():
                work(connection)
        except DBAPIError as error:
            fault = self._fault(error)
            raise ERRORS[fault](f"{MESSAGES[fault]}: {self._explained(error)}") from None

    def quote(self, name: str) -> str:
        """An identifier as this database wants it quoted."""
        return self._engines[0].dialect.identifier_preparer.quote(name)

    def refuse_read_only(self, read_only: object) -> None:
        """Do not work on a replica: what is written there, if it can be, is lost.

        Args:
            read_only: what the database has answered to `Dialect.read_only`.

        Raises:
            StoreUnavailableError: it is one.
        """
        if read_only:
            self.disconnect()
            self._engines.rotate(-1)
            raise StoreUnavailableError(
                f"{MESSAGES[Fault.READ_ONLY]}: it is a replica, or was made to be read only"
            )

    def disconnect(self) -> None:
        """Close the connection; the next piece of work opens another."""
        connection, self._connection, self._ready = self._connection, None, 0
        if connection is not None:
            # Not a polite goodbye, which waits: the other end may not be listening.
            connection.invalidate()
            connection.close()

    def _connected(self) -> Connection:
        """The connection, ready for work.

        What a slow server leaves undone of that in one request, the next one does.
        """
        if self._connection is not None and self._connection.invalidated:
            self.disconnect()
        if self._connection is not None and self._is_astray(self._connection):
            self.disconnect()
            raise StoreUnavailableError(
                f"{MESSAGES[Fault.UNAVAILABLE]}: its file has been moved, removed or replaced"
            )
        if self._connection is None:
            self._connection = self._opened()
        greeting = self._begin_session, self._welcome
        while self._ready < len(greeting):
            self._step(answers=True)
            try:
                greeting[self._ready](self._connection)
            except BaseException as error:
                self.disconnect()
                self._engines.rotate(-1)
                if isinstance(error, DBAPIError) and self._fault(error) is Fault.UNKNOWN:
                    raise self._failure(Fault.UNAVAILABLE, error) from None
                raise
            self._ready += 1
        return self._connection

    def _is_astray(self, connection: Connection) -> bool:
        return self.dialect.is_astray is not None and self.dialect.is_astray(connection)

    def _opened(self) -> Connection:
        self._step(answers=True)
        with self._connecting():
            try:
                return self._engines[0].connect()
            except DBAPIError:
                self._engines.rotate(-1)
                raise

    def _begin_session(self, connection: Connection) -> None:
        with self._connecting():
            self.standing = self.dialect.begin_session(connection, self._milliseconds)

    def _welcome(self, connection: Connection) -> None:
        if self.in_cluster:
            galera.caught_up(connection, self.dialect, self._greet)
        else:
            self._greet(connection)

    def _step(self, *, answers: bool = False) -> None:
        """A step of a request begins; see `Budget.step`."""
        try:
            self._budget.step(answers=answers)
        except TimeoutError as error:
            # Nothing was sent, and the connection is as good as it was.
            raise StoreSlowError(f"the database answers too slowly: {error}") from None

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        """What fails within is told as a failure to connect."""
        shown = self._cannot_connect
        try:
            yield
        except DBAPIError as error:
            if self._fault(error) is Fault.NOT_APPLIED:
                raise  # SQLite: somebody is opening or closing the file this very moment
            # Nothing has been asked yet, whatever it was.
            raise StoreUnavailableError(
                f"{shown}: {self._explained(error)}; {self._unreachable}"
            ) from None
        except (TypeError, ValueError) as error:
            # What follows a question mark in the url is the driver's affair.
            raise StoreError(f"{shown}: {error}") from None

    @property
    def _cannot_connect(self) -> str:
        shown = urls.without_secrets(self._engines[0].url.render_as_string(hide_password=False))
        return f"cannot connect to {shown}"

    def _look_whether_replica(self, connection: Connection) -> None:
        replica = bool(raw_execute.rows(connection, self._whether_replica, {})[0][0])
        self.standing = replace(self.standing, replica=replica)

    def _leave_desynced(self, error: DBAPIError) -> None:
        """Leave a node of a Galera cluster whose locks hold up all writes, if there are others.

        Raises:
            StoreUnavailableError: it is such a node; the next connection is to another.
        """
        if self._connection is None or not self.in_cluster or len(self._engines) == 1:
            return
        try:
            # The wait for the lock has left too little of the step before.
            self._budget.step()
        except TimeoutError:
            return
        if (state := galera.desynced(self._connection, self.dialect)) is None:
            return
        self.disconnect()
        self._engines.rotate(-1)
        raise StoreUnavailableError(
            f"{MESSAGES[Fault.UNAVAILABLE]}: this node of a Galera cluster is {state}, as a donor"
            f" or a node that is being backed up is: {self._explained(error)}"
        ) from None

    def _roll_back(self, connection: Connection, error: BaseException) -> None:
        """End a transaction that has failed; where that cannot be, the connection goes."""
        unknown = isinstance(error, DBAPIError) and self._fault(error) is Fault.UNKNOWN
        if unknown or connection.invalidated:
            self.disconnect()
            return
        try:
            connection.exec_driver_sql("ROLLBACK")
        except SQLAlchemyError:
            self.disconnect()

    def _fault(self, error: DBAPIError) -> Fault:
        return self.dialect.classify(error.orig or error)

    def _failure(self, fault: Fault, error: DBAPIError) -> StoreError | ScheduleError:
        """The exception for a fault; drops a connection that is no use any more."""
        if fault in (Fault.UNAVAILABLE, Fault.READ_ONLY, Fault.UNKNOWN):
            self.disconnect()
        # A node that is being backed up (BACKUP STAGE BLOCK_COMMIT) answers questions and no write.
        if fault is Fault.READ_ONLY or (fault is Fault.UNKNOWN and self.in_cluster):
            self._engines.rotate(-1)
        mend = f"; {self.dialect.mend}" if fault is Fault.MISCONFIGURED else ""
        return ERRORS[fault](f"{MESSAGES[fault]}: {self._explained(error)}{mend}")

    def _explained(self, error: DBAPIError) -> str:
        return self.dialect.explain(error.orig or error)


def _ask_anything(connection: Connection) -> None:
    connection.exec_driver_sql("SELECT 1").close()


def _unusable(error: Exception) -> str:
    if isinstance(error, ImportError) and error.name == "psycopg":
        return "needs the driver psycopg: pip install 'psched[postgresql]'"
    return str(error)

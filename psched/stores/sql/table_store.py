"""The base class of stores on one table of a relational database."""

import abc
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection, TextClause
from typing_extensions import override

from psched.base.clock import Clock
from psched.base.errors import SchemaError, StoreError, TransientStoreError
from psched.core.store_protocol import Backlog, Store
from psched.stores.parameters import StoreParameters
from psched.stores.round_trips import measure
from psched.stores.sql import raw_execute
from psched.stores.sql.connector import Connector
from psched.stores.sql.raw_execute import Columns

_INIT_TIMEOUT = 3600.0
"""The timeout of `init`, in seconds: long, because adding an index to a large table takes long."""


class _Statements(Protocol):
    now: TextClause
    rights: Mapping[str, TextClause]


S = TypeVar("S", bound=_Statements)
T = TypeVar("T", bound="TableStore[Any]")
P = ParamSpec("P")
R = TypeVar("R")


def one_request(method: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Limit a method of a `TableStore` to the time of one request; see `Connector.request`."""

    @wraps(method)
    def bounded(store: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with store.request():
            return method(store, *args, **kwargs)

    return bounded


def backlog_of(found: Sequence[Columns]) -> Backlog:
    """Return the backlog, given for each due row its due time and the store's clock, oldest first.

    Both times are in Unix seconds.
    """
    if not found:
        return Backlog()
    oldest, now = found[0]
    return Backlog(due=len(found), late=max(0.0, float(now) - float(oldest)))


class TableStore(Store, Generic[S]):
    """A store on one table; a subclass provides the statements.

    Args:
        parameters: the settings of the store.
        rng: random generator for the pauses between tries to get SQLite's write lock.
    """

    _known_sql: S | None = None

    def __init__(self, parameters: StoreParameters, *, clock: Clock, rng: random.Random) -> None:
        self._connect = partial(Connector, parameters.url, clock=clock, rng=rng, tls=parameters.tls)
        self._connector = self._connect(timeout=parameters.timeout, greet=self._check)
        self._table = parameters.table
        self._clock = clock

    @property
    def _sql(self) -> S:
        """The statements. If they depend on the table, a connection is opened first."""
        if self._known_sql is None:
            self._connector.read(lambda _connection: None)  # calls `_check`, which sets them
        if self._known_sql is None:
            raise TypeError(f"{type(self).__name__}._check has set no statements")
        return self._known_sql

    @_sql.setter
    def _sql(self, statements: S) -> None:
        self._known_sql = statements

    @abc.abstractmethod
    def _check(self, connection: Connection) -> None:
        """Raise an error if psched cannot use the table; called with each new connection."""

    @abc.abstractmethod
    def _make(self, connection: Connection, *, force: bool) -> Sequence[str]:
        """Create or upgrade the table; return a line of text for each change."""

    @abc.abstractmethod
    def _describe_claims(self) -> str:
        """How rows are claimed on the current server, as text for `psched check`."""

    @override
    def init(self, *, force: bool = False) -> Sequence[str]:
        self._prepare()
        return self._unchecked(lambda connection: self._make(connection, force=force))

    def _unchecked(self, work: Callable[[Connection], R]) -> R:
        """Run work on another connection, whose timeout is long and which is not checked.

        The table might not exist yet, and upgrading a large table takes long.
        """
        connector = self._connect(
            timeout=_INIT_TIMEOUT, greet=lambda _connection: None, reflects=True
        )
        try:
            return connector.run(work)
        finally:
            connector.disconnect()

    def _prepare(self) -> None:
        """Create what must exist before psched can connect, such as the file of SQLite."""
        self._connector.dialect.prepare(self._connector.url)

    @override
    def now(self) -> float:
        return float(self._query(self._sql.now, {})[0][0])

    @override
    def try_rights(self) -> None:
        self._try_each(self._sql.rights, self._table)

    def _try_each(self, tried: Mapping[str, TextClause], table: str) -> None:
        """Send statements that change nothing."""
        refused: dict[str, str] = {}
        for right, statement in tried.items():
            try:
                self._write(statement, {})
            except (SchemaError, TransientStoreError):
                raise
            except StoreError as error:
                refused[right] = str(error)
        if refused:
            rights, reason = ", ".join(refused), next(iter(refused.values()))
            raise StoreError(f"cannot {rights} in the table {table!r}: {reason}")

    @override
    def examine(self) -> Sequence[tuple[str, str]]:
        connector, dialect = self._connector, self._connector.dialect
        self.now()  # opens a connection

        def answer(query: str) -> str:
            return str(connector.read(lambda c: c.exec_driver_sql(query).first() or [""])[-1] or "")

        offset, took = measure(self.now, self._clock)
        server = answer(dialect.server)
        return [
            ("server", f"{server}, a node of a Galera cluster" if connector.in_cluster else server),
            ("claims by", self._describe_claims()),
            ("isolation", answer(dialect.isolation).lower().replace("-", " ")),
            ("encrypted", answer(dialect.encryption) or "no"),
            ("clock", offset),
            ("writable", self._describe_writable()),
            ("round trip", took),
        ]

    def _describe_writable(self) -> str:
        if not self._connector.is_replica:
            return "yes"
        is_file = self._connector.dialect.is_file
        return "no: this user may only read the file" if is_file else "no: it is a replica"

    def request(self) -> AbstractContextManager[None]:
        """Treat all statements within the block as one request; see `Connector.request`."""
        return self._connector.request()

    @override
    def disconnect(self) -> None:
        self._connector.disconnect()

    def _query(self, statement: TextClause, values: Mapping[str, Any]) -> Sequence[Columns]:
        """Send a query; return all rows of its result."""
        return self._connector.read(lambda c: raw_execute.rows(c, statement, values))

    def _write(self, statement: TextClause, values: Mapping[str, Any]) -> int:
        """Send one statement that writes; return the number of rows that it matched."""
        return self._connector.run(lambda c: raw_execute.count(c, statement, values))

    def _write_parts(self, parts: Sequence[R], write: Callable[[Connection, R], object]) -> None:
        """Write several parts, all or none; each one may take as long as a request.

        A single part needs no transaction, because ``write`` writes it by one statement.
        """
        if len(parts) == 1:
            self._connector.run(lambda c: write(c, parts[0]))
            return

        def work(connection: Connection) -> None:
            for part in parts:
                self._connector.renew()
                write(connection, part)

        if parts:
            self._connector.transact(work)

"""What stores on one table of a relational database have in common."""

import abc
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection, TextClause

from psched.base.clock import Clock
from psched.base.errors import SchemaError, StoreError, TransientStoreError
from psched.config.tls import Tls
from psched.stores.sql import raw_execute
from psched.stores.sql.connector import Connector
from psched.stores.sql.raw_execute import Columns

_INIT_TIMEOUT = 3600.0
"""Seconds; a column or an index of a large table takes its time."""


class _Statements(Protocol):
    now: TextClause
    attempts: Mapping[str, TextClause]


S = TypeVar("S", bound=_Statements)
T = TypeVar("T", bound="TableStore[Any]")
P = ParamSpec("P")
R = TypeVar("R")


def one_request(method: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Have a method of a `TableStore` take two timeouts at most, whatever it consists of."""

    @wraps(method)
    def bounded(store: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with store.request():
            return method(store, *args, **kwargs)

    return bounded


class TableStore(abc.ABC, Generic[S]):
    """Some of `psched.core.store_protocol.Store`, on one table.

    Args:
        url: database URL in SQLAlchemy's form.
        table: the table's name, a plain identifier.
        timeout: seconds; bound of every wait for the server.
        clock: this host's clocks.
        rng: draws the pauses between tries.
        tls: how connections are encrypted; None: as the url's own options, or the driver, will.
    """

    _sql: S

    def __init__(
        self,
        url: str,
        *,
        table: str,
        timeout: float,
        clock: Clock,
        rng: random.Random,
        tls: Tls | None = None,
    ) -> None:
        self._connect = partial(Connector, url, clock=clock, rng=rng, tls=tls)
        self._connector = self._connect(timeout=timeout, greet=self._check)
        self._table = table
        self._clock = clock

    @abc.abstractmethod
    def _check(self, connection: Connection) -> None:
        """Refuse a new connection on which we could not work."""

    @abc.abstractmethod
    def _make(self, connection: Connection) -> Sequence[str]:
        """Create or upgrade what is needed; what was done, for people."""

    def init(self) -> Sequence[str]:
        """See `Backend.init`."""
        # A connection of its own: there may be no table to check yet, and an upgrade of a
        # large one takes longer than any lease.
        self._prepare()
        connector = self._connect(
            timeout=_INIT_TIMEOUT, greet=lambda _connection: None, reflects=True
        )
        try:
            return connector.run(self._make)
        finally:
            connector.disconnect()

    def _prepare(self) -> None:
        """Make what must be there before the database can be connected to."""
        self._connector.dialect.prepare(self._connector.url)

    def now(self) -> float:
        """See `Backend.now`."""
        return float(self._query(self._sql.now, {})[0][0])

    def try_rights(self) -> None:
        """See `Backend.try_rights`."""
        refused: dict[str, str] = {}
        for right, statement in self._sql.attempts.items():
            try:
                self._write(statement, {})
            except (SchemaError, TransientStoreError):
                raise
            except StoreError as error:
                refused[right] = str(error)
        if refused:
            rights, reason = ", ".join(refused), next(iter(refused.values()))
            raise StoreError(f"cannot {rights} in the table {self._table!r}: {reason}")

    def request(self) -> AbstractContextManager[None]:
        """See `Connector.request`."""
        return self._connector.request()

    def disconnect(self) -> None:
        """See `Backend.disconnect`."""
        self._connector.disconnect()

    def _query(self, statement: TextClause, values: Mapping[str, Any]) -> Sequence[Columns]:
        """All that a query returns."""
        return self._connector.read(lambda c: raw_execute.rows(c, statement, values))

    def _write(self, statement: TextClause, values: Mapping[str, Any]) -> int:
        """Send one statement that writes; the number of rows it met."""
        return self._connector.run(lambda c: raw_execute.count(c, statement, values))

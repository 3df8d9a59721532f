"""The base class of stores on one table of a relational database."""

import abc
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from sqlalchemy import Connection, TextClause
from typing_extensions import override

from psched.base.clock import Clock
from psched.config import Config
from psched.core.store_protocol import Backlog, Store
from psched.stores.round_trips import measure
from psched.stores.sql.connector import Connector
from psched.stores.sql.history import SqlHistory
from psched.stores.sql.raw_execute import Columns
from psched.stores.sql.side_tables import SideStore, try_rights

if TYPE_CHECKING:
    from psched.stores.sql.output import SqlOutput

_INIT_TIMEOUT = 3600.0
"""The timeout of `init`, in seconds: long, because adding an index to a large table takes long."""


class _Statements(Protocol):
    now: TextClause
    rights: Mapping[str, TextClause]


S = TypeVar("S", bound=_Statements)
P = TypeVar("P", bound=SideStore)
R = TypeVar("R")


def backlog_of(found: Sequence[Columns]) -> Backlog:
    """Return the backlog, given for each due row its due time and the store's clock, oldest first.

    Both times are in Unix seconds.
    """
    if not found:
        return Backlog()
    oldest, now = found[0]
    return Backlog(due=len(found), late=max(0.0, float(now) - float(oldest)))


class TableStore(Store, Generic[S]):
    """A store on one table, with a run history and output beside it.

    A subclass provides the statements, and calls `_note_missing` when it connects.
    """

    history: SqlHistory
    _sql: S

    def __init__(self, settings: Config, *, clock: Clock, rng: random.Random) -> None:
        self._connect = partial(Connector, settings.url, clock=clock, rng=rng, tls=settings.tls)
        self._connector = self._connect(timeout=settings.driver_timeout, greet=self._check)
        self._query, self._write = self._connector.query, self._connector.write
        self._table = settings.table
        self._clock = clock
        self._missing: dict[str, str | None] = {}
        self.history = SqlHistory(self._table, self._connector, self._check, clock)

    @cached_property
    def output(self) -> "SqlOutput":  # type: ignore[override]  # it is set once, too
        """What keeps output; most commands ask for none."""
        from psched.stores.sql.output import SqlOutput  # noqa: PLC0415

        return self._part("output", SqlOutput(self._table, self._connector, self._check))

    def _part(self, name: str, made: P) -> P:
        """A part of the store that was made after the last call of `_note_missing`."""
        made.missing = self._missing.get(name, made.missing)
        return made

    def _note_missing(self, **problems: str | None) -> None:
        """Note for each part of the store why it keeps nothing; None if it does."""
        self._missing |= problems
        for name in problems.keys() & vars(self).keys():
            getattr(self, name).missing = problems[name]

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
        try_rights(self._connector, self._sql.rights, self._table)
        self.history.try_rights()
        self.output.try_rights()

    @override
    def examine(self) -> Sequence[tuple[str, str]]:
        connector, dialect = self._connector, self._connector.dialect
        self.now()  # opens a connection

        def answer(query: str) -> str:
            return str(connector.read(lambda c: c.exec_driver_sql(query).first() or [""])[-1] or "")

        offset, took = measure(self.now, self._clock)
        server = answer(dialect.server)
        if connector.server_info.in_cluster:
            server = f"{server}, a node of a Galera cluster"
        return [
            ("server", server),
            ("claims by", self._describe_claims()),
            ("isolation", answer(dialect.isolation).lower().replace("-", " ")),
            ("encrypted", answer(dialect.encryption) or "no"),
            ("clock", offset),
            ("writable", self._describe_writable()),
            ("round trip", took),
        ]

    def _describe_writable(self) -> str:
        if not self._connector.server_info.replica:
            return "yes"
        is_file = self._connector.dialect.is_file
        return "no: this user may only read the file" if is_file else "no: it is a replica"

    @override
    def disconnect(self) -> None:
        self._connector.disconnect()

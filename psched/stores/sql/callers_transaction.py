"""A transaction of the calling program, in which schedules are added."""

from collections.abc import Callable, Sequence

from sqlalchemy import Connection, TextClause, text
from typing_extensions import override

from psched.core.model import Row
from psched.core.store_protocol import CallersTransaction
from psched.stores.sql.by_key.conditions import Request
from psched.stores.sql.connector import Connector


class JoinedTransaction(CallersTransaction):
    """A transaction that a program has begun on its own connection, and that adds schedules.

    Args:
        connection: the program's connection.
        connector: classifies errors; its own connection is not used.
        now: the statement that reads the store's clock.
        inserts: returns the statements that insert rows; each row stores the given nonce.
        announcement: the statement that announces that rows may be due; None if there is none.
    """

    def __init__(
        self,
        connection: Connection,
        connector: Connector,
        now: TextClause,
        inserts: Callable[[Sequence[Row], str], Sequence[Request]],
        announcement: str | None,
    ) -> None:
        self._connection = connection
        self._connector = connector
        self._now = now
        self._inserts = inserts
        self._announcement = announcement

    @override
    def now(self) -> float:
        read = self._connector.borrow(
            self._connection, lambda c: c.execute(self._now).scalar_one(), savepoint=False
        )
        return float(read)

    @override
    def add(self, rows: Sequence[Row], *, nonce: str) -> None:
        inserts = self._inserts(rows, nonce)
        self._connector.borrow(self._connection, lambda c: [c.execute(*each) for each in inserts])

    def announce(self) -> None:
        """Announce when the transaction commits; see `AnnouncesInTransaction.announce`."""
        if self._announcement is not None:
            statement = text(self._announcement)
            self._connector.borrow(self._connection, lambda c: c.execute(statement))

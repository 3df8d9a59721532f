"""Reading rows, and the store's clock with them."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import TextClause

from psched.contrib.perfectsched.store.rows import Stored
from psched.contrib.perfectsched.store.statements import Statements
from psched.stores.sql.connector import Connector


class Reader:
    """Reads one table.

    Args:
        connector: the connection.
        sql: the table's statements.
    """

    def __init__(self, connector: Connector, sql: Statements) -> None:
        self._connector = connector
        self._sql = sql

    def all(self, statement: TextClause, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """All that a query returns."""
        return self._connector.read(lambda c: c.execute(statement, values).all())

    def look(self, keys: Sequence[str]) -> tuple[float, Mapping[str, Stored]]:
        """The store's clock, and the rows under these keys; without any, the clock is 0."""
        if not keys:
            return 0.0, {}
        found = self.all(self._sql.look, {"ids": [*keys]})
        wanted = {*keys}
        rows = [Stored(*columns[1:]) for columns in found]
        # Its collation may take another key for one of these.
        by_key = {row.id: row for row in rows if row.id in wanted}
        return float(found[0][0]) if found else 0.0, by_key

"""What the ways to claim have in common."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from psched.core.model import Row
from psched.core.store_protocol import Claimed
from psched.stores.sql import raw_execute
from psched.stores.sql.connector import Connector
from psched.stores.sql.statements import Statements


class Strategy(Protocol):
    """One way to claim."""

    name: str
    """As the setting ``claim_strategy`` has it."""

    def claim(self, owner: str, limit: int, lease: Mapping[str, int], horizon: float) -> Claimed:
        """See `psched.core.store_protocol.Store.claim`.

        Args:
            owner: a text never used before.
            limit: at most that many rows.
            lease: the values ``alive_time`` and ``shortest``.
            horizon: how many seconds ahead to look for the next due row.
        """
        ...


def held_by(owner: str, connector: Connector, sql: Statements) -> Sequence[Row]:
    """The rows that an owner holds."""
    found = connector.read(lambda c: raw_execute.rows(c, sql.held, {"owner": owner}))
    return [Row(*columns) for columns in found]

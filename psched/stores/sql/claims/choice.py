"""Which way to claim a server can do: it is tried, on no row."""

from sqlalchemy import text

from psched.base.errors import StoreError
from psched.stores.sql.claims.compare import CompareAndSwap
from psched.stores.sql.claims.skip_locked import SkipLocked
from psched.stores.sql.claims.strategy import Strategy
from psched.stores.sql.connector import Connector
from psched.stores.sql.errors import UnableError
from psched.stores.sql.statements import Statements


def choose(connector: Connector, sql: Statements, wanted: str) -> Strategy:
    """The best way to claim that the server can do.

    Args:
        connector: the connection.
        sql: the table's statements.
        wanted: the only one that will do; ``auto``: whichever is best.

    Raises:
        StoreUnavailableError: the server does not answer.
        StoreError: it cannot do what is wanted.
    """
    for strategy in (SkipLocked, CompareAndSwap):
        name = strategy.name
        if name in connector.dialect.strategies and wanted in ("auto", name):
            if strategy is SkipLocked and not _skips_locked(connector, sql):
                continue
            return strategy(connector, sql)
    raise StoreError(f"claim_strategy: the database cannot do {wanted}; set it to auto")


def _skips_locked(connector: Connector, sql: Statements) -> bool:
    """Whether the server understands the statement with which rows would be claimed."""
    proof = text(sql.skip_locked_proof)
    try:
        connector.read(lambda c: c.execute(proof).close())
    except UnableError:
        return False
    return True

"""Galera: every node accepts writes, and every node can lag behind the others.

Before a node commits a write, it applies the earlier writes of the other nodes. If one of these
writes changed the same row, the node refuses its own write (error 1213). So if two workers claim a
row at two nodes, only one of them succeeds.

But a statement that matches no row is not checked against the other nodes. A node that lags still
shows the old state of a lease that was granted, extended or settled through another node, so that
the lease's holder would believe that the lease is lost. Therefore a new connection, which can be
to another node than the last one, first waits until its node has applied all earlier commits. Later
statements do not wait, because the connection stays at this node, and because waiting would make
every claim take 50 % more time.
"""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from psched.base.errors import StoreUnavailableError
from psched.stores.sql.dialects import Dialect

_SYNCED = "4"
"""The value of ``wsrep_local_state`` at a synchronized node.

According to Galera's documentation, 2 means Donor/Desynced, and 1 and 3 mean that the node joins.
"""

T = TypeVar("T")


def read_caught_up(connection: Connection, dialect: Dialect, read: Callable[[Connection], T]) -> T:
    """Read at a node after it has applied all earlier commits of the cluster."""
    if dialect.catch_up is None:
        return read(connection)
    wait, wait_no_more = dialect.catch_up
    try:
        connection.exec_driver_sql(wait)
        found = read(connection)
        connection.exec_driver_sql(wait_no_more)
    except DBAPIError as error:
        raise StoreUnavailableError(
            f"the database is unavailable: this node of a Galera cluster has not caught up with"
            f" the others: {error.orig}"
        ) from None
    return found


def desynced_state(connection: Connection, dialect: Dialect) -> str | None:
    """Return the name of a node's state if the node is not synchronized.

    Return None if the node is synchronized, or if its state cannot be read.
    """
    try:
        rows = connection.exec_driver_sql(dialect.node_state or "").all()
    except DBAPIError:
        return None  # the next request reports the error
    found = {str(row[0]): str(row[1]) for row in rows}
    synced = found.get("wsrep_local_state", _SYNCED) == _SYNCED
    return None if synced else found.get("wsrep_local_state_comment", "not synced")

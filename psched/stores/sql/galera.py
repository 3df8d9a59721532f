"""Galera: every node accepts writes, and every node may lag behind the others.

Before a node commits a write, it applies the earlier writes of the other nodes. If one of these
writes changed the same row, the node refuses its own write (error 1213). So if two workers claim a
row at two nodes, only one of them succeeds.

But a statement that matches no row is not checked against the other nodes. A node that lags still
shows the old state of a lease that was granted, extended or settled through another node, so that
the lease's holder would believe that the lease is lost. Therefore a new connection, which may be
to another node than the last one, first waits until its node has applied all earlier commits. Later
statements do not wait, because the connection stays at this node, and because waiting would make
every claim take half as long again.
"""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from psched.base.errors import StoreUnavailableError
from psched.stores.sql.dialects import Dialect

_SYNCED = "4"
"""See wsrep_local_state in Galera's documentation; 2 is Donor/Desynced, 1 and 3 are joining."""

T = TypeVar("T")


def read_caught_up(connection: Connection, dialect: Dialect, read: Callable[[Connection], T]) -> T:
    """Read at a node after it has applied all earlier commits of the cluster.

    Args:
        connection: the connection to the node.
        dialect: has the statements that make the node wait; without them, the query is sent at
            once.
        read: sends one query.

    Raises:
        StoreUnavailableError: the node took longer than the driver waits.
    """
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
    """The state of a node that is not synchronized; None: it is, or its state cannot be read."""
    try:
        rows = connection.exec_driver_sql(dialect.node_state or "").all()
    except DBAPIError:
        return None  # the next request will report what is wrong
    found = {str(row[0]): str(row[1]) for row in rows}
    synced = found.get("wsrep_local_state", _SYNCED) == _SYNCED
    return None if synced else found.get("wsrep_local_state_comment", "not synced")

"""Galera: every node accepts writes, and every node may lag behind the others.

A node applies the others' writes before it commits one of its own, and refuses its own if one of
them met the same row (error 1213): of two workers that claim a row at two nodes, one gets it.
But a statement that finds no row to write is not checked against the other nodes. At a node that
lags, a lease that was granted, extended or settled through another node looks as it did before;
its holder would take it for lost. So a new connection, which may lead to another node than the
last one did, first waits until its node has applied all that was committed before. Later writes
of this worker go through the same node. If each statement waited, every claim would take half as
long again.
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
    """Read at a node when it has applied what was committed before.

    Args:
        connection: to the node.
        dialect: how the node is told to wait; one without Galera reads at once.
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
    """The state of a node that does not keep up with its cluster; None: it keeps up."""
    try:
        rows = connection.exec_driver_sql(dialect.node_state or "").all()
    except DBAPIError:
        return None  # the next request will report what is wrong
    found = {str(row[0]): str(row[1]) for row in rows}
    synced = found.get("wsrep_local_state", _SYNCED) == _SYNCED
    return None if synced else found.get("wsrep_local_state_comment", "not synced")

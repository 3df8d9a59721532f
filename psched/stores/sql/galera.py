"""Galera: every node may be written, and every node may be late.

A node has the others' writes before it commits one of its own, and refuses its own if one of
them has met the same row (error 1213): of two workers who claim a row at two nodes, one gets it.
But a statement that finds nothing to write asks nobody. At a node that is late, a lease that was
taken, extended or settled through another node looks as it was before; to its holder it would
look lost. So a new connection, which may be to another node than the last, first waits until
the node has applied all that was committed before. What its worker writes later goes through
this same node. To have each statement wait would cost half as much again for every claim.
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


def caught_up(connection: Connection, dialect: Dialect, read: Callable[[Connection], T]) -> T:
    """Read at a node of a cluster when it has applied what was committed before.

    Args:
        connection: to the node.
        dialect: the database's ways.
        read: sends one query.

    Raises:
        StoreUnavailableError: it takes longer than the driver waits.
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


def desynced(connection: Connection, dialect: Dialect) -> str | None:
    """The state of a node that does not keep up with its cluster; None: it does."""
    try:
        rows = connection.exec_driver_sql(dialect.node_state or "").all()
    except DBAPIError:
        return None  # the next request tells what is wrong
    found = {str(row[0]): str(row[1]) for row in rows}
    synced = found.get("wsrep_local_state", _SYNCED) == _SYNCED
    return None if synced else found.get("wsrep_local_state_comment", "not synced")

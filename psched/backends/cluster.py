"""Galera: every node may be written, and every node may be late.

A node has the others' writes before it commits one of its own, and refuses its own if one of
them has met the same row (error 1213): of two workers who claim a row at two nodes, one gets it.
But a statement that finds nothing to write asks nobody. At a node that is late, a lease that was
taken, extended or settled through another node looks as it was before; to its holder it would
look lost. So a new connection, which may be to another node than the last, first waits until
the node has applied all that was committed before. What its worker writes later goes through
this same node. To have each statement wait would cost half as much again for every claim.
"""

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from psched.backends.dialects import Dialect
from psched.errors import StoreUnavailableError

_SYNCED = "4"
"""See wsrep_local_state in Galera's documentation; 2 is Donor/Desynced, 1 and 3 are joining."""


def catch_up(connection: Connection, dialect: Dialect) -> bool:
    """Wait until a node of a Galera cluster has applied what was committed before.

    Returns:
        Whether it is one.

    Raises:
        StoreUnavailableError: it takes longer than the driver waits.
    """
    if dialect.galera is None or not connection.exec_driver_sql(dialect.galera).all():
        return False
    try:
        for statement in dialect.catch_up:
            connection.exec_driver_sql(statement)
    except DBAPIError as error:
        raise StoreUnavailableError(
            f"the database is unavailable: this node of a Galera cluster has not caught up with"
            f" the others: {error.orig}"
        ) from None
    return True


def desynced(connection: Connection, dialect: Dialect) -> str | None:
    """The state of a node that does not keep up with its cluster; None: it does."""
    try:
        rows = connection.exec_driver_sql(dialect.node_state or "").all()
    except DBAPIError:
        return None  # the next request tells what is wrong
    found = {str(row[0]): str(row[1]) for row in rows}
    synced = found.get("wsrep_local_state", _SYNCED) == _SYNCED
    return None if synced else found.get("wsrep_local_state_comment", "not synced")

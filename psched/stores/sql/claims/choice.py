"""Which way to claim a server can do: it is tried, on no row."""

from collections.abc import Callable
from functools import partial

from sqlalchemy import text

from psched.base.errors import StoreError
from psched.stores.sql.claims.compare import CompareAndSwap
from psched.stores.sql.claims.skip_locked import SkipLocked, SkipLockedAtOnce
from psched.stores.sql.claims.strategy import Strategy
from psched.stores.sql.claims.update_first import UpdateFirst
from psched.stores.sql.connector import Connector
from psched.stores.sql.failures import UnableError
from psched.stores.sql.statements import Statements

_WAYS: tuple[tuple[str, str | None, Callable[[Connector, Statements], Strategy]], ...] = (
    ("skip_locked", "take_unlocked", SkipLockedAtOnce),
    ("skip_locked", "lock_due", SkipLocked),
    ("update_first", "take_returning", partial(UpdateFirst, returning=True)),
    ("update_first", "take_limited", partial(UpdateFirst, returning=False)),
    ("cas", None, CompareAndSwap),
)
"""Names as the setting ``claim_strategy`` has them; the statement that each needs; what does it."""


def choose(connector: Connector, sql: Statements, wanted: str | None = None) -> Strategy:
    """The best way to claim that the server can do.

    Args:
        connector: the connection.
        sql: the table's statements.
        wanted: the name of the only one that will do; None: whichever is best.

    Raises:
        StoreUnavailableError: the server does not answer.
        StoreError: it cannot do what is wanted.
    """
    names = [*connector.dialect.strategies]
    in_cluster = connector.read(lambda _connection: connector.in_cluster)
    if in_cluster:
        # Row locks end at the node there: what others have locked is not skipped.
        names.remove("skip_locked")
    for name in names:
        for known, needed, make in _WAYS:
            if name == known and wanted in (None, name) and _can(connector, sql, needed):
                return make(connector, sql)
    others = ", ".join(name for name in names if name != wanted)
    mend = f"set claim_strategy to auto or to one of {others}"
    database = "a Galera cluster" if in_cluster else "the database"
    raise StoreError(f"claim_strategy: {database} cannot do {wanted}; {mend}")


def _can(connector: Connector, sql: Statements, needed: str | None) -> bool:
    if needed is None:
        return True
    proof = text(sql.proofs[needed])
    try:
        connector.read(lambda c: c.execute(proof).close())
    except UnableError:
        return False
    return True

"""What people want to know about a database: which it is, and how it stands to this host."""

from collections.abc import Callable, Sequence

from psched.base.clock import Clock
from psched.stores.sql.connector import Connector

_TRIES = 5
"""How often a round trip is measured."""


def examine(
    connector: Connector, now: Callable[[], float], clock: Clock, *, strategy: str
) -> Sequence[tuple[str, str]]:
    """See `Backend.examine`.

    Args:
        connector: the connection.
        now: asks for the store's clock.
        clock: this host's clocks.
        strategy: how rows are claimed, in words.
    """
    dialect = connector.dialect

    def answer(query: str) -> str:
        return str(connector.read(lambda c: c.exec_driver_sql(query).first() or [""])[-1] or "")

    tries = []
    for _ in range(_TRIES):
        before = clock.monotonic()
        shown = now()
        tries.append((clock.monotonic() - before, shown - clock.wall()))
    # The shortest is the least disturbed. The server's clock was read half-way.
    took, behind = min(tries)
    server = answer(dialect.server)
    return [
        ("server", f"{server}, a node of a Galera cluster" if connector.in_cluster else server),
        ("claims by", strategy),
        ("isolation", answer(dialect.isolation).lower().replace("-", " ")),
        ("encrypted", answer(dialect.encryption) or "no"),
        ("clock", f"{behind + took / 2:+.3f} s from this host's"),
        ("writable", "no: it is a replica" if connector.is_replica else "yes"),
        ("round trip", f"{took * 1000:.3f} ms"),
    ]

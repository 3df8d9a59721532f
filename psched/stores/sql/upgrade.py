"""What turns the table of schedules of schema version 2 into that of version 3.

This is the last upgrade during which workers have to stop: from version 3 on, the workers of the
previous version work on an upgraded table. Workers of version 2 would ignore the holds of version 3
(see `psched.core.store_protocol.HoldsSchedules`). So `Schema.init` refuses while they are
registered. The column ``owner`` is renamed first, so that one that runs all the same can neither
claim, extend nor settle.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, Table, inspect, text
from sqlalchemy.schema import CreateColumn

from psched.core.columns import LATEST_TIME
from psched.core.history.records import GONE_AFTER
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.tables import Change, parts_of

_RENAMED = "owner"


def renamed(connection: Connection, table: Table, dialect: Dialect) -> Sequence[Change]:
    """What renames ``owner``, the first step of the upgrade, unless it was done already."""
    if not inspect(connection).has_table(table.name):
        return []
    new, there = table.columns["leased_by"], parts_of(connection, table)
    if _RENAMED not in there or new.name in there:
        return []
    name = connection.dialect.identifier_preparer.format_table(table)
    spec = CreateColumn(new).compile(dialect=connection.dialect)
    rename = dialect.rename_column.format(old=_RENAMED, new=new.name, spec=spec)
    line = f"renamed column {table.name}.{_RENAMED} to {new.name}"
    return [Change("rename", table, new.name, text(f"ALTER TABLE {name} {rename}"), line)]


def decoded(connection: Connection, table: Table, dialect: Dialect) -> Change:
    """What gives the times back to the schedules that extra runs of version 2 had leased.

    Such a row had a negative ``attempt``, -(1000 (1000 t + n + 1) + 999), plus 1 for each claim:
    the ``next_run_time`` t to which it returns (0 for none), and its n attempts. The statement
    can be repeated.
    """
    name = connection.dialect.identifier_preparer.format_table(table)
    div = dialect.whole_division
    note = f"(attempt {div} -1000)"
    time = f"({note} {div} 1000)"
    number = f"({note} - 1000 * {time} - 1)"
    statement = (
        # MySQL assigns from left to right, so that ``attempt`` must come last.
        f"UPDATE {name} SET next_run_time = CASE WHEN {time} = 0 THEN NULL ELSE {time} END,"
        f" leased_by = NULL, claimed_at = NULL, attempt = {number}"
        f" WHERE next_time IS NOT NULL AND attempt <= -1000"
        f" AND {number} >= 0 AND {time} <= {LATEST_TIME}"
    )
    return Change("rows", table, None, text(statement), "")


def older_workers(connection: Connection, table: Table, dialect: Dialect) -> Sequence[str]:
    """The workers that are registered: their hosts and pids, for people."""
    name = connection.dialect.identifier_preparer.quote(f"{table.name}_workers")
    if not inspect(connection).has_table(f"{table.name}_workers"):
        return []
    alive = f"ended IS NULL AND seen > {dialect.now_floor} - {GONE_AFTER}"
    found = connection.execute(
        text(f"SELECT host, pid FROM {name} WHERE {alive} ORDER BY host, pid")
    )
    return [f"{host} (pid {pid})" for host, pid in found]

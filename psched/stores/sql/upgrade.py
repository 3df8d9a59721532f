"""What turns the table of schedules of schema version 2 into that of version 3.

This is the last upgrade during which workers have to stop: from version 3 on, the workers of the
previous version work on an upgraded table. Workers of version 2 would ignore the holds of version 3
(see `psched.core.store_protocol.HoldsSchedules`). So `Schema.init` refuses while they are
registered. The column ``owner`` is renamed first, so that one that runs all the same can neither
claim, extend nor settle.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from math import floor

from sqlalchemy import Connection, Table, inspect, text
from sqlalchemy.schema import CreateColumn, DropIndex

from psched.core.attempts import WORKER_DIED
from psched.core.columns import LATEST_TIME
from psched.core.history.records import GONE_AFTER
from psched.core.model import PAUSED, STOPPING, ReasonCode
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.tables import Change, parts_of

_RENAMED = "owner"


def renamed(connection: Connection, table: Table, dialect: Dialect) -> list[Change]:
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


def decoded(connection: Connection, table: Table, dialect: Dialect) -> Iterator[Change]:
    """What gives each meaning that version 2 had encoded its column; this can be repeated."""
    name = connection.dialect.identifier_preparer.format_table(table)
    div = dialect.whole_division
    note = f"(attempt {div} -1000)"
    time = f"({note} {div} 1000)"
    number = f"({note} - 1000 * {time} - 1)"
    # A schedule that an extra run had leased: ``attempt`` was -(1000 (1000 t + n + 1) + 999), plus
    # 1 for each claim, with the ``next_run_time`` t to which it returns (0 for none), and its n
    # attempts. MySQL assigns from left to right, so that ``attempt`` comes last.
    returned = (
        f"UPDATE {name} SET next_run_time = CASE WHEN {time} = 0 THEN NULL ELSE {time} END,"
        f" leased_by = NULL, claimed_at = NULL, attempt = {number}"
        f" WHERE next_time IS NOT NULL AND attempt <= -1000"
        f" AND {number} >= 0 AND {time} <= {LATEST_TIME}"
    )
    # Another negative number said until when a row without a time is decided, or that a client had
    # set the time of a row during a lease.
    counted = (
        f"UPDATE {name}"
        f" SET decided_until = CASE WHEN next_time IS NULL AND {note} > 0 THEN {note} END,"
        f" moved_at = CASE WHEN next_time IS NOT NULL THEN {dialect.now_floor} END, attempt = 0"
        " WHERE attempt < 0"
    )
    by_failures = "reason LIKE 'paused after %'"
    explained = (
        f"UPDATE {name} SET reason_code = CASE WHEN {by_failures}"
        f" THEN '{ReasonCode.PAUSED_AFTER_FAILURES}' ELSE '{ReasonCode.WORKER_DIED}' END"
        " WHERE reason_code IS NULL"
        f" AND (reason = '{WORKER_DIED}' OR status = '{PAUSED}' AND {by_failures})"
    )
    for statement in (returned, counted, explained):
        yield Change("rows", table, None, text(statement), "")
    # A label was a field of the options, which psched has always written as a JSON object. Options
    # that are something else stay as they are.
    yield Change("rows", table, None, text(dialect.move_labels.format(name)), "")
    # What a pause says was only in its reason. Pauses of many rows have few different reasons.
    paused = f"status IN ('{PAUSED}', '{STOPPING}')"
    reasons = text(f"SELECT DISTINCT reason FROM {name} WHERE {paused}")
    for reason in connection.execute(reasons).scalars().all():
        if (told := _REASON.fullmatch(reason or "")) is None:
            continue
        until = None if told["until"] is None else _instant(told["until"])
        described = text(
            f"UPDATE {name} SET paused_at = :since, paused_until = :until, pause_note = :note,"
            f" reason_code = CASE WHEN status = '{PAUSED}' THEN '{ReasonCode.PAUSED}'"
            f" ELSE '{ReasonCode.STOPPED}' END,"
            f" reason = CASE WHEN status = '{PAUSED}' THEN reason ELSE :stop END"
            f" WHERE {paused} AND paused_at IS NULL AND reason = :reason"
        ).bindparams(
            since=_instant(told["since"]),
            until=until,
            note=told["note"],
            stop=told["stop"] or "stopped",
            reason=reason,
        )
        yield Change("rows", table, None, described, "")


def without_computed_label(connection: Connection, table: Table) -> list[Change]:
    """What drops the column ``label`` that the database has computed from ``options``."""
    if not inspect(connection).has_table(table.name):
        return []
    columns = inspect(connection).get_columns(table.name)
    if not any(each["name"] == "label" and "computed" in each for each in columns):
        return []
    name = connection.dialect.identifier_preparer.format_table(table)
    index = next(each for each in table.indexes if each.name == f"{table.name}_label")
    changes = [Change("drop", table, "label", text(f"ALTER TABLE {name} DROP COLUMN label"), "")]
    if index.name in parts_of(connection, table):
        changes.insert(0, Change("drop", table, str(index.name), DropIndex(index), ""))
    return changes


_TIME = r"\d{4}-\d\d-\d\dT\S+"
_REASON = re.compile(
    rf"paused (?P<since>{_TIME})(?: until (?P<until>{_TIME}))? by (?P<note>.*?)"
    r"(?:; (?P<stop>stopped(?: by .*)?))?",
    re.DOTALL,
)
"""The reason of a paused row of version 2; ``stop`` if its run was to be stopped before."""


def _instant(time: str) -> int:
    return floor(datetime.fromisoformat(time).timestamp())


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

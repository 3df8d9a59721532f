"""The statements about the tables of the run history, as SQL text."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

from sqlalchemy import TextClause, text

from psched.core.history.protocol import AuditSelection, RunSelection
from psched.core.history.records import AuditRecord, RunRecord, WorkerRecord
from psched.stores.sql.dialects import Dialect

Request = tuple[TextClause, dict[str, Any]]

RUN_COLUMNS = tuple(field.name for field in fields(RunRecord))
WORKER_COLUMNS = tuple(field.name for field in fields(WorkerRecord))
AUDIT_COLUMNS = tuple(field.name for field in fields(AuditRecord))

_LARGE = frozenset({"error", "result"})
"""The columns of ``<table>_runs`` that can be large."""


class HistoryStatements:
    """Every statement that psched sends about the tables of the run history.

    Args:
        table: the name of the table of schedules, which contains no character to be quoted.
        dialect: contains the SQL fragments that differ between databases.
        quote: quotes an identifier.
    """

    def __init__(self, table: str, dialect: Dialect, quote: Callable[[str], str]) -> None:
        self._now = dialect.now_floor
        self._milliseconds = dialect.now_milliseconds
        self._ignore = dialect.ignore_duplicate.format(quote("id"))
        self._runs, self._workers, self._audit = (
            quote(f"{table}_{each}") for each in ("runs", "workers", "audit")
        )
        self._run_columns = ", ".join(map(quote, RUN_COLUMNS))
        self._light_columns = ", ".join(
            "NULL" if name in _LARGE else quote(name) for name in RUN_COLUMNS
        )
        self._audit_columns = ", ".join(map(quote, AUDIT_COLUMNS))
        self._key, self._until = quote("key"), quote("until")
        inserted = [name for name in RUN_COLUMNS if name != "id"]
        self._insert_runs = (
            f"INSERT INTO {self._runs} ({', '.join(map(quote, inserted))}) VALUES ",
            f"({', '.join(f':{name}{{0}}' for name in inserted)})",
            f" {self._ignore}",
        )
        changes = [name for name in AUDIT_COLUMNS if name not in {"id", "time"}]
        self._insert_audit = (
            f"INSERT INTO {self._audit} ({', '.join(map(quote, [*changes, 'time']))}) VALUES ",
            f"({', '.join(f':{name}{{0}}' for name in changes)}, {self._milliseconds})",
            "",
        )
        self.oldest = text(f"SELECT id, ended FROM {self._runs} ORDER BY id LIMIT :limit")
        self.delete_range = text(f"DELETE FROM {self._runs} WHERE id >= :first AND id <= :last")
        self.nth_of_key = text(
            f"SELECT id FROM {self._runs} WHERE {self._key} = :key"
            " ORDER BY id DESC LIMIT 1 OFFSET :keep"
        )
        self.delete_of_key = text(
            f"DELETE FROM {self._runs} WHERE {self._key} = :key AND id <= :last"
        )
        self.delete_lost = text(
            f"DELETE FROM {self._runs} WHERE {self._key} = :key"
            " AND scheduled_time = :scheduled_time AND owner = :owner AND outcome = 'lost'"
        )
        self.oldest_audits = text(f"SELECT id, time FROM {self._audit} ORDER BY id LIMIT :limit")
        self.delete_audits = text(f"DELETE FROM {self._audit} WHERE id >= :first AND id <= :last")
        self.delete_workers = text(f"DELETE FROM {self._workers} WHERE seen < :before")
        self.delete_worker = text(f"DELETE FROM {self._workers} WHERE nonce = :nonce")
        columns, integer = ", ".join(map(quote, WORKER_COLUMNS)), dialect.integer.format
        own = [f":{name}" for name in WORKER_COLUMNS[:-3]]
        self.insert_worker = text(
            f"INSERT INTO {self._workers} ({columns}) VALUES ({', '.join(own)},"
            f" COALESCE(NULLIF({integer(':started')}, 0), {self._now}), {self._now},"
            f" CASE WHEN {integer(':ended')} = 0 THEN {self._now} ELSE {integer(':ended')} END)"
        )
        self.select_workers = text(
            f"SELECT {columns} FROM {self._workers} WHERE seen >= :since ORDER BY started, nonce"
        )

    def insert_runs(self, records: Sequence[RunRecord]) -> Request:
        """A request that inserts records, except those that exist already."""
        values: dict[str, Any] = {}
        for i, record in enumerate(records):
            for name in RUN_COLUMNS[:-1]:
                value = getattr(record, name)
                values[f"{name}{i}"] = int(value) if name == "out_of_memory" else value
        return _many(self._insert_runs, len(records)), values

    def insert_audits(self, changes: Sequence[AuditRecord]) -> Request:
        """A request that inserts changes."""
        values = {
            f"{name}{i}": getattr(change, name)
            for i, change in enumerate(changes)
            for name in AUDIT_COLUMNS[:-2]
        }
        return _many(self._insert_audit, len(changes)), values

    def select_runs(self, selection: RunSelection, before: int | None, limit: int) -> Request:
        """A request that reads one page of records, the newest first, with ids below ``before``."""
        values: dict[str, Any] = {"limit": limit}
        conditions = []
        if before is not None:
            conditions.append("id < :before")
            values["before"] = before
        if selection.key is not None:
            conditions.append(f"{self._key} = :key")
            values["key"] = selection.key
        if selection.since is not None:
            conditions.append("ended >= :since")
            values["since"] = selection.since
        if selection.covering is not None:
            conditions.append(
                f"scheduled_time <= :covering AND COALESCE({self._until}, scheduled_time)"
                " >= :covering"
            )
            values["covering"] = selection.covering
        if selection.types:
            conditions.append(_one_of("type", selection.types, values))
        how = []
        if selection.outcomes:
            how.append(_one_of("outcome", selection.outcomes, values))
        if selection.fates:
            how.append(_one_of("fate", selection.fates, values))
        if how:
            conditions.append(f"({' OR '.join(how)})")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        statement = (
            f"SELECT {self._run_columns} FROM {self._runs}{where} ORDER BY id DESC LIMIT :limit"
        )
        return _text(statement), values

    def select_last_runs(self, keys: Sequence[str]) -> Request:
        """A request that reads the newest record of an attempt of each key, without large columns.

        For each key, the database walks down the index (key, id) to the first such record.
        """
        each = (
            f"SELECT newest FROM (SELECT id AS newest FROM {self._runs}"
            f" WHERE {self._key} = :key{{0}} AND outcome IS NOT NULL"
            " ORDER BY id DESC LIMIT 1) AS last{0}"
        )
        # It is a join, because MariaDB would run the parts of id IN (…) anew for each record.
        parts = (
            f"SELECT {self._light_columns} FROM (",
            each,
            f") AS lasts JOIN {self._runs} ON id = newest",
        )
        values = {f"key{i}": key for i, key in enumerate(keys)}
        return _many(parts, len(keys), " UNION ALL "), values

    def select_audits(self, selection: AuditSelection, before: int | None, limit: int) -> Request:
        """A request that reads one page of changes, the newest first, with ids below ``before``."""
        values: dict[str, Any] = {"limit": limit}
        conditions = []
        for condition, name, value in (
            ("id < :before", "before", before),
            (f"{self._key} = :key", "key", selection.key),
            ("time >= :since", "since", selection.since),
        ):
            if value is not None:
                conditions.append(condition)
                values[name] = value
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        statement = (
            f"SELECT {self._audit_columns} FROM {self._audit}{where} ORDER BY id DESC LIMIT :limit"
        )
        return _text(statement), values


def run_record(columns: Sequence[Any]) -> RunRecord:
    """The record in a row of ``<table>_runs``."""
    values = dict(zip(RUN_COLUMNS, columns, strict=True))
    values["out_of_memory"] = bool(values["out_of_memory"])
    return RunRecord(**values)


def worker_record(columns: Sequence[Any]) -> WorkerRecord:
    """The record in a row of ``<table>_workers``."""
    return WorkerRecord(**dict(zip(WORKER_COLUMNS, columns, strict=True)))


def audit_record(columns: Sequence[Any]) -> AuditRecord:
    """The record in a row of ``<table>_audit``."""
    return AuditRecord(**dict(zip(AUDIT_COLUMNS, columns, strict=True)))


def _one_of(column: str, chosen: frozenset[str], values: dict[str, Any]) -> str:
    names = [f"{column}{i}" for i in range(len(chosen))]
    values.update(zip(names, sorted(chosen), strict=True))
    return f"{column} IN ({', '.join(f':{name}' for name in names)})"


@lru_cache(maxsize=64)
def _many(parts: tuple[str, str, str], count: int, separator: str = ", ") -> TextClause:
    head, values, tail = parts
    return text(head + separator.join(values.format(i) for i in range(count)) + tail)


@lru_cache(maxsize=64)
def _text(statement: str) -> TextClause:
    return text(statement)

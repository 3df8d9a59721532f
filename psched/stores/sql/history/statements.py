"""The statements about the tables of the run history, as SQL text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import lru_cache
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, TextClause, text

from psched.base.texts import storable
from psched.core.history.protocol import AuditSelection, RunSelection
from psched.core.history.records import DECISIONS, WHOLE, AuditRecord, RunRecord, WorkerRecord
from psched.core.operations.extra_runs import prefix_of_extra_runs
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.inserting import Insertion

Request = tuple[TextClause, dict[str, Any]]

RUN_COLUMNS = tuple(field.name for field in fields(RunRecord))
WORKER_COLUMNS = tuple(field.name for field in fields(WorkerRecord))
AUDIT_COLUMNS = tuple(field.name for field in fields(AuditRecord))

_CHANGE_COLUMNS = tuple(name for name in AUDIT_COLUMNS if name not in {"id", "time"})

LEASE_COLUMNS = ("key", "scheduled_time", "owner")
"""The columns that identify a record, which have a unique index."""

HOST_LENGTH = 255
LABEL_LENGTH = 255
REASON_LENGTH = 1000

_TEXTS = (
    ("label", LABEL_LENGTH),
    ("host", HOST_LENGTH),
    ("reason", REASON_LENGTH),
    ("error", None),
    ("result", None),
)
"""The texts of a record that can be of any origin, and the most characters of their columns."""


_NEAREST = 500
"""The most records before an instant among which a span is searched that contains the instant.

Between the first occurrence of a span and the instant there are records only if somebody has run
occurrences of the span after all.
"""
_DECISIONS = ", ".join(f"'{fate}'" for fate in sorted(DECISIONS))
_WHOLE = ", ".join(f"'{outcome}'" for outcome in sorted(WHOLE))
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
        self._type = dialect.exact.format("type")
        self._milliseconds = dialect.now_milliseconds
        lease = ", ".join(map(quote, LEASE_COLUMNS))
        self._ignore = dialect.ignore_duplicate.format(lease, quote("id"))
        self._runs, self._workers, self._audit = (
            quote(f"{table}_{each}") for each in ("runs", "workers", "audit")
        )
        self._run_columns = ", ".join(map(quote, RUN_COLUMNS))
        self._light_columns = ", ".join(
            "NULL" if name in _LARGE else quote(name) for name in RUN_COLUMNS
        )
        self._audit_columns = ", ".join(map(quote, AUDIT_COLUMNS))
        # Each of these statements reads no row, but fails if its table does not exist, or lacks a
        # column.
        self.checks = {
            f"{table}_{name}": text(f"SELECT {', '.join(map(quote, each))} FROM {of} WHERE 1 = 0")
            for name, of, each in (
                ("runs", self._runs, RUN_COLUMNS),
                ("workers", self._workers, WORKER_COLUMNS),
                ("audit", self._audit, AUDIT_COLUMNS),
            )
        }
        self._key, self._until = quote("key"), quote("until")
        self._of_key, self._newest_of_key = (
            part.format(self._key, ":key") for part in dialect.newest_of_key
        )
        self._of_each_key, self._newest_of_each_key = (
            part.format(self._key, ":key{0}") for part in dialect.newest_of_key
        )
        self._oldest_of_key = self._newest_of_key.replace(" DESC", "")
        # Each of these statements changes no row, and fails if the user does not have the right.
        self.rights = {
            f"{table}_{name}": {
                "SELECT": text(f"SELECT {column} FROM {quoted} WHERE 1 = 0"),
                "INSERT": text(
                    f"INSERT INTO {quoted} ({columns}) SELECT {columns} FROM {quoted} WHERE 1 = 0"
                ),
                "UPDATE": text(f"UPDATE {quoted} SET {column} = {column} WHERE 1 = 0"),
                "DELETE": text(f"DELETE FROM {quoted} WHERE 1 = 0"),
            }
            for name, quoted, column, columns in (
                ("runs", self._runs, "owner", self._run_columns),
                ("workers", self._workers, "nonce", ", ".join(map(quote, WORKER_COLUMNS))),
                ("audit", self._audit, "action", self._audit_columns),
            )
        }
        inserted = [name for name in RUN_COLUMNS if name != "id"]
        # The driver repeats this statement for each record. PyMySQL combines the repetitions into
        # one statement, and psycopg sends them together.
        self.insert_run = text(
            f"INSERT INTO {self._runs} ({', '.join(map(quote, inserted))})"
            f" VALUES ({', '.join(f':{name}' for name in inserted)}) {self._ignore}"
        )
        self._earlier = (
            f"SELECT {self._run_columns} FROM {self._runs}"
            f" WHERE {self._key} = :key AND scheduled_time <= :covering"
            " ORDER BY scheduled_time DESC LIMIT :nearest"
        )
        changes = dict.fromkeys(_CHANGE_COLUMNS, "TEXT")
        self._changes = Insertion(
            self._audit, changes, {"time": self._milliseconds}, dialect, quote
        )
        # With these statements, the store finds the first id since a time by bisection.
        # These are two queries, because SQLite would read all records for both in one.
        self.bounds = text(
            f"SELECT (SELECT MIN(id) FROM {self._runs}), (SELECT MAX(id) FROM {self._runs})"
        )
        self.next_ended = text(
            f"SELECT ended FROM {self._runs} WHERE id >= :id ORDER BY id LIMIT :limit"
        )
        self.oldest = text(f"SELECT id, ended FROM {self._runs} ORDER BY id LIMIT :limit")
        within = "WHERE id >= :first AND id <= :last"
        self.delete_range = text(f"DELETE FROM {self._runs} {within} AND ended < :before")
        self.nth_of_key = text(
            f"SELECT id FROM {self._runs} WHERE {self._key} = :key"
            " ORDER BY id DESC LIMIT 1 OFFSET :keep"
        )
        self.oldest_of_key = text(
            f"SELECT id FROM {self._runs} WHERE {self._of_key} ORDER BY {self._oldest_of_key}"
            " LIMIT 1 OFFSET :most"
        )
        self.delete_of_key = text(
            f"DELETE FROM {self._runs} WHERE {self._key} = :key AND id <= :last"
        )
        self.delete_lost = text(
            f"DELETE FROM {self._runs} WHERE {self._key} = :key"
            " AND scheduled_time = :scheduled_time AND owner = :owner AND outcome = 'lost'"
        )
        self.oldest_audits = text(f"SELECT id, time FROM {self._audit} ORDER BY id LIMIT :limit")
        self.delete_audits = text(
            f"DELETE FROM {self._audit} {within} AND {quote('time')} < :before"
        )
        self.delete_workers = text(f"DELETE FROM {self._workers} WHERE seen < :before")
        self.delete_worker = text(f"DELETE FROM {self._workers} WHERE nonce = :nonce")
        columns, integer = ", ".join(map(quote, WORKER_COLUMNS)), dialect.integer.format
        given = {name: f":{name}" for name in WORKER_COLUMNS} | {
            "started": f"COALESCE(NULLIF({integer(':started')}, 0), {self._now})",
            "seen": self._now,
            "ended": (
                f"CASE WHEN {integer(':ended')} = 0 THEN {self._now} ELSE {integer(':ended')} END"
            ),
        }
        self.insert_worker = text(
            f"INSERT INTO {self._workers} ({columns}) VALUES ({', '.join(given.values())})"
        )
        self.select_workers = text(
            f"SELECT {columns} FROM {self._workers} WHERE seen >= :since ORDER BY started, nonce"
        )
        self.select_worker = text(f"SELECT {columns} FROM {self._workers} WHERE nonce = :nonce")

    def select_runs(
        self,
        selection: RunSelection,
        *,
        first: int | None,
        before: int | None,
        limit: int,
        light: bool = False,
    ) -> Request:
        """A request that reads one page of records, the newest first."""
        if selection.key is not None and selection.with_extra_runs:
            return self._select_with_extra_runs(selection, first, before, limit)
        values: dict[str, Any] = {"limit": limit}
        conditions = []
        if first is not None:
            conditions.append("id >= :first")
            values["first"] = first
        if before is not None:
            conditions.append("id < :before")
            values["before"] = before
        if selection.key is not None:
            conditions.append(self._of_key)
            values["key"] = selection.key
        if selection.since is not None:
            conditions.append("ended >= :since")
            values["since"] = selection.since
        if selection.covering is not None:
            conditions.append(f"COALESCE({self._until}, scheduled_time) >= :covering")
            values |= {"covering": selection.covering, "nearest": _NEAREST}
        conditions += self._kinds(selection, values)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        source = self._runs if selection.covering is None else f"({self._earlier}) AS earlier"
        order = "id DESC" if selection.key is None else self._newest_of_key
        columns = self._light_columns if light else self._run_columns
        statement = f"SELECT {columns} FROM {source}{where} ORDER BY {order} LIMIT :limit"
        return _text(statement), values

    def _select_with_extra_runs(
        self, selection: RunSelection, first: int | None, before: int | None, limit: int
    ) -> Request:
        """A page of the records of a schedule and of its extra runs, see `select_runs`.

        The database reads the newest records of the schedule in the order of the index (key, id),
        and finds the newest records of its extra runs by reading the entries of all of them in this
        index. Their ids are written as sums, so that it does not walk through the primary key.
        """
        begin = prefix_of_extra_runs(selection.key or "")
        values: dict[str, Any] = {
            "limit": limit,
            "key": selection.key,
            "extra": begin,
            "after_extra": begin[:-1] + chr(ord(begin[-1]) + 1),
        }
        of_extra = f"{self._key} >= :extra AND {self._key} < :after_extra"
        kinds = [*self._kinds(selection, values)]
        if selection.since is not None:
            kinds.append("ended >= :since")
            values["since"] = selection.since
        arms = list[str]()
        for condition, column, order in (
            (self._of_key, "id", self._newest_of_key),
            (of_extra, "id + 0", "id + 0 DESC"),
        ):
            conditions = [condition, *kinds]
            for name, bound, operator in ("first", first, ">="), ("before", before, "<"):
                if bound is not None:
                    conditions.append(f"{column} {operator} :{name}")
                    values[name] = bound
            arms.append(
                f"SELECT newest FROM (SELECT id AS newest FROM {self._runs}"
                f" WHERE {' AND '.join(conditions)} ORDER BY {order} LIMIT :limit)"
                f" AS part{len(arms)}"
            )
        return _text(
            f"SELECT {self._run_columns} FROM ({' UNION ALL '.join(arms)}) AS parts"
            f" JOIN {self._runs} ON id = newest ORDER BY id DESC LIMIT :limit"
        ), values

    def _kinds(self, selection: RunSelection, values: dict[str, Any]) -> Iterator[str]:
        """The conditions on the types, outcomes and fates of records; their values are added."""
        if selection.types:
            yield _one_of(self._type, "type", selection.types, values)
        how = []
        if selection.outcomes:
            how.append(_one_of("outcome", "outcome", selection.outcomes, values))
        if selection.fates:
            how.append(_one_of("fate", "fate", selection.fates, values))
        if how:
            yield f"({' OR '.join(how)})"

    def select_last_runs(self, keys: Sequence[str]) -> Request:
        """A request that reads the newest record of each key that `RunRecord.is_end`.

        It does not read large columns. For each key, the database walks down the index (key, id) to
        the first such record.
        """
        each = (
            f"SELECT newest FROM (SELECT id AS newest FROM {self._runs}"
            f" WHERE {self._of_each_key}"
            f" AND (outcome IS NOT NULL OR (fate IN ({_DECISIONS}) AND {self._until} IS NULL))"
            f" ORDER BY {self._newest_of_each_key} LIMIT 1) AS last{{0}}"
        )
        # It is a join, because MariaDB would run the parts of id IN (…) anew for each record.
        parts = (
            f"SELECT {self._light_columns} FROM (",
            each,
            f") AS lasts JOIN {self._runs} ON id = newest",
        )
        values = {f"key{i}": key for i, key in enumerate(keys)}
        return _many(parts, len(keys), " UNION ALL "), values

    def select_durations(self, keys: Sequence[str], most: int) -> Request:
        """A request that reads key, number and duration of the newest whole runs of each key."""
        each = (
            f"SELECT {self._key}, id, took FROM (SELECT {self._key}, id, ended - started AS took"
            f" FROM {self._runs} WHERE {self._of_each_key} AND outcome IN ({_WHOLE})"
            f" AND started IS NOT NULL ORDER BY {self._newest_of_each_key} LIMIT :most) AS of{{0}}"
        )
        values = {f"key{i}": key for i, key in enumerate(keys)}
        return _many(("", each, ""), len(keys), " UNION ALL "), {**values, "most": most}

    def insert_audits(self, connection: Connection, changes: Sequence[AuditRecord]) -> None:
        """Insert changes, all or none; there must be one."""
        self._changes.send(connection, [*map(_AUDIT_VALUES, changes)])

    def select_audits(self, selection: AuditSelection, before: int | None, limit: int) -> Request:
        """A request that reads one page of changes, the newest first, with ids below ``before``."""
        values: dict[str, Any] = {"limit": limit}
        conditions = []
        for condition, name, value in (
            ("id < :before", "before", before),
            (self._of_key, "key", selection.key),
            ("time >= :since", "since", selection.since),
        ):
            if value is not None:
                conditions.append(condition)
                values[name] = value
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        order = "id DESC" if selection.key is None else self._newest_of_key
        statement = (
            f"SELECT {self._audit_columns} FROM {self._audit}{where} ORDER BY {order} LIMIT :limit"
        )
        return _text(statement), values


_RUN_VALUES = attrgetter(*RUN_COLUMNS[:-1])
_AUDIT_VALUES = attrgetter(*_CHANGE_COLUMNS)


def run_values(record: RunRecord) -> dict[str, Any]:
    """The values that `HistoryStatements.insert_run` binds."""
    values = dict(zip(RUN_COLUMNS, _RUN_VALUES(record), strict=False))
    values["out_of_memory"] = int(record.out_of_memory)
    for name, most in _TEXTS:
        if (written := values[name]) is not None:
            values[name] = storable(written[:most])
    return values


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


def _one_of(column: str, name: str, chosen: frozenset[str], values: dict[str, Any]) -> str:
    names = [f"{name}{i}" for i in range(len(chosen))]
    values.update(zip(names, sorted(chosen), strict=True))
    return f"{column} IN ({', '.join(f':{name}' for name in names)})"


@lru_cache(maxsize=64)
def _many(parts: tuple[str, str, str], count: int, separator: str = ", ") -> TextClause:
    head, values, tail = parts
    return text(head + separator.join(values.format(i) for i in range(count)) + tail)


@lru_cache(maxsize=64)
def _text(statement: str) -> TextClause:
    return text(statement)

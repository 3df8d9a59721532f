"""The statements of the SQL stores, as SQL.

Written out as text for two reasons: a reader sees what the database sees, and a batch of n
rows costs a dictionary lookup instead of building and hashing an expression tree of 10 n
nodes. Nothing but the table's name, which the configuration restricts to a plain identifier,
and the dialect's own fragments is ever interpolated; values are bound.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import TextClause, text

from psched.core.model import MARKS, Row, Settlement, Token
from psched.stores.sql.claim_statements import (
    AS_SEEN,
    Taking,
    any_of,
    columns_of,
    each_of,
    lease_end,
    one_of,
)
from psched.stores.sql.dialects import Dialect


class Statements(Taking):
    """Every statement psched sends about one table.

    Args:
        table: the table's name, quoted as the database wants it.
        dialect: the database's ways.
    """

    def __init__(self, table: str, dialect: Dialect, only: Sequence[str] = ()) -> None:
        super().__init__(table, dialect, only)
        now, integer = dialect.now_floor, dialect.integer.format
        columns = columns_of(dialect)
        self.now = text(f"SELECT {dialect.now}")
        self.get = text(f"SELECT {columns} FROM {table} WHERE id = :id")
        self._look = f"SELECT {columns} FROM {table} WHERE "
        marks = ", ".join(f"'{mark}'" for mark in MARKS)
        self._marked = f"SELECT id, status FROM {table} WHERE status IN ({marks}) AND "
        self.purgeable = text(
            f"SELECT id FROM {table} WHERE retain_until <= {now} AND {_AT_REST}"
            " ORDER BY retain_until LIMIT :limit"
        )
        self._purge = f"DELETE FROM {table} WHERE retain_until + 0 <= {now} AND {_AT_REST} AND "
        self._list(table, columns, dialect)
        # Change nothing, but need the right to.
        self.attempts = {
            "SELECT": text(f"SELECT id FROM {table} WHERE 1 = 0"),
            "INSERT": text(f"INSERT INTO {table} (id) SELECT id FROM {table} WHERE 1 = 0"),
            "UPDATE": text(f"UPDATE {table} SET version = version WHERE 1 = 0"),
            "DELETE": text(f"DELETE FROM {table} WHERE 1 = 0"),
        }
        self.held = text(
            f"SELECT {columns} FROM {table} WHERE owner = :owner AND next_run_time > {now}"
        )
        self.replace = text(
            f"UPDATE {table} SET type = :type, data = :data, cron = :cron, timezone = :timezone,"
            " delay = :delay, next_time = :next_time, status = :status, reason = :reason,"
            " attempt = :attempt, alive_time = :alive_time, options = :options,"
            " created_at = COALESCE(:created_at, created_at), retain_until = :retain_until,"
            " next_run_time = CASE WHEN owner IS NULL THEN :next_run_time ELSE next_run_time END,"
            " version = version + 1"
            " WHERE id = :id AND version = :seen_version AND fence = :seen_fence"
            " AND status = COALESCE(:seen_status, status)"
            " AND COALESCE(owner, '') = :seen_owner"
            # A lease's end may have moved meanwhile; a free row's due time may not.
            " AND (owner IS NOT NULL OR COALESCE(next_run_time, -1) = :seen_next_run_time)"
        )
        self.set_aside = text(
            f"UPDATE {table} SET status = 'quarantined', reason = :reason, next_run_time = NULL,"
            f" owner = NULL WHERE {AS_SEEN}"
        )
        # Where leases may seem to have ended because somebody has set the clock.
        over = ":over" if dialect.host_clock else now
        self.delete = text(
            f"DELETE FROM {table} WHERE id = :id"
            f" AND (owner IS NULL OR next_run_time IS NULL OR next_run_time <= {over})"
        )
        self.mark_deleting = text(
            f"UPDATE {table} SET status = 'deleting', version = version + 1"
            " WHERE id = :id AND owner IS NOT NULL AND status <> 'deleting'"
        )
        hexadecimal = dialect.hex.format("id")
        self.due_keys = text(f"SELECT {hexadecimal} FROM {table} WHERE next_run_time <= {now}")
        self.set_aside_by_hex = text(
            f"UPDATE {table} SET status = 'quarantined', reason = :reason, next_run_time = NULL,"
            f" owner = NULL WHERE {hexadecimal} = :hex AND next_run_time <= {now}"
        )
        self.update_data = text(
            f"UPDATE {table} SET data = :data, version = version + 1"
            " WHERE id = :id AND owner = :owner AND fence = :fence"
        )
        self.dead = text(
            f"SELECT {columns} FROM {table} WHERE owner > :dot AND owner < :after_dot"
            # Plus nothing: not to be looked for through the index of times, which has many more.
            f" AND next_run_time + 0 > {now} AND next_run_time + 0 <= {now} + :alive_time + 1"
        )
        self._insert = (
            f"INSERT INTO {table} (id, type, data, cron, timezone, delay, next_time,"
            " next_run_time, settled_by, alive_time, options, created_at) VALUES "
        )
        self._inserted = (
            "(:id{0}, :type{0}, :data{0}, :cron{0}, :timezone{0}, :delay{0}, :next_time{0},"
            f" :next_run_time{{0}}, :nonce, :alive_time{{0}}, :options{{0}}, {now})"
        )
        self._extend = f"UPDATE {table} SET next_run_time = {lease_end(dialect)} WHERE "
        # Who inserted it by plain SQL need not have said when.
        self._settle = (
            f"UPDATE {table} SET owner = NULL, created_at = COALESCE(created_at, {now}), "
        )
        not_before, wait = integer(":not_before{not_before}"), integer(":wait{wait}")
        next_run_time = (
            f"CASE WHEN {not_before} > {now} + {wait} THEN {not_before} ELSE {now} + {wait} END"
        )
        self._settled = (
            ("next_time", integer(":next_time{next_time}")),
            ("attempt", integer(":attempt{attempt}")),
            ("status", ":status{status}"),
            ("reason", ":reason{reason}"),
            ("settled_by", ":settled_by{settled_by}"),
            ("retain_until", f"{now} + {integer(':retain{retain}')}"),
            # NULL for a row at rest: both bounds are NULL then, and so is the ELSE branch.
            ("next_run_time", next_run_time),
        )
        self._remove = f"DELETE FROM {table} WHERE "

    def _list(self, table: str, columns: str, dialect: Dialect) -> None:
        # Every row, page by page, each through an index; see `psched.stores.sql.listing`.
        place = f"{dialect.payload.format('id')}, next_run_time"
        page = f"SELECT {place}, {columns} FROM {table} WHERE "
        in_time = "ORDER BY next_run_time, id LIMIT :limit"
        at_rest = f"ORDER BY {dialect.rest_order} LIMIT :limit"
        key = dialect.text.format(":id")
        self.first_timed = text(f"{page} next_run_time IS NOT NULL {in_time}")
        self.timed = text(
            f"{page} {dialect.after.format('next_run_time', 'id', ':time', key)} {in_time}"
        )
        self.first_resting = text(f"{page} next_run_time IS NULL {at_rest}")
        self.resting = text(f"{page} next_run_time IS NULL AND id > {key} {at_rest}")

    def look(self, keys: Sequence[str]) -> tuple[TextClause, dict[str, Any]]:
        """Read rows by their keys."""
        return _of_ids(self._look, keys)

    def marked(self, keys: Sequence[str]) -> tuple[TextClause, dict[str, Any]]:
        """Those of the rows that are marked."""
        return _of_ids(self._marked, keys)

    def purge(self, keys: Sequence[str]) -> tuple[TextClause, dict[str, Any]]:
        """Delete those of the rows that need not be kept any longer."""
        return _of_ids(self._purge, keys)

    def insert(self, rows: Sequence[Row], nonce: str) -> tuple[TextClause, dict[str, Any]]:
        """Insert new rows, all or none."""
        values: dict[str, Any] = {"nonce": nonce}
        for i, row in enumerate(rows):
            values |= {
                f"id{i}": row.key,
                f"type{i}": row.type,
                f"data{i}": row.data,
                f"cron{i}": row.cron,
                f"timezone{i}": row.timezone,
                f"delay{i}": row.delay,
                f"next_time{i}": row.next_time,
                f"next_run_time{i}": row.next_run_time,
                f"alive_time{i}": row.alive_time,
                f"options{i}": row.options,
            }
        return _values(self._insert, self._inserted, len(rows)), values

    def extend(self, leases: Mapping[str, Token]) -> tuple[TextClause, dict[str, Any]]:
        """Move the end of the leases that are still held."""
        values: dict[str, Any] = {}
        for i, (key, token) in enumerate(leases.items()):
            values |= {f"id{i}": key, f"owner{i}": token.owner, f"fence{i}": token.fence}
        return each_of(self._extend, _HELD, len(leases)), values

    def settle(self, ends: Sequence[Settlement]) -> tuple[TextClause, dict[str, Any]]:
        """End leases that are still held, of rows that are still as defined."""
        given = {name: [value(end) for end in ends] for name, value in _DECIDED.items()}
        # Most of it is the same for all.
        same = frozenset(name for name, each in given.items() if each.count(each[0]) == len(each))
        values = _held(ends)
        for name, each in given.items():
            values |= {f"{name}{i}": v for i, v in enumerate(each[:1] if name in same else each)}
        return _settle_text(self._settle, self._settled, len(ends), same), values

    def remove(self, ends: Sequence[Settlement]) -> tuple[TextClause, dict[str, Any]]:
        """Delete rows whose lease is still held."""
        return each_of(self._remove, _HELD_AS_DEFINED, len(ends)), _held(ends)


# Plain SQL that has put a row back to work need not know of ``retain_until``. Plus nothing: not to
# be looked for through the index of times.
_AT_REST = "next_run_time + 0 IS NULL"

_HELD = "owner = :owner{0} AND fence = :fence{0}"
# Plain SQL that sets a status need not raise the version.
_HELD_AS_DEFINED = (
    _HELD + " AND version = :version{0} AND status = COALESCE(:seen_status{0}, status)"
)


_REPLACED = (
    "type", "data", "cron", "timezone", "delay", "next_time", "next_run_time", "status", "reason",
    "attempt", "alive_time", "options", "created_at", "retain_until",
)  # fmt: skip


def replaced(seen: Row, new: Row) -> dict[str, Any]:
    """The values of `Statements.replace`."""
    return {
        **{name: getattr(new, name) for name in _REPLACED},
        "id": new.key,
        "seen_version": seen.version,
        "seen_fence": seen.fence,
        "seen_owner": seen.owner or "",
        "seen_status": seen.known_status,
        "seen_next_run_time": -1 if seen.next_run_time is None else seen.next_run_time,
    }


_DECIDED: Mapping[str, Callable[[Settlement], object]] = {
    "settled_by": lambda end: str(end.token),
    "next_time": lambda end: end.next_time,
    "not_before": lambda end: None if end.rest else end.not_before or 0,
    # The store's clock is read to the second that has begun.
    "wait": lambda end: None if end.rest else end.wait + 1 if end.wait else 0,
    "attempt": lambda end: end.attempt,
    "retain": lambda end: end.retain,
    "status": lambda end: end.status,
    "reason": lambda end: end.reason,
}
"""What a settlement writes, by the names of the values in `Statements.settle`."""


def _held(ends: Sequence[Settlement]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for i, end in enumerate(ends):
        values |= {
            f"id{i}": end.key,
            f"owner{i}": end.token.owner,
            f"fence{i}": end.token.fence,
            f"version{i}": end.version,
            f"seen_status{i}": end.seen_status,
        }
    return values


def _of_ids(head: str, keys: Sequence[str]) -> tuple[TextClause, dict[str, Any]]:
    values = {f"id{i}": key for i, key in enumerate(keys)}
    return _listed(head, len(keys)), values


@lru_cache(maxsize=64)
def _listed(head: str, count: int) -> TextClause:
    return text(head + one_of(count))


@lru_cache(maxsize=64)
def _values(head: str, each: str, count: int) -> TextClause:
    """A statement that ends in a list of ``count`` numbered rows."""
    return text(head + ", ".join(each.format(i) for i in range(count)))


@lru_cache(maxsize=64)  # of 200 rows, one takes 0.8 MB
def _settle_text(
    head: str, settled: tuple[tuple[str, str], ...], count: int, same: frozenset[str]
) -> TextClause:
    """End leases of ``count`` numbered rows, whose values of these names are the same."""
    numbers = [{name: 0 if name in same else i for name in _DECIDED} for i in range(count)]

    def each(value: str) -> str:
        given = [value.format_map(number) for number in numbers]
        if given.count(given[0]) == count:
            return given[0]
        return f"CASE id {' '.join(f'WHEN :id{i} THEN {v}' for i, v in enumerate(given))} END"

    assignments = ", ".join(f"{name} = {each(value)}" for name, value in settled)
    return text(f"{head}{assignments} WHERE {any_of(_HELD_AS_DEFINED, count)}")

"""The SQL statements on PerfectSched's table.

Only the table's name and the dialect's fragments are inserted into the SQL text; the configuration
restricts the name to a plain identifier. All other values are bound.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import TextClause, bindparam, text

from psched.contrib.perfectsched.store.rows import NEVER, StoredRow
from psched.stores.sql.connector import Connector
from psched.stores.sql.dialects import Dialect

COLUMNS = StoredRow._fields


class Statements:
    """All SQL statements that psched sends to one of PerfectSched's tables.

    Args:
        table: the table's name, quoted for the database.
        dialect: the SQL of the database.
    """

    def __init__(self, table: str, dialect: Dialect) -> None:
        data = dialect.payload.format("data")
        columns = ", ".join(data if name == "data" else name for name in COLUMNS)
        read = f"SELECT {dialect.now}, {columns} FROM {table} WHERE "
        defined = (
            f"cron = :cron AND delay = :delay AND {data} = :data"
            " AND COALESCE(timezone, '') = :timezone"
        )
        held = "id = :id AND next_time = :next_time AND timeout = :timeout"

        self.now = text(f"SELECT {dialect.now}")
        # This statement reads no row, but fails if the table does not exist, or lacks a column.
        self.check = text(f"SELECT {columns} FROM {table} WHERE 1 = 0")
        self.count = text(f"SELECT COUNT(*) FROM {table}")
        self.rows = text(f"{read} id IN :ids").bindparams(bindparam("ids", expanding=True))
        # If the store uses this host's clock, and the clock was set forward, a running lease can
        # seem to have ended. So for the length of a lease after the clock was set, only rows that
        # were never leased are claimed.
        claimable = (
            " AND (timeout = next_time + delay OR :length < :even)" if dialect.host_clock else ""
        )
        self.due = text(
            f"SELECT {dialect.now}, {dialect.read_only}, {columns} FROM {table}"
            f" WHERE timeout <= {dialect.now_floor} + :horizon AND timeout < {NEVER}{claimable}"
            " ORDER BY timeout LIMIT :limit"
        )
        # Rows that may be leased are not counted if the store's clock is the host's, as above.
        free = " AND timeout = next_time + delay" if dialect.host_clock else ""
        self.backlog = text(
            f"SELECT timeout, {dialect.now} FROM {table}"
            f" WHERE timeout <= {dialect.now_floor} AND timeout < {NEVER}{free}"
            " ORDER BY timeout LIMIT :limit"
        )
        # `first` and `following` read all rows, page by page; see `psched.stores.sql.listing`.
        place = f"{dialect.payload.format('id')}, timeout"
        page = f"SELECT {place}, {dialect.now}, {columns} FROM {table} WHERE"
        in_time = "ORDER BY timeout, id LIMIT :limit"
        beyond = dialect.after.format("timeout", "id", ":time", dialect.text.format(":id"))
        self.first = text(f"{page} 1 = 1 {in_time}")
        self.following = text(f"{page} {beyond} {in_time}")
        self.first_by_key = text(f"{page} 1 = 1 ORDER BY id LIMIT :limit")
        after_key = f"id > {dialect.text.format(':id')}"
        self.following_by_key = text(f"{page} {after_key} ORDER BY id LIMIT :limit")
        self.rights: Mapping[str, TextClause] = {
            "SELECT": self.check,
            "INSERT": text(
                f"INSERT INTO {table} ({', '.join(COLUMNS)})"
                f" SELECT {', '.join(COLUMNS)} FROM {table} WHERE 1 = 0"
            ),
            "UPDATE": text(f"UPDATE {table} SET timeout = timeout WHERE 1 = 0"),
            "DELETE": text(f"DELETE FROM {table} WHERE 1 = 0"),
        }
        self.claim = text(f"UPDATE {table} SET timeout = :until WHERE {held}")
        self.settle = text(
            f"UPDATE {table} SET timeout = :until, next_time = :following"
            f" WHERE {held} AND {defined}"
        )
        self.remove = text(f"DELETE FROM {table} WHERE {held} AND {defined}")
        self.update_data = text(
            f"UPDATE {table} SET data = :new_data WHERE {held} AND {data} = :data"
        )
        definition = (
            f"UPDATE {table} SET cron = :new_cron, delay = :new_delay, data = :new_data,"
            " timezone = :new_timezone"
        )
        self.redefine = text(
            f"{definition} WHERE id = :id AND next_time = :next_time AND {defined}"
        )
        self.replace = text(
            f"{definition}, next_time = :new_next_time, timeout = :new_timeout"
            f" WHERE {held} AND {defined}"
        )
        self.delete = text(f"DELETE FROM {table} WHERE id = :id")
        self._extend = f"UPDATE {table} SET timeout = :until WHERE "
        self._held = "(id = :id{0} AND next_time = :next_time{0} AND timeout = :timeout{0})"
        self._insert = f"INSERT INTO {table} ({', '.join(COLUMNS)}) VALUES "

    def extend(
        self, leases: Sequence[tuple[str, object, int]], until: int
    ) -> tuple[TextClause, dict[str, Any]]:
        """The statement that writes a new end of leases, and the statement's values."""
        values: dict[str, Any] = {"until": until}
        for i, (key, next_time, timeout) in enumerate(leases):
            values |= {f"id{i}": key, f"next_time{i}": next_time, f"timeout{i}": timeout}
        where = " OR ".join(self._held.format(i) for i in range(len(leases)))
        return text(self._extend + where), values

    def insert(self, rows: Sequence[StoredRow]) -> tuple[TextClause, dict[str, Any]]:
        """The statement that inserts all of the rows or none, and the statement's values."""
        values = {f"{n}{i}": v for i, row in enumerate(rows) for n, v in row._asdict().items()}
        each = (", ".join(f":{name}{i}" for name in COLUMNS) for i in range(len(rows)))
        return text(self._insert + ", ".join(f"({row})" for row in each)), values


def read_rows(
    connector: Connector, sql: Statements, keys: Sequence[str]
) -> tuple[float, Mapping[str, StoredRow]]:
    """Read the store's clock, and the rows with these keys, by key; the time is 0 without rows."""
    found = connector.read(lambda c: c.execute(sql.rows, {"ids": [*keys]}).all()) if keys else []
    now = float(found[0][0]) if found else 0.0
    wanted, rows = {*keys}, (StoredRow(*columns[1:]) for columns in found)
    # Rows with other keys are left out: the database's collation may treat other keys as equal.
    return now, {row.id: row for row in rows if row.id in wanted}


def as_seen(row: StoredRow) -> dict[str, Any]:
    """The values for an SQL condition that is true if a row has not changed since it was read."""
    return {**row._asdict(), "timezone": row.timezone or ""}


def as_new(row: StoredRow) -> dict[str, Any]:
    """The values, named ``new_…``, for a statement by which this row replaces an existing row."""
    return {f"new_{name}": value for name, value in row._asdict().items()}

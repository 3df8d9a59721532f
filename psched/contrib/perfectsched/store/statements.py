"""The statements about PerfectSched's table, as SQL.

Nothing but the table's name, which the configuration restricts to a plain identifier, and the
dialect's own fragments is interpolated; values are bound.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import TextClause, bindparam, text

from psched.contrib.perfectsched.store.rows import NEVER, Stored
from psched.stores.sql.dialects import Dialect

COLUMNS = Stored._fields


class Statements:
    """Every statement that is sent about one table.

    Args:
        table: the table's name, quoted as the database wants it.
        dialect: the database's ways.
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
        # Fails if the table is not there, or lacks a column.
        self.check = text(f"SELECT {columns} FROM {table} WHERE 1 = 0")
        self.look = text(f"{read} id IN :ids").bindparams(bindparam("ids", expanding=True))
        # Where leases may seem to have ended because somebody has set the clock.
        takeable = (
            " AND (timeout = next_time + delay OR :length < :even)" if dialect.host_clock else ""
        )
        self.due = text(
            f"SELECT {dialect.now}, {dialect.read_only}, {columns} FROM {table}"
            f" WHERE timeout <= {dialect.now_floor} + :horizon AND timeout < {NEVER}{takeable}"
            " ORDER BY timeout LIMIT :limit"
        )
        # Every row, page by page; see `psched.stores.sql.listing`.
        place = f"{dialect.payload.format('id')}, timeout"
        page = f"SELECT {place}, {dialect.now}, {columns} FROM {table} WHERE"
        in_time = "ORDER BY timeout, id LIMIT :limit"
        beyond = dialect.after.format("timeout", "id", ":time", dialect.text.format(":id"))
        self.first = text(f"{page} 1 = 1 {in_time}")
        self.following = text(f"{page} {beyond} {in_time}")
        self.rights = {
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
        """Move the end of leases.

        Args:
            leases: their keys, their occurrences, and the ends that are known.
            until: their new end.
        """
        values: dict[str, Any] = {"until": until}
        for i, (key, next_time, timeout) in enumerate(leases):
            values |= {f"id{i}": key, f"next_time{i}": next_time, f"timeout{i}": timeout}
        where = " OR ".join(self._held.format(i) for i in range(len(leases)))
        return text(self._extend + where), values

    def insert(self, rows: Sequence[Stored]) -> tuple[TextClause, dict[str, Any]]:
        """Insert new rows, all or none."""
        values = {f"{n}{i}": v for i, row in enumerate(rows) for n, v in row._asdict().items()}
        each = (", ".join(f":{name}{i}" for name in COLUMNS) for i in range(len(rows)))
        return text(self._insert + ", ".join(f"({row})" for row in each)), values


def as_seen(row: Stored) -> dict[str, Any]:
    """The values by which a row is known to be as it was read."""
    return {**row._asdict(), "timezone": row.timezone or ""}


def as_new(row: Stored) -> dict[str, Any]:
    """The values that a row is to have."""
    return {f"new_{name}": value for name, value in row._asdict().items()}

"""The statements about the table of output, as SQL text."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

from sqlalchemy import TextClause, text

from psched.base.compression import compress, readable
from psched.core.output.protocol import OutputSelection
from psched.core.output.records import OutputRecord, RunningAttempt
from psched.stores.sql.dialects import Dialect

Request = tuple[TextClause, dict[str, Any]]

COLUMNS = tuple(field.name for field in fields(OutputRecord))

_OTHERS = ("is_gzip", "size", "total", "asked")
"""The columns that are no fields of a record."""

_PLAIN = 1000
"""Output of at most so many bytes is not compressed, so that plain SQL can read it."""

_RECORD = 200
"""About the bytes that a record takes besides its output and its key."""

_ATTEMPT = ("key", "scheduled_time", "owner")
"""The columns that identify an attempt, which have a unique index."""


class OutputStatements:
    """Every statement that psched sends about the table of output.

    Args:
        table: the name of the table of schedules, which contains no character to be quoted.
        dialect: contains the SQL fragments that differ between databases.
        quote: quotes an identifier.
    """

    def __init__(self, table: str, dialect: Dialect, quote: Callable[[str], str]) -> None:
        self.name = f"{table}_output"
        self._table = quote(self.name)
        self._key = quote("key")
        self._of_key, self._newest_of_key = (
            part.format(self._key, ":key") for part in dialect.newest_of_key
        )
        read = [*COLUMNS, "is_gzip"]
        self._columns = ", ".join(map(quote, read))
        every = ", ".join(map(quote, [*COLUMNS, *_OTHERS]))
        # This statement reads no row, but fails if the table does not exist, or lacks a column.
        self.check = text(f"SELECT {every} FROM {self._table} WHERE 1 = 0")
        # Each of these statements changes no row, and fails if the user does not have the right.
        self.rights = {
            "SELECT": self.check,
            "INSERT": text(
                f"INSERT INTO {self._table} ({every}) SELECT {every} FROM {self._table} WHERE 1 = 0"
            ),
            "UPDATE": text(f"UPDATE {self._table} SET total = total WHERE 1 = 0"),
            "DELETE": text(f"DELETE FROM {self._table} WHERE 1 = 0"),
        }
        inserted = [name for name in read if name != "id"] + ["size"]
        attempt = ", ".join(map(quote, _ATTEMPT))
        # A row that exists already is left alone: this request is repeated while the server still
        # works on the first one, or a reader has just asked for the output.
        ignore = dialect.ignore_duplicate.format(attempt, quote("id"))
        self.insert = text(
            f"INSERT INTO {self._table} ({', '.join(map(quote, inserted))})"
            f" VALUES ({', '.join(f':{name}' for name in inserted)}) {ignore}"
        )
        condition = " AND ".join(f"{quote(name)} = :{name}{{0}}" for name in _ATTEMPT)
        lease = condition.format("")
        running = f"{lease} AND is_live = 1"
        self.of_attempt = text(
            f"SELECT {self._columns} FROM {self._table} WHERE {lease} AND output IS NOT NULL"
        )
        self.until = text(f"SELECT asked FROM {self._table} WHERE {running}")
        self.ask_again = text(
            f"UPDATE {self._table} SET asked = :until WHERE {running} AND asked < :until"
        )
        self.ask = text(
            f"INSERT INTO {self._table} ({attempt}, attempt, ended, is_live, asked)"
            f" VALUES ({', '.join(f':{name}' for name in _ATTEMPT)}, :attempt, :now, 1, :until)"
            f" {ignore}"
        )
        self._asked = (
            "",
            f"SELECT {{0}} FROM {self._table} WHERE {condition} AND is_live = 1 AND asked > :now",
            "",
        )
        self.write_live = text(
            f"UPDATE {self._table} SET output = :output, is_gzip = :is_gzip, dropped = :dropped,"
            f" ended = :ended WHERE {running}"
        )
        self._find = ("", f"SELECT id FROM {self._table} WHERE {condition}", "")
        self._find_live = (
            "",
            f"SELECT id FROM {self._table} WHERE {condition} AND is_live = 1",
            "",
        )
        self._delete = (f"DELETE FROM {self._table} WHERE id IN (", ":id{0}", ")")
        self.oldest = text(f"SELECT id, ended, size FROM {self._table} ORDER BY id LIMIT :limit")
        self.delete_range = text(
            f"DELETE FROM {self._table} WHERE id >= :first AND id <= :last"
            " AND (id <= :until OR ended < :before)"
        )
        # The index of totals contains all that these statements need. So none of them reads output.
        marked = f"SELECT id, total, size FROM {self._table} WHERE total >= 0 ORDER BY total"
        self.first_mark = text(f"{marked}, id LIMIT 1")
        self.last_mark = text(f"{marked} DESC, id DESC LIMIT 1")
        unmarked = f"FROM {self._table} WHERE total = -1 AND id"
        self.size_before = text(f"SELECT COALESCE(SUM(size), 0) {unmarked} < :id")
        self.sizes_after = text(f"SELECT id, size {unmarked} > :id ORDER BY id LIMIT :limit")
        self.mark = text(f"UPDATE {self._table} SET total = :total WHERE id = :id")

    def find(self, records: Sequence[OutputRecord]) -> Request:
        """A request for the ids of the records that the table has of the same attempts."""
        return _many(self._find, len(records), " UNION ALL "), _attempts(records)

    def find_live(self, records: Sequence[OutputRecord]) -> Request:
        """A request for the ids of those of these records that are of running attempts."""
        return _many(self._find_live, len(records), " UNION ALL "), _attempts(records)

    def asked(self, attempts: Sequence[RunningAttempt], now: int) -> Request:
        """A request for the places, in this sequence, of those whose output is read now."""
        values = {**_attempts(attempts), "now": now}
        return _many(self._asked, len(attempts), " UNION ALL "), values

    def delete(self, ids: Sequence[int]) -> Request:
        """A request that deletes records."""
        return _many(self._delete, len(ids)), {f"id{i}": id_ for i, id_ in enumerate(ids)}

    def select(self, selection: OutputSelection, *, before: int | None, limit: int) -> Request:
        """A request that reads one page of records, the newest first, with ids below ``before``."""
        values: dict[str, Any] = {"key": selection.key, "limit": limit}
        conditions, order = [self._of_key], self._newest_of_key
        if selection.scheduled_time is not None:
            # There are few of these, so they are sorted: the sum keeps the planner from reading
            # all records of the key in the order of the index of keys.
            conditions, order = [f"{self._key} = :key"], "id + 0 DESC"
        # A running attempt has perhaps printed nothing, or its worker has not answered.
        conditions.append("(is_live = 0 OR LENGTH(output) > 0)")
        for condition, name, value in (
            ("scheduled_time = :scheduled_time", "scheduled_time", selection.scheduled_time),
            ("attempt = :attempt", "attempt", selection.attempt),
            ("id < :before", "before", before),
        ):
            if value is not None:
                conditions.append(condition)
                values[name] = value
        return _text(
            f"SELECT {self._columns} FROM {self._table} WHERE {' AND '.join(conditions)}"
            f" ORDER BY {order} LIMIT :limit"
        ), values


def of_attempts(records: Sequence[OutputRecord]) -> list[OutputRecord]:
    """The last record of each attempt, in order."""
    last = {tuple(getattr(record, name) for name in _ATTEMPT): record for record in records}
    return [*last.values()]


def _attempts(those: Sequence[OutputRecord | RunningAttempt]) -> dict[str, Any]:
    """The values by which a statement finds attempts, each name with a number."""
    return {f"{name}{i}": getattr(each, name) for i, each in enumerate(those) for name in _ATTEMPT}


def stored(record: OutputRecord) -> dict[str, Any]:
    """The values that `OutputStatements.insert` binds."""
    values = {name: getattr(record, name) for name in COLUMNS if name != "id"}
    output = compress(record.output, above=_PLAIN, form=bytes)
    values["output"] = output
    values["is_gzip"] = int(output is not record.output)
    values["is_live"] = int(record.is_live)
    # The output so far is soon replaced. So it does not count; see `OutputStore.trim_output`.
    values["size"] = 0 if record.is_live else len(output) + len(record.key) + _RECORD
    return values


def as_record(columns: Sequence[Any]) -> OutputRecord:
    """The record in the columns that a statement of `OutputStatements.select` has read."""
    *given, is_gzip = columns
    values = dict(zip(COLUMNS, given, strict=True))
    output = readable(values["output"]) if is_gzip else values["output"]
    return OutputRecord(**{**values, "output": output or b"", "is_live": bool(values["is_live"])})


@lru_cache(maxsize=64)
def _many(parts: tuple[str, str, str], count: int, separator: str = ", ") -> TextClause:
    head, values, tail = parts
    return text(head + separator.join(values.format(i) for i in range(count)) + tail)


@lru_cache(maxsize=64)
def _text(statement: str) -> TextClause:
    return text(statement)

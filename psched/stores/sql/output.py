"""What attempts have printed, in a table beside the table of schedules."""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import Connection, text
from typing_extensions import override

from psched.base.compression import compress, readable
from psched.core.output import KeepsOutput, OutputRecord, OutputSelection, RunningAttempt
from psched.stores.pages import batched
from psched.stores.sql import raw_execute
from psched.stores.sql.conditions import Request
from psched.stores.sql.connector import Connector, one_request
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.side_tables import SideStore, SideTable, Where, pages

COLUMNS = tuple(field.name for field in fields(OutputRecord))

_OTHERS = ("size", "total", "asked")
"""The columns that are neither fields of a record nor needed to read one."""

_PLAIN = 1000
"""Output of at most so many bytes is not compressed, so that plain SQL can read it."""

_RECORD = 200
"""About the bytes that a record takes besides its output and its key."""

_ATTEMPT = ("key", "scheduled_time", "owner")
"""The columns that identify an attempt, which have a unique index."""

_PAGE = 20
"""The most records that one query returns: few, because they can be large."""

_BATCH = 100
"""The most records that are written at a time, and the most attempts that one query looks for."""

_MARKED = 2000
"""Every so many records, one gets a total."""

_MARGIN = 100
"""The newest records get none, because the record of a slower transaction can still come between
them."""

_MOST_MARKS = 10
"""The most records that get a total in one call."""


class OutputStatements:
    """Every statement that psched sends about the table of output."""

    def __init__(self, table: str, dialect: Dialect, quote: Callable[[str], str]) -> None:
        self.table = SideTable(
            f"{table}_output",
            dialect,
            quote,
            read=[*COLUMNS, "is_gzip"],
            others=_OTHERS,
            unique=_ATTEMPT,
        )
        self._table, ignore = self.table.quoted, self.table.ignore
        self._key = quote("key")
        # A row that exists already is left alone: this request is repeated while the server still
        # works on the first one, or a reader has just asked for the output.
        inserted = [name for name in (*COLUMNS, "is_gzip", "size") if name != "id"]
        self.insert = self.table.insertion(inserted, ignore=ignore)
        condition, lease = self.table.each, self.table.one
        running = f"{lease} AND is_live = 1"
        self.of_attempt = text(
            f"SELECT {self.table.columns} FROM {self._table} WHERE {lease} AND output IS NOT NULL"
        )
        self.until = text(f"SELECT asked FROM {self._table} WHERE {running}")
        self.ask_again = text(
            f"UPDATE {self._table} SET asked = :until WHERE {running} AND asked < :until"
        )
        request = {"ended": ":now", "is_live": "1", "asked": ":until"}
        self.ask = self.table.insertion([*_ATTEMPT, "attempt"], request, ignore)
        # These queries are for `SideTable.for_each`.
        found = f"FROM {self._table} WHERE {condition}"
        self.asked = f"SELECT {{0}} {found} AND is_live = 1 AND asked > :now"
        self.find = f"SELECT id {found}"
        self.find_live = f"SELECT id {found} AND is_live = 1"
        self.write_live = text(
            f"UPDATE {self._table} SET output = :output, is_gzip = :is_gzip, dropped = :dropped,"
            f" ended = :ended WHERE {running}"
        )
        self.oldest = text(
            f"SELECT id, ended, size FROM {self._table} WHERE id > :after ORDER BY id LIMIT :limit"
        )
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

    def select(self, selection: OutputSelection, *, before: int | None, limit: int) -> Request:
        """A request that reads one page of records, the newest first, with ids below ``before``."""
        of_key, order = self.table.of_key, self.table.newest_of_key
        if selection.scheduled_time is not None:
            # There are few of these, so they are sorted: the sum keeps the planner from reading
            # all records of the key in the order of the index of keys.
            of_key, order = f"{self._key} = :key", "id + 0 DESC"
        where = Where()
        where.add(of_key, key=selection.key)
        # A running attempt has perhaps printed nothing, or its worker has not answered.
        where.add("(is_live = 0 OR LENGTH(output) > 0)")
        where.add("scheduled_time = :scheduled_time", scheduled_time=selection.scheduled_time)
        where.add("attempt = :attempt", attempt=selection.attempt)
        where.add("id < :before", before=before)
        return self.table.page(where, order, limit)


def of_attempts(records: Sequence[OutputRecord]) -> list[OutputRecord]:
    """The last record of each attempt, in order."""
    last = {tuple(getattr(record, name) for name in _ATTEMPT): record for record in records}
    return [*last.values()]


def stored(record: OutputRecord) -> dict[str, Any]:
    """The values that `OutputStatements.insert` binds."""
    values = {name: getattr(record, name) for name in COLUMNS if name != "id"}
    output = compress(record.output, above=_PLAIN, form=bytes)
    values["output"] = output
    values["is_gzip"] = int(output is not record.output)
    values["is_live"] = int(record.is_live)
    # The output so far is soon replaced. So it does not count; see `SqlOutput.trim_output`.
    values["size"] = 0 if record.is_live else len(output) + len(record.key) + _RECORD
    return values


def as_record(columns: Sequence[Any]) -> OutputRecord:
    """The record in the columns that a statement of `OutputStatements.select` has read."""
    *given, is_gzip = columns
    values = dict(zip(COLUMNS, given, strict=True))
    output = readable(values["output"]) if is_gzip else values["output"]
    return OutputRecord(**{**values, "output": output or b"", "is_live": bool(values["is_live"])})


class SqlOutput(SideStore, KeepsOutput):
    """Keeps what attempts have printed, as `KeepsOutput` describes."""

    def __init__(
        self, table: str, connector: Connector, check: Callable[[Connection], None]
    ) -> None:
        self._sql = OutputStatements(table, connector.dialect, connector.quote)
        self._trimmed = 0
        super().__init__(connector, check, self._sql.table)

    @override
    @one_request
    def write_output(self, records: Sequence[OutputRecord]) -> None:
        self._require()
        table, latest = self._sql.table, of_attempts(records)
        # Compressing takes time, so it is done before the transaction begins.
        values = [stored(record) for record in latest]

        def write(connection: Connection) -> None:
            for batch, bound in zip(batched(latest, _BATCH), batched(values, _BATCH), strict=True):
                self._replace(connection, table.for_each(self._sql.find, batch), bound)
                # A reader can have inserted a request in the meantime. Now it cannot.
                ended = [record for record in batch if not record.is_live]
                requests = table.for_each(self._sql.find_live, ended) if ended else None
                self._connector.step()
                if requests and raw_execute.rows(connection, *requests):
                    self._replace(connection, requests, bound)

        if records:
            self._connector.transact(write, patient=False)

    def _replace(
        self, connection: Connection, find: Request, values: Sequence[dict[str, Any]]
    ) -> None:
        """Delete the rows that a statement finds, and insert rows that do not exist."""
        self._connector.step()
        if found := raw_execute.rows(connection, *find):
            self._connector.step()
            raw_execute.count(connection, *self._sql.table.delete([id_ for (id_,) in found]))
        self._connector.step()
        raw_execute.repeat(connection, self._sql.insert, values)

    @override
    def outputs(self, selection: OutputSelection) -> Iterator[OutputRecord]:
        self._require()

        def read(before: int | None, limit: int) -> list[OutputRecord]:
            request = self._sql.select(selection, before=before, limit=limit)
            return [as_record(columns) for columns in self._query(*request)]

        return pages(read, selection.limit, _PAGE)

    @override
    def output_of(self, attempt: RunningAttempt) -> OutputRecord | None:
        self._require()
        found = self._query(self._sql.of_attempt, asdict(attempt))
        return as_record(found[0]) if found else None

    @override
    @one_request
    def ask_for_output(self, attempt: RunningAttempt, *, now: int, until: int) -> bool:
        # The row of the request is that of the output, which is empty until a worker writes it.
        self._require()
        values = {**asdict(attempt), "now": now, "until": until}
        found = self._query(self._sql.until, values)
        # If another reader inserts the row meanwhile, it has asked for the output.
        self._write(self._sql.ask_again if found else self._sql.ask, values)
        return bool(found) and found[0][0] > now

    @override
    @one_request
    def asked_output(
        self, attempts: Sequence[RunningAttempt], now: int
    ) -> AbstractSet[RunningAttempt]:
        self._require()
        asked = set[RunningAttempt]()
        for batch in batched(attempts, _BATCH):
            request = self._sql.table.for_each(self._sql.asked, batch, now=now)
            asked |= {batch[i] for (i,) in self._query(*request)}
        return asked

    @override
    @one_request
    def write_live_output(self, records: Sequence[OutputRecord]) -> None:
        self._require()
        values = [stored(record) for record in records]

        def write(connection: Connection) -> None:
            for each in values:
                self._connector.step()
                raw_execute.count(connection, self._sql.write_live, each)

        if records:
            self._connector.transact(write, patient=False)

    @override
    @one_request
    def trim_output(self, *, before: int, budget: int, limit: int) -> int:
        # Output of attempts that were running when it was written counts as nothing for the budget,
        # because it is soon replaced.
        self._require()
        # These are read before the sum: if another worker deletes them meanwhile, the sum is
        # smaller, and this worker does not delete more instead.
        oldest = self._query(self._sql.oldest, {"limit": limit, "after": self._trimmed})
        excess = self._sum_of_sizes() - budget
        until = last = 0
        for id_, ended, size in oldest:
            if excess > 0:
                excess -= size
                until = last = id_
            elif ended < before:
                last = id_
        self._trimmed = 0
        if not last:
            return 0
        ends = {"first": oldest[0][0], "last": last, "until": until, "before": before}
        deleted = self._write(self._sql.delete_range, ends)
        if deleted == limit:  # as in `SqlHistory.trim`
            self._trimmed = last
        return deleted

    def _sum_of_sizes(self) -> int:
        """The sum of the sizes of all records; it reads a few thousand of them at most.

        Every two thousandth record has a total: the sum of the sizes up to it, also of records that
        have been deleted. So the difference of the last and the first total is the sum of the sizes
        between these two. This method writes the totals.
        """
        sql = self._sql
        first, last = (self._query(mark, {}) for mark in (sql.first_mark, sql.last_mark))
        end = total = head = 0
        if first and last:
            ((beginning, before, size),) = first
            ((end, total, _),) = last
            head = int(self._query(sql.size_before, {"id": beginning})[0][0]) + size - before
        limit = _MARKED + _MARGIN
        for _ in range(_MOST_MARKS):
            after = self._query(sql.sizes_after, {"id": end, "limit": limit})
            if len(after) < limit:
                return int(head + total + sum(size for _, size in after))
            total += sum(size for _, size in after[:_MARKED])
            end = after[_MARKED - 1][0]
            self._write(sql.mark, {"id": end, "total": total})
        return int(head + total)

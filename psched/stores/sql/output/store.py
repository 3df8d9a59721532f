"""Keeps what attempts have printed in a table beside the table of schedules."""

import random
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection
from typing_extensions import override

from psched.base.clock import Clock
from psched.base.errors import SchemaError
from psched.core.output.protocol import OutputSelection
from psched.core.output.records import OutputRecord, RunningAttempt
from psched.stores.parameters import StoreParameters
from psched.stores.sql import raw_execute
from psched.stores.sql.history.store import HistoryStore, Pages
from psched.stores.sql.output.statements import (
    OutputStatements,
    Request,
    as_record,
    of_attempts,
    stored,
)
from psched.stores.sql.table_store import S, one_request

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


class OutputStore(HistoryStore[S]):
    """A store on one table that keeps the run history and output in further tables.

    A subclass sets ``_problem`` and ``_output_problem`` when it connects.

    Args:
        parameters: the settings of the store.
        rng: random generator for the pauses between tries to get SQLite's write lock.
    """

    def __init__(self, parameters: StoreParameters, *, clock: Clock, rng: random.Random) -> None:
        super().__init__(parameters, clock=clock, rng=rng)
        connector = self._connector
        self._output = OutputStatements(parameters.table, connector.dialect, connector.quote)
        self._output_problem: str | None = "not connected yet"

    def output_problem(self) -> str | None:
        """Why no output is kept, as `KeepsOutput.output_problem` describes."""
        # The version is read again, because somebody may have run `psched init` meanwhile.
        self._connector.read(self._check)
        return self._output_problem

    @override
    def try_rights(self) -> None:
        super().try_rights()
        if self._output_problem is None:
            self._try_each(self._output.rights, self._output.name)

    @one_request
    def write_output(self, records: Sequence[OutputRecord]) -> None:
        """Insert or replace records, as `KeepsOutput.write_output` describes."""
        self._require_output()
        latest = of_attempts(records)
        # Compressing takes time, so it is done before the transaction begins.
        values = [stored(record) for record in latest]

        def write(connection: Connection) -> None:
            for start in range(0, len(latest), _BATCH):
                batch, bound = latest[start : start + _BATCH], values[start : start + _BATCH]
                self._replace(connection, self._output.find(batch), bound)
                # A reader can have inserted a request in the meantime. Now it cannot.
                ended = [record for record in batch if not record.is_live]
                requests = self._output.find_live(ended) if ended else None
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
            raw_execute.count(connection, *self._output.delete([id_ for (id_,) in found]))
        self._connector.step()
        raw_execute.repeat(connection, self._output.insert, values)

    def outputs(self, selection: OutputSelection) -> Iterator[OutputRecord]:
        """The records of a selection, as `KeepsOutput.outputs` describes."""
        self._require_output()

        def read(before: int | None, limit: int) -> list[OutputRecord]:
            request = self._output.select(selection, before=before, limit=limit)
            return [as_record(columns) for columns in self._query(*request)]

        return Pages(read, selection.limit, _PAGE)

    def output_of(self, attempt: RunningAttempt) -> OutputRecord | None:
        """The record of one attempt, as `KeepsOutput.output_of` describes."""
        self._require_output()
        found = self._query(self._output.of_attempt, asdict(attempt))
        return as_record(found[0]) if found else None

    @one_request
    def ask_for_output(self, attempt: RunningAttempt, *, now: int, until: int) -> bool:
        """Ask for the output of an attempt, as `KeepsOutput.ask_for_output` describes.

        The row of the request is that of the output, which is empty until a worker writes it.
        """
        self._require_output()
        values = {**asdict(attempt), "now": now, "until": until}
        found = self._query(self._output.until, values)
        # If another reader inserts the row meanwhile, it has asked for the output.
        self._write(self._output.ask_again if found else self._output.ask, values)
        return bool(found) and found[0][0] > now

    @one_request
    def asked_output(
        self, attempts: Sequence[RunningAttempt], now: int
    ) -> AbstractSet[RunningAttempt]:
        """The attempts whose output is read, as `KeepsOutput.asked_output` describes."""
        self._require_output()
        asked = set[RunningAttempt]()
        for start in range(0, len(attempts), _BATCH):
            batch = attempts[start : start + _BATCH]
            asked |= {batch[i] for (i,) in self._query(*self._output.asked(batch, now))}
        return asked

    @one_request
    def write_live_output(self, records: Sequence[OutputRecord]) -> None:
        """Write the output of running attempts, as `KeepsOutput.write_live_output` describes."""
        self._require_output()
        values = [stored(record) for record in records]

        def write(connection: Connection) -> None:
            for each in values:
                self._connector.step()
                raw_execute.count(connection, self._output.write_live, each)

        if records:
            self._connector.transact(write, patient=False)

    @one_request
    def trim_output(self, *, before: int, budget: int, limit: int) -> int:
        """Delete the oldest records, as `KeepsOutput.trim_output` describes.

        Output of attempts that were running when it was written counts as nothing for the budget,
        because it is soon replaced.
        """
        self._require_output()
        # These are read before the sum: if another worker deletes them meanwhile, the sum is
        # smaller, and this worker does not delete more instead.
        oldest = self._query(self._output.oldest, {"limit": limit})
        excess = self._sum_of_sizes() - budget
        until = last = 0
        for id_, ended, size in oldest:
            if excess > 0:
                excess -= size
                until = last = id_
            elif ended < before:
                last = id_
        if not last:
            return 0
        ends = {"first": oldest[0][0], "last": last, "until": until, "before": before}
        return self._write(self._output.delete_range, ends)

    def _sum_of_sizes(self) -> int:
        """The sum of the sizes of all records; it reads a few thousand of them at most.

        Every two thousandth record has a total: the sum of the sizes up to it, also of records that
        have been deleted. So the difference of the last and the first total is the sum of the sizes
        between these two. This method writes the totals.
        """
        sql = self._output
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

    def _require_output(self) -> None:
        """Raise an error if no output is kept."""
        if self._output_problem is not None and (problem := self.output_problem()) is not None:
            raise SchemaError(problem)

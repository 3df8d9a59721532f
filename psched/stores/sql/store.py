"""Stores on a relational database: the protocol of `psched.core.store_protocol` in SQL."""

import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace as changed
from functools import partial
from math import ceil, floor
from typing import Any

from sqlalchemy import Connection, TextClause

from psched.base.clock import Clock
from psched.base.compression import compress
from psched.base.errors import (
    InvalidError,
    NotFoundError,
    StoreBusyError,
    StoreSlowError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from psched.base.lease_times import LONGEST_ALIVE_TIME
from psched.config.tls import Tls
from psched.core.attempts import wait_after_death
from psched.core.model import DELETING, Row, Settlement, Token
from psched.core.store_protocol import Claimed, Settled
from psched.stores.sql import diagnostics, raw_execute
from psched.stores.sql.batches import BATCH, holds, in_batches, result_of
from psched.stores.sql.chunks import in_chunks
from psched.stores.sql.claims import Strategy, choose, held_by
from psched.stores.sql.failures import refusing_data
from psched.stores.sql.listing import Listing
from psched.stores.sql.relational import TableStore, one_request
from psched.stores.sql.schema import Schema
from psched.stores.sql.statements import Statements, replaced

Request = tuple[TextClause, Mapping[str, Any]]
"""A statement and its values."""


class SqlStore(TableStore[Statements]):
    """Schedules in one table of a relational database.

    Args:
        url: database URL in SQLAlchemy's form.
        table: the table's name, a plain identifier.
        timeout: seconds; bound of every wait for the server.
        clock: this host's clocks.
        rng: draws the pauses between tries.
        strategy: the way to claim; None: the best that the server can do.
        tls: how connections are encrypted; None: as the url's own options, or the driver, will.
        compress_above: bytes; larger payloads are compressed. 0: none are.
        only: the types of rows that claims take; none: all.
    """

    def __init__(
        self,
        url: str,
        *,
        table: str,
        timeout: float,
        clock: Clock,
        rng: random.Random,
        strategy: str | None = None,
        tls: Tls | None = None,
        compress_above: int = 0,
        only: Sequence[str] = (),
    ) -> None:
        super().__init__(url, table=table, timeout=timeout, clock=clock, rng=rng, tls=tls)
        self._schema = Schema(table, self._connector.dialect)
        self._sql = Statements(self._connector.quote(table), self._connector.dialect, only)
        self._pack = partial(compress, above=compress_above, form=self._connector.dialect.packed)
        self._in_batches = partial(in_batches, clock=clock, patience=timeout)
        self._wanted = strategy
        self._chosen: Strategy | None = None
        # By what a server is: what it can do is not tried again after each reconnect.
        self._known: dict[Hashable, Strategy] = {}

    def add(self, rows: Sequence[Row], *, nonce: str) -> None:
        """See `Backend.add`."""
        batches = self._inserts(rows, nonce)
        if len(batches) == 1:
            self._write(*batches[0])
        elif batches:
            self._connector.transact(lambda c: self._insert(c, batches))

    def add_through(self, connection: Connection, rows: Sequence[Row], *, nonce: str) -> None:
        """Insert rows on somebody else's connection, which will be committed, or not.

        Raises:
            AlreadyExistsError: one of the keys exists. The transaction is as it was before.
            InvalidError: it is no connection.
            StoreError: the database refused.
        """
        if not isinstance(connection, Connection):
            raise InvalidError(
                "connection",
                f"must be a Connection of SQLAlchemy's, not {type(connection).__name__}; that of a"
                " Session is session.connection()",
            )
        self._connector.borrow(
            connection,
            lambda c: [c.execute(*insert) for insert in self._inserts(rows, nonce)],
        )

    def get(self, key: str) -> Row | None:
        """See `Backend.get`."""
        found = self._read(self._sql.get, {"id": key})
        return found[0] if found else None

    def rows(self) -> Iterator[Row]:
        """See `Backend.rows`."""
        sql = self._sql
        parts = (sql.first_timed, sql.timed), (sql.first_resting, sql.resting)
        return Listing(self._query, parts, Row)

    def replace(self, seen: Row, new: Row) -> bool:
        """See `Backend.replace`."""
        new = changed(new, data=new.data and self._pack(new.data))
        return self._write(self._sql.replace, replaced(seen, new)) == 1

    def delete(self, key: str) -> bool:
        """See `Backend.delete`."""
        values: dict[str, object] = {"id": key}
        if self._connector.dialect.host_clock:
            # The hour before the look at its evenness: what is set in between is seen. How long the
            # lease is, its row does not say; after a step any may be held still. A worker that
            # takes it over, when it may, finds the mark and removes the row.
            values["over"] = floor(self._clock.wall())
            if self._connector.evenness.seconds() <= LONGEST_ALIVE_TIME:
                values["over"] = -1
        if self._write(self._sql.delete, values):
            return True
        if self._write(self._sql.mark_deleting, {"id": key}):
            return False
        row = self.get(key)
        if row is None:
            raise NotFoundError(f"no schedule has the key {key!r}")
        if row.status == DELETING:
            return False
        # It was settled between the two statements: it is free now.
        return self.delete(key)

    @one_request
    def claim(
        self, owner: str, *, limit: int, alive_time: int, shortest: int, horizon: float
    ) -> Claimed:
        """See `Backend.claim`."""
        lease = {"alive_time": alive_time, "shortest": shortest}
        return self._strategy().claim(owner, min(limit, BATCH), lease, horizon)

    def held(self, owner: str, keys: Sequence[str]) -> Sequence[Row]:
        """See `Backend.held`."""
        rows = held_by(owner, self._connector, self._sql)
        return [row for row in rows if row.key in keys] if keys else rows

    @one_request
    def extend(
        self, leases: Mapping[str, Token], *, alive_time: int, shortest: int
    ) -> frozenset[str]:
        """See `Backend.extend`."""
        lease = {"alive_time": alive_time, "shortest": shortest}

        def extend(keys: Sequence[str]) -> Mapping[str, bool]:
            batch = {key: leases[key] for key in keys}
            statement, values = self._sql.extend(batch)
            if self._write(statement, {**values, **lease}) == len(batch):
                return dict.fromkeys(batch, True)
            rows = self.look(keys)
            return {key: key in rows and holds(token, rows[key]) for key, token in batch.items()}

        held = self._in_batches([*leases], extend)
        return frozenset(key for key, is_held in held.items() if is_held)

    @one_request
    def settle(self, settlements: Sequence[Settlement]) -> Mapping[str, Settled]:
        """See `Backend.settle`."""

        def settle(ends: Sequence[Settlement]) -> Mapping[str, Settled]:
            build = self._sql.remove if ends[0].remove else self._sql.settle
            written = self._write(*build(ends))
            if written == len(ends):
                return {end.key: Settled.DONE for end in ends}
            try:
                rows = self.look([end.key for end in ends])
            except StoreUnavailableError as error:
                locked = isinstance(error, StoreBusyError) and not isinstance(error, StoreSlowError)
                if locked or not written:
                    raise
                raise UnknownOutcomeError(str(error)) from None
            return {end.key: result_of(end, rows.get(end.key)) for end in ends}

        results = dict.fromkeys((end.key for end in settlements), Settled.PREEMPTED)
        for remove in (False, True):
            ends = [end for end in settlements if end.remove is remove]
            results |= self._in_batches(ends, settle)
        return results

    def update_data(self, key: str, token: Token, data: str) -> bool:
        """See `Backend.update_data`."""
        values = {"id": key, "owner": token.owner, "fence": token.fence}
        with refusing_data():
            return self._write(self._sql.update_data, {**values, "data": self._pack(data)}) == 1

    def marked(self, keys: Sequence[str]) -> Mapping[str, str]:
        """See `Backend.marked`."""
        if not keys:
            return {}
        return dict(map(tuple, self._query(*self._sql.marked(keys))))

    @one_request
    def purge(self, limit: int) -> int:
        """See `Backend.purge`."""
        found = [key for (key,) in self._query(self._sql.purgeable, {"limit": limit})]
        return self._write(*self._sql.purge(found)) if found else 0

    def look(self, keys: Sequence[str]) -> Mapping[str, Row]:
        """See `Backend.look`."""
        batches = (keys[start : start + BATCH] for start in range(0, len(keys), BATCH))
        rows = (row for batch in batches for row in self._read(*self._sql.look(batch)))
        return {row.key: row for row in rows}

    @one_request
    def recover(self, nonce: str, *, alive_time: int, retry_wait: float) -> Sequence[str]:
        """See `Backend.recover`."""
        # What begins with the nonce and a dot; a slash comes next to a dot.
        owners = {"dot": f"{nonce}.", "after_dot": f"{nonce}/"}
        self._connector.catch_up()
        dead = self._read(self._sql.dead, {**owners, "alive_time": alive_time})
        ends = [
            Settlement.of(
                row,
                wait=ceil(wait_after_death(row.attempt, retry_wait)),
                attempt=row.attempt,
                status=row.status,
                reason="its worker died",
            )
            for row in dead
        ]
        results = self.settle(ends)
        released = [key for key, result in results.items() if result is Settled.DONE]
        if Settled.REDEFINED in results.values():
            released += self.recover(nonce, alive_time=alive_time, retry_wait=retry_wait)
        return released

    def examine(self) -> Sequence[tuple[str, str]]:
        """See `Backend.examine`."""
        self.now()  # connects
        strategy = "none" if self._connector.is_replica else self._strategy().name
        return diagnostics.examine(self._connector, self.now, self._clock, strategy=strategy)

    def _check(self, connection: Connection) -> None:
        self._schema.check(connection)
        # It may be another server than the last.
        self._chosen = self._known.get(self._connector.server)

    def _make(self, connection: Connection) -> Sequence[str]:
        return self._schema.init(connection)

    def _strategy(self) -> Strategy:
        if self._chosen is None:
            chosen = choose(self._connector, self._sql, self._wanted)
            # To choose may have been what connected.
            self._chosen = self._known[self._connector.server] = chosen
        return self._chosen

    def _inserts(self, rows: Sequence[Row], nonce: str) -> list[Request]:
        """The statements that insert rows."""
        stored = [changed(row, data=self._pack(row.data)) if row.data else row for row in rows]
        return [self._sql.insert(batch, nonce) for batch in in_chunks(stored)]

    def _insert(self, connection: Connection, batches: Sequence[Request]) -> None:
        for batch in batches:
            self._connector.renew()
            raw_execute.count(connection, *batch)

    def _read(self, statement: TextClause, values: Mapping[str, Any]) -> Sequence[Row]:
        return [Row(*columns) for columns in self._query(statement, values)]

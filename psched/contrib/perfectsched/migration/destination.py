"""Inserts staged copies of old rows into psched's table, and turns the copies into schedules."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, Self

from sqlalchemy import (
    ColumnElement,
    Connection,
    String,
    and_,
    case,
    delete,
    insert,
    literal,
    or_,
    select,
    update,
)

from psched.base.clock import Clock
from psched.config import Config
from psched.core.model import MIGRATING, Row
from psched.stores.sql.connector import Connector
from psched.stores.sql.schema import Schema
from psched.stores.sql.tables import schedules_table

_PAGE = 500
"""The largest number of rows that one query reads."""

_COPIED = (
    "type", "data", "cron", "timezone", "delay", "next_time", "created_at", "options",
)  # fmt: skip
"""Columns of the old row that a staged copy contains; activating the copy writes the others."""


@dataclass(frozen=True, slots=True)
class NewRow:
    """A row of psched's table: a schedule, or a staged copy of an old row, which no worker claims.

    Attributes:
        token: the fingerprint of the old row from which the copy was made; None for a schedule.
        origin: a text that names the old table and its database; empty for a schedule.
        final: ``status``, ``next_run_time``, ``reason`` and ``retain_until`` of the schedule that
            the copy becomes.
    """

    key: str
    token: str | None = None
    origin: str = ""
    final: tuple[str, int | None, str | None, int | None] = ("", None, None, None)

    @classmethod
    def staged(cls, row: Row, token: str, origin: str) -> Self:
        """Create the staged copy that becomes ``row`` when it is activated."""
        final = (row.status, row.next_run_time, row.reason, row.retain_until)
        return cls(row.key, token, origin, final)

    @classmethod
    def from_columns(cls, key: str, status: str, token: str | None, reason: str | None) -> Self:
        """Create a `NewRow` from the columns of a row.

        The result is a staged copy if the status is ``migrating`` and the reason can be parsed;
        otherwise it is a schedule.
        """
        if status != MIGRATING:
            return cls(key)
        try:
            note = json.loads(reason or "")
            status, next_run_time, why, *retain = note["then"]  # an old copy may lack retain_until
            final = (status, next_run_time, why, retain[0] if retain else None)
            return cls(key, token, note["moving from"], final)
        except (ValueError, KeyError, TypeError):
            return cls(key)

    @property
    def is_staged(self) -> bool:
        """Whether the row is a staged copy, not a schedule."""
        return self.token is not None

    @property
    def note(self) -> str:
        """The ``reason`` of a staged copy: all values that its activation writes, as JSON text."""
        return json.dumps({"moving from": self.origin, "then": self.final}, ensure_ascii=False)


class Destination:
    """psched's table, as the destination of a migration.

    Args:
        settings: the settings, which name the database and the table.
        clock: limits how long requests wait for the database.
        rng: the source of the random pauses between two tries to lock the database.
    """

    def __init__(self, settings: Config, *, clock: Clock, rng: random.Random) -> None:
        self._connector = Connector(
            settings.url,
            tls=settings.tls,
            timeout=settings.driver_timeout,
            clock=clock,
            rng=rng,
            greet=self._greet,
            reflects=True,
        )
        self._schema = Schema(settings.table, self._connector.dialect)
        self._table = schedules_table(settings.table)
        c = self._table.c
        self._columns = (c.id, c.status, c.settled_by, c.reason)

    def check(self) -> None:
        """Check that the table exists, and has the columns that this version of psched expects."""
        self._connector.read(lambda _connection: None)

    def read(self, keys: Sequence[str]) -> Mapping[str, NewRow]:
        """Read the rows with these keys, by key; missing rows are left out."""
        query = select(*self._columns).where(self._table.c.id.in_(keys))
        found = self._connector.read(lambda c: c.execute(query).all()) if keys else []
        return {row[0]: NewRow.from_columns(*row) for row in found}

    def staged_after(self, key: str) -> Sequence[NewRow]:
        """Read the next page of staged copies whose keys follow ``key``, of all origins, by key."""
        c = self._table.c
        query = (
            select(*self._columns)
            .where(c.next_run_time.is_(None), c.status == MIGRATING, c.id > key)
            .order_by(c.id)
            .limit(_PAGE)
        )
        found = self._connector.read(lambda c: c.execute(query).all())
        return [NewRow.from_columns(*row) for row in found]

    def insert(self, rows: Sequence[tuple[Row, NewRow]]) -> None:
        """Insert staged copies; if one of them cannot be inserted, insert none."""
        values = [self._values(row, copy) for row, copy in rows]
        if values:
            self._write(insert(self._table).values(values))

    def activate(self, copies: Sequence[NewRow]) -> None:
        """Turn staged copies into schedules; ignore a copy that has become a schedule before."""
        c = self._table.c
        ordered = sorted(copies, key=lambda copy: repr(copy.final[:3:2]))

        def by_key(batch: Sequence[NewRow], place: Literal[1, 3]) -> object:
            finals = {copy.key: copy.final[place] for copy in batch}
            values = {key: value for key, value in finals.items() if value is not None}
            return case(values, value=c.id) if values else None

        for (status, reason), group in groupby(ordered, key=lambda copy: copy.final[:3:2]):
            batch = [*group]
            change = (
                update(self._table)
                .values(
                    status=status,
                    reason=reason,
                    next_run_time=by_key(batch, 1),
                    retain_until=by_key(batch, 3),
                )
                .where(self._is_staged(batch))
            )
            self._write(change)

    def delete_staged(self, copies: Sequence[NewRow]) -> None:
        """Delete staged copies; ignore a copy that has become a schedule before."""
        if copies:
            self._write(delete(self._table).where(self._is_staged(copies)))

    def disconnect(self) -> None:
        """Close the connection to psched's database."""
        self._connector.disconnect()

    def _greet(self, connection: Connection) -> None:
        self._schema.check(connection)

    def _is_staged(self, copies: Sequence[NewRow]) -> ColumnElement[bool]:
        c = self._table.c
        each = or_(*(and_(c.id == copy.key, c.settled_by == copy.token) for copy in copies))
        return and_(c.status == MIGRATING, each)

    def _values(self, row: Row, copy: NewRow) -> dict[str, Any]:
        values = {name: getattr(row, name) for name in _COPIED}
        for name in ("data", "options"):
            if values[name] is not None:
                # These columns are bound as text, as in all of psched's statements.
                values[name] = literal(values[name], String())
        return {
            **values,
            "id": row.key,
            "next_run_time": None,
            "status": MIGRATING,
            "reason": copy.note,
            "settled_by": copy.token,
        }

    def _write(self, change: Any) -> None:  # noqa: ANN401  # an update or a delete
        self._connector.run(lambda c: c.execute(change))

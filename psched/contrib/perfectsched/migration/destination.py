"""psched's table: copies at rest, which become schedules."""

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
"""Copies in one query."""

_COPIED = (
    "type", "data", "cron", "timezone", "delay", "next_time", "created_at", "options",
)  # fmt: skip
"""Columns that are of no less use at rest."""


@dataclass(frozen=True, slots=True)
class Copy:
    """What stands in psched's table under a key.

    Attributes:
        token: tells which state of the old row it was made of; None if it is no copy.
        origin: the old table.
        then: ``status``, ``next_run_time``, ``reason`` and ``retain_until`` once it is released.
    """

    key: str
    token: str | None = None
    origin: str = ""
    then: tuple[str, int | None, str | None, int | None] = ("", None, None, None)

    @classmethod
    def of(cls, row: Row, token: str, origin: str) -> Self:
        """The copy from which a row will be released."""
        then = (row.status, row.next_run_time, row.reason, row.retain_until)
        return cls(row.key, token, origin, then)

    @classmethod
    def read(cls, key: str, status: str, token: str | None, reason: str | None) -> Self:
        """What stands there, of its columns."""
        if status != MIGRATING:
            return cls(key)
        try:
            note = json.loads(reason or "")
            status, next_run_time, why, *retain = note["then"]  # older ones end here
            then = (status, next_run_time, why, retain[0] if retain else None)
            return cls(key, token, note["moving from"], then)
        except (ValueError, KeyError, TypeError):
            return cls(key)

    @property
    def at_rest(self) -> bool:
        """Whether it is a copy that waits to be released."""
        return self.token is not None

    @property
    def note(self) -> str:
        """Its ``reason``: enough to release it after a crash."""
        return json.dumps({"moving from": self.origin, "then": self.then}, ensure_ascii=False)


class Destination:
    """The table that the settings name.

    Args:
        settings: the installation's.
        clock: this host's clocks.
        rng: draws the pauses between tries.
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
        """Make sure that the table is there.

        Raises:
            SchemaError: it is not, or it is of another version.
        """
        self._connector.read(lambda _connection: None)

    def look(self, keys: Sequence[str]) -> Mapping[str, Copy]:
        """What stands under these keys."""
        query = select(*self._columns).where(self._table.c.id.in_(keys))
        found = self._connector.read(lambda c: c.execute(query).all()) if keys else []
        return {row[0]: Copy.read(*row) for row in found}

    def unreleased(self, after: str) -> Sequence[Copy]:
        """The copies at rest that come next, in the order of the keys, of whatever origin."""
        c = self._table.c
        query = (
            select(*self._columns)
            .where(c.next_run_time.is_(None), c.status == MIGRATING, c.id > after)
            .order_by(c.id)
            .limit(_PAGE)
        )
        found = self._connector.read(lambda c: c.execute(query).all())
        return [Copy.read(*row) for row in found]

    def insert(self, rows: Sequence[tuple[Row, Copy]]) -> None:
        """Insert copies at rest, all or none.

        Raises:
            AlreadyExistsError: one of the keys exists.
        """
        values = [self._values(row, copy) for row, copy in rows]
        if values:
            self._write(insert(self._table).values(values))

    def release(self, copies: Sequence[Copy]) -> None:
        """Make schedules of copies; those that have been released already are left alone."""
        c = self._table.c
        ordered = sorted(copies, key=lambda copy: repr(copy.then[:3:2]))

        def each(batch: Sequence[Copy], place: Literal[1, 3]) -> object:
            values = {copy.key: copy.then[place] for copy in batch if copy.then[place] is not None}
            return case(values, value=c.id) if values else None

        for (status, reason), group in groupby(ordered, key=lambda copy: copy.then[:3:2]):
            batch = [*group]
            change = (
                update(self._table)
                .values(
                    status=status,
                    reason=reason,
                    next_run_time=each(batch, 1),
                    retain_until=each(batch, 3),
                )
                .where(self._at_rest(batch))
            )
            self._write(change)

    def withdraw(self, copies: Sequence[Copy]) -> None:
        """Delete copies that have not been released."""
        if copies:
            self._write(delete(self._table).where(self._at_rest(copies)))

    def disconnect(self) -> None:
        """Close the connection."""
        self._connector.disconnect()

    def _greet(self, connection: Connection) -> None:
        self._schema.check(connection)

    def _at_rest(self, copies: Sequence[Copy]) -> ColumnElement[bool]:
        c = self._table.c
        each = or_(*(and_(c.id == copy.key, c.settled_by == copy.token) for copy in copies))
        return and_(c.status == MIGRATING, each)

    def _values(self, row: Row, copy: Copy) -> dict[str, Any]:
        values = {name: getattr(row, name) for name in _COPIED}
        for name in ("data", "options"):
            if values[name] is not None:
                # As text whatever the column's type is: as every statement of psched's does.
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

"""The old table, and psched's, in which copies of old rows are staged and become schedules."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Literal, Self

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    String,
    and_,
    case,
    column,
    delete,
    func,
    insert,
    inspect,
    literal,
    literal_column,
    or_,
    select,
    table,
    text,
    update,
)

from psched.base.clock import Clock
from psched.base.errors import SchemaError
from psched.config import Config
from psched.contrib.perfectsched.migration.source_systems import SYSTEMS, OldRow, SourceSystem
from psched.core.model import MIGRATING, Row
from psched.stores.sql.connector import Connector
from psched.stores.sql.schema import Schema
from psched.stores.sql.tables import schedules_table

PAGE = 200  # the largest number of rows that one query reads, and so that one statement writes


class Source:
    """The table whose rows are to be moved. If ``system`` is None, its columns tell it."""

    def __init__(
        self, settings: Config, name: str, *, system: str | None, clock: Clock, rng: random.Random
    ) -> None:
        self._connector = Connector(
            settings.url,
            tls=settings.tls,
            timeout=settings.driver_timeout,
            clock=clock,
            rng=rng,
            greet=lambda _connection: None,
            reflects=True,
        )
        self._name = name
        self._place = f"{name!r} on {settings.safe_url}"
        self._wanted_system = system
        url = self._connector.url
        scheme, _, _ = url.drivername.partition("+")
        where = f"{scheme}://{url.host or ''}:{url.port or ''}/{url.database}"
        # A text for messages that names the table and its database.
        self.title = f"table {self._place}"
        # The text that names the table and its database in staged copies: `NewRow.origin`.
        self.origin = f"table {name} on {where}"

    @property
    def system(self) -> SourceSystem:
        """The system that the table belongs to."""
        return self._shape[0]

    def count(self) -> int:
        """The number of rows in the table."""
        query = select(func.count()).select_from(self._table)
        return self._connector.read(lambda c: int(c.execute(query).scalar_one()))

    def page(self, after: OldRow | None) -> Sequence[OldRow]:
        """Read the next page of rows, in the order of keys; it is empty after the last one."""
        query = self._select.order_by(column("id")).limit(PAGE)
        if after is not None:
            beyond = (
                f"{self._connector.quote('id')} > {self._connector.dialect.text.format(':after')}"
            )
            query = query.where(text(beyond).bindparams(after=after.stored_id))
        return self._read(query)

    def read(self, keys: Sequence[str]) -> Mapping[str, OldRow]:
        """Read the rows with these keys, by key; missing rows are left out."""
        found = self._read(self._select.where(column("id").in_(keys))) if keys else []
        return {old.key: old for old in found}

    def mark(self, seen: Sequence[OldRow]) -> int:
        """Mark the rows that have not changed since they were read; return their number."""
        if not seen:
            return 0
        # The condition is built as text, because building its two thousand comparisons from
        # SQLAlchemy's objects takes ten times as long.
        values: dict[str, Any] = {}
        each = (f"({' AND '.join(self._as_seen(old, values))})" for old in seen)
        as_seen = text(" OR ".join(each)).bindparams(**values)
        mark = self.system.mark(self._shape[1])
        change = update(self._table).values(dict(mark)).where(as_seen)
        return self._connector.run(lambda c: c.execute(change).rowcount)

    def delete_marked(self, keys: Sequence[str]) -> int:
        """Delete the rows that have one of these keys and are marked; return their number."""
        if not keys:
            return 0
        marks = (
            and_(*(column(name) == value for name, value in mark.items()))
            for mark in self.system.marks
        )
        gone = delete(self._table).where(column("id").in_(keys), or_(*marks))
        return self._connector.run(lambda c: c.execute(gone).rowcount)

    def disconnect(self) -> None:
        """Close the connection to the old database."""
        self._connector.disconnect()

    def _read(self, query: Select[Any]) -> Sequence[OldRow]:
        names = self._shape[1]

        def read(connection: Connection) -> Sequence[OldRow]:
            return [
                OldRow(values[0], at, dict(zip(names, values, strict=True)), float(now))
                for now, at, *values in connection.execute(query)
            ]

        return self._connector.read(read)

    @cached_property
    def _table(self) -> Any:  # noqa: ANN401  # SQLAlchemy's class has no public name
        return table(self._name, *map(column, self._shape[1]))

    @cached_property
    def _select(self) -> Select[Any]:
        now: ColumnElement[Any] = literal_column(str(self._connector.dialect.now))
        stored = [self._stored("id", as_bytes=True), *map(self._stored, self._shape[1])]
        return select(now, *map(literal_column, stored)).select_from(self._table)

    @cached_property
    def _shape(self) -> tuple[SourceSystem, Sequence[str]]:
        """The old system, and the names of the columns that are read, ``id`` first."""

        def read(connection: Connection) -> set[str] | None:
            inspector = inspect(connection)
            # The name comes from the command line and can contain any bytes. A name that is not
            # printable is not looked up, because database drivers raise errors about such a name.
            if not self._name.isprintable() or not inspector.has_table(self._name):
                return None
            return {each["name"] for each in inspector.get_columns(self._name)}

        found = self._connector.read(read)
        if found is None:
            raise SchemaError(f"there is no table {self._place}")
        if "next_run_time" in found:
            raise SchemaError(f"the table {self._place} is psched's own: nothing needs to move")
        systems = [SYSTEMS[self._wanted_system]] if self._wanted_system else [*SYSTEMS.values()]
        for each in systems:
            if each.required_columns <= found:
                names = each.required_columns | (each.optional_columns & found)
                return each, sorted(names, key=lambda name: (name != "id", name))
        wanted = " or ".join(
            f"{each.name}'s ({', '.join(sorted(each.required_columns))})" for each in systems
        )
        raise SchemaError(f"the table {self._place} does not have the columns of {wanted}")

    def _as_seen(self, old: OldRow, values: dict[str, Any]) -> Iterator[str]:
        """Yield SQL conditions that a row is unchanged; add their parameters to ``values``."""
        for name, value in old.values.items():
            stored = self._stored(name)
            if value is None:
                yield f"{stored} IS NULL"
            else:
                parameter = f"p{len(values)}"
                values[parameter] = value
                yield f"{stored} = :{parameter}"

    def _stored(self, name: str, *, as_bytes: bool = False) -> str:
        """The SQL that reads a column; reads ``data`` as bytes, which need not be valid text."""
        quoted = self._connector.quote(name)
        as_bytes = as_bytes or name == "data"
        return self._connector.dialect.payload.format(quoted) if as_bytes else quoted


_PAGE = 500  # the largest number of rows that one query reads

_COPIED = (
    "type", "data", "cron", "timezone", "delay", "next_time", "created_at", "options",
)  # fmt: skip
"""Columns of the old row that a staged copy contains; activating the copy writes the others."""


@dataclass(frozen=True, slots=True)
class NewRow:
    """A row of psched's table: a schedule, or a staged copy, which no worker claims."""

    key: str
    # The fingerprint of the old row from which the copy was made; None for a schedule.
    token: str | None = None
    origin: str = ""  # a text that names the old table and its database; empty for a schedule
    # ``status``, ``next_run_time``, ``reason`` and ``retain_until`` of the schedule that the copy
    # becomes.
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
    """psched's table, as the destination of a migration."""

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

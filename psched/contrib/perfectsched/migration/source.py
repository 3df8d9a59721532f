"""Reads, marks and deletes the rows of the old table."""

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    column,
    delete,
    func,
    inspect,
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
from psched.stores.sql.connector import Connector

PAGE = 200
"""The largest number of rows that one query reads, and so that one statement writes."""


class Source:
    """The table whose rows are to be moved.

    Args:
        settings: settings whose ``url`` is the url of the old database.
        name: the name of the table.
        system: the name of the old system; None means that the table's columns determine it.
        clock: limits how long requests wait for the database.
        rng: the source of the random pauses between two tries to lock the database.

    Attributes:
        title: a text for messages that names the table and its database.
        origin: the text that names the table and its database in staged copies: `NewRow.origin`.
    """

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
        self.title = f"table {self._place}"
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

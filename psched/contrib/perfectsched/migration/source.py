"""The old table: reading, marking and deleting its rows."""

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
"""The number of rows that are read by one query; each step writes at most as many at once."""


class Source:
    """The table whose rows are to be moved.

    Args:
        settings: the settings, whose url is that of the old database.
        name: the name of the table.
        system: the name of the old system; None: the table's columns determine the system.
        clock: limits how long requests wait for the database.
        rng: the source of the random pauses between two tries to lock the database.

    Attributes:
        title: the table and its database, as messages show them.
        origin: the table and its database, as in `NewRow.origin`.
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
        """The system that the table belongs to.

        Raises:
            SchemaError: the table does not exist, or its columns are those of no known system.
        """
        return self._shape[0]

    def page(self, after: OldRow | None) -> Sequence[OldRow]:
        """Read the rows that follow ``after``, in the order of the keys; empty after the last."""
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
        """Mark the rows that have not changed since they were read; return how many it marked."""
        if not seen:
            return 0
        # The SQL is text, because building two thousand comparisons from SQLAlchemy's objects takes
        # ten times as long.
        values: dict[str, Any] = {}
        each = (f"({' AND '.join(self._as_seen(old, values))})" for old in seen)
        as_seen = text(" OR ".join(each)).bindparams(**values)
        mark = self.system.mark(self._shape[1])
        change = update(self._table).values(dict(mark)).where(as_seen)
        return self._connector.run(lambda c: c.execute(change).rowcount)

    def delete_marked(self, keys: Sequence[str]) -> int:
        """Delete those rows among the given keys that are marked; return their number."""
        if not keys:
            return 0
        marks = (
            and_(*(column(name) == value for name, value in mark.items()))
            for mark in self.system.marks
        )
        gone = delete(self._table).where(column("id").in_(keys), or_(*marks))
        return self._connector.run(lambda c: c.execute(gone).rowcount)

    def disconnect(self) -> None:
        """Close the connection."""
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
    def _table(self) -> Any:  # noqa: ANN401  # SQLAlchemy has no public name for it
        return table(self._name, *map(column, self._shape[1]))

    @cached_property
    def _select(self) -> Select[Any]:
        now: ColumnElement[Any] = literal_column(str(self._connector.dialect.now))
        stored = [self._stored("id", as_bytes=True), *map(self._stored, self._shape[1])]
        return select(now, *map(literal_column, stored)).select_from(self._table)

    @cached_property
    def _shape(self) -> tuple[SourceSystem, Sequence[str]]:
        """The system, and the names of the columns that are read, beginning with ``id``."""

        def read(connection: Connection) -> set[str] | None:
            inspector = inspect(connection)
            # A name from the command line may hold any bytes. A name that is not printable text is
            # not looked up, because drivers raise errors about it.
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
        """SQL conditions that a row has not changed; adds parameters to ``values``."""
        for name, value in old.values.items():
            stored = self._stored(name)
            if value is None:
                yield f"{stored} IS NULL"
            else:
                parameter = f"p{len(values)}"
                values[parameter] = value
                yield f"{stored} = :{parameter}"

    def _stored(self, name: str, *, as_bytes: bool = False) -> str:
        """The SQL that reads a column; reads ``data`` as bytes, because it may hold any bytes."""
        quoted = self._connector.quote(name)
        as_bytes = as_bytes or name == "data"
        return self._connector.dialect.payload.format(quoted) if as_bytes else quoted

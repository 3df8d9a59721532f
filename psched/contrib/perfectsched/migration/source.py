"""The old table, in SQL."""

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
from psched.contrib.perfectsched.migration.source_systems import KINDS, Kind, Old
from psched.stores.sql.connector import Connector

PAGE = 200
"""Rows that are read, and go through each step, together."""


class Source:
    """The table whose rows are to be moved.

    Args:
        settings: whose url and timeout are the old database's.
        name: the table.
        kind: which system it is of; None: its columns tell.
        clock: this host's clocks.
        rng: draws the pauses between tries.

    Attributes:
        title: where it is, for people.
        origin: where it is, whoever asks: what its copies are known by.
    """

    def __init__(
        self, settings: Config, name: str, *, kind: str | None, clock: Clock, rng: random.Random
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
        self._asked_for = kind
        url = self._connector.url
        scheme, _, _ = url.drivername.partition("+")
        where = f"{scheme}://{url.host or ''}:{url.port or ''}/{url.database}"
        self.title = f"table {self._place}"
        self.origin = f"table {name} on {where}"

    @property
    def kind(self) -> Kind:
        """The system it is of.

        Raises:
            SchemaError: there is no such table, or it is of none that we know.
        """
        return self._shape[0]

    def page(self, after: Old | None) -> Sequence[Old]:
        """The rows that come next, in the order of the keys; none: that was all."""
        query = self._select.order_by(column("id")).limit(PAGE)
        if after is not None:
            beyond = (
                f"{self._connector.quote('id')} > {self._connector.dialect.text.format(':after')}"
            )
            query = query.where(text(beyond).bindparams(after=after.at))
        return self._read(query)

    def look(self, keys: Sequence[str]) -> Mapping[str, Old]:
        """The rows under these keys, as far as they exist."""
        found = self._read(self._select.where(column("id").in_(keys))) if keys else []
        return {old.key: old for old in found}

    def mark(self, seen: Sequence[Old]) -> int:
        """Take those rows that are still as they were seen, in every column; how many that were."""
        if not seen:
            return 0
        # As text: of two thousand comparisons, SQLAlchemy's own objects take ten times as long.
        values: dict[str, Any] = {}
        each = (f"({' AND '.join(self._as_seen(old, values))})" for old in seen)
        as_seen = text(" OR ".join(each)).bindparams(**values)
        mark = self.kind.mark(self._shape[1])
        change = update(self._table).values(dict(mark)).where(as_seen)
        return self._connector.run(lambda c: c.execute(change).rowcount)

    def clear(self, keys: Sequence[str]) -> int:
        """Delete rows that we have taken; how many were left of them."""
        if not keys:
            return 0
        marks = (
            and_(*(column(name) == value for name, value in mark.items()))
            for mark in self.kind.marks
        )
        gone = delete(self._table).where(column("id").in_(keys), or_(*marks))
        return self._connector.run(lambda c: c.execute(gone).rowcount)

    def disconnect(self) -> None:
        """Close the connection."""
        self._connector.disconnect()

    def _read(self, query: Select[Any]) -> Sequence[Old]:
        names = self._shape[1]

        def read(connection: Connection) -> Sequence[Old]:
            return [
                Old(values[0], at, dict(zip(names, values, strict=True)), float(now))
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
    def _shape(self) -> tuple[Kind, Sequence[str]]:
        """The system, and the columns that it has, ``id`` first."""

        def read(connection: Connection) -> set[str] | None:
            inspector = inspect(connection)
            # No driver takes a name that is not text: a command line may hold any bytes.
            if not self._name.isprintable() or not inspector.has_table(self._name):
                return None
            return {each["name"] for each in inspector.get_columns(self._name)}

        found = self._connector.read(read)
        if found is None:
            raise SchemaError(f"there is no table {self._place}")
        if "next_run_time" in found:
            raise SchemaError(f"the table {self._place} is psched's own: nothing needs to move")
        kinds = [KINDS[self._asked_for]] if self._asked_for else KINDS.values()
        for kind in kinds:
            if kind.needed <= found:
                names = sorted(kind.needed | (kind.optional & found), key=lambda n: (n != "id", n))
                return kind, names
        wanted = " nor ".join(f"{kind.name}'s ({', '.join(sorted(kind.needed))})" for kind in kinds)
        raise SchemaError(f"the table {self._place} has not the columns of {wanted}")

    def _as_seen(self, old: Old, values: dict[str, Any]) -> Iterator[str]:
        """The conditions that a row is what it was; what they compare with goes into values."""
        for name, value in old.values.items():
            stored = self._stored(name)
            if value is None:
                yield f"{stored} IS NULL"
            else:
                parameter = f"p{len(values)}"
                values[parameter] = value
                yield f"{stored} = :{parameter}"

    def _stored(self, name: str, *, as_bytes: bool = False) -> str:
        """A column as it is read; the payload as bytes, whatever it holds."""
        quoted = self._connector.quote(name)
        as_bytes = as_bytes or name == "data"
        return self._connector.dialect.payload.format(quoted) if as_bytes else quoted

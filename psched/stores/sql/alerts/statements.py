"""The statements about the table of alerts, as SQL text."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import TextClause, text

from psched.base.texts import storable
from psched.core.alerts.alert import Alert, deliveries_in, deliveries_text, names_in, names_text
from psched.core.alerts.protocol import AlertSelection
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.history.statements import LABEL_LENGTH, REASON_LENGTH

Request = tuple[TextClause, dict[str, Any]]

COLUMNS = tuple(field.name for field in fields(Alert))

_SUBJECT = ("key", "host", "rule")

IDENTITY = (*_SUBJECT, "since")
"""The columns that identify an alert, which have a unique index."""

RULE_LENGTH = 32

_GIVEN = (*IDENTITY, "type", "label", "scheduled_time", "text", "on_raise", "on_close")
"""The columns whose values the caller of `insert` gives."""

_NONE = names_text(())
"""The text of no names."""


class NumberedAlert(NamedTuple):
    """A row of the table."""

    id: int
    alert: Alert

    @property
    def place(self) -> tuple[int, int]:
        """The place of the row in a listing, see `AlertStatements.select`."""
        return self.alert.raised, self.id


class AlertStatements:
    """Every statement that psched sends about the table of alerts.

    Args:
        table: the name of the table of schedules, which contains no character to be quoted.
        dialect: contains the SQL fragments that differ between databases.
        quote: quotes an identifier.
    """

    def __init__(self, table: str, dialect: Dialect, quote: Callable[[str], str]) -> None:
        self.name = f"{table}_alerts"
        self._table = quote(self.name)
        self._quote = quote
        self._dialect = dialect
        read = ["id", *COLUMNS]
        self._columns = ", ".join(map(quote, read))
        every = ", ".join(map(quote, [*read, "closed_id"]))
        # This statement reads no row, but fails if the table does not exist, or lacks a column.
        check = text(f"SELECT {every} FROM {self._table} WHERE 1 = 0")
        # Each of these statements changes no row, and fails if the user does not have the right.
        self.rights = {
            "SELECT": check,
            "INSERT": text(
                f"INSERT INTO {self._table} ({every}) SELECT {every} FROM {self._table} WHERE 1 = 0"
            ),
            "UPDATE": text(f"UPDATE {self._table} SET fence = fence WHERE 1 = 0"),
            "DELETE": text(f"DELETE FROM {self._table} WHERE 1 = 0"),
        }
        now, integer = dialect.now_milliseconds, dialect.integer
        identity = " AND ".join(f"{quote(name)} = :{name}" for name in IDENTITY)
        # An index refuses an alert that exists, or whose subject has an open one. On PostgreSQL, an
        # error would end the transaction, so the row is left out instead; on the others, see
        # `AlertStore._send`. It is no INSERT … SELECT … WHERE NOT EXISTS, because for such a
        # statement MySQL locks the numbers of the table, so that other monitors' requests fail.
        ignore = "ON CONFLICT DO NOTHING" if dialect.aborts else ""
        self.insert = text(
            f"INSERT INTO {self._table} ({', '.join(map(quote, _GIVEN))},"
            " raised, next_try, deliveries)"
            f" VALUES ({', '.join(f':{name}' for name in _GIVEN)},"
            f" {now}, CASE WHEN :is_told = 1 THEN {now} END, '{{}}') {ignore}"
        )
        # While a monitor delivers, `next_try` is the end of its lease. It must not become earlier,
        # because then another monitor would deliver the same events. `note` makes up for it. Here
        # and below, no column is read after it was set, because MySQL would read the new value.
        self.close = text(
            f"UPDATE {self._table} SET next_try = CASE WHEN on_close = '{_NONE}'"
            f" OR owner IS NOT NULL OR next_try <= {now} THEN next_try ELSE {now} END,"
            f" closed = {now}, closed_text = :closed_text, closed_id = id"
            f" WHERE {identity} AND closed_id = 0"
        )
        self.due = text(
            f"SELECT {self._columns} FROM {self._table} WHERE next_try <= {now}"
            " ORDER BY next_try LIMIT :limit"
        )
        self.take = text(
            f"UPDATE {self._table} SET owner = :owner, fence = fence + 1,"
            f" next_try = {now} + {integer.format(':lease')}"
            f" WHERE {identity} AND fence = :fence AND next_try <= {now}"
        )
        self.note = text(
            f"UPDATE {self._table} SET next_try = CASE WHEN on_close <> '{_NONE}'"
            f" AND closed <> COALESCE({integer.format(':closed')}, -1) THEN {now}"
            f" ELSE {integer.format(':next_try')} END,"
            " deliveries = :deliveries, owner = NULL"
            f" WHERE {identity} AND owner = :owner AND fence = :fence"
        )
        of_subject = " AND ".join(f"{quote(name)} = :{name}{{0}}" for name in _SUBJECT)
        condition = f"{of_subject} AND {quote('since')} = :since{{0}}"
        self._find = ("", f"SELECT {{0}}, {self._columns} FROM {self._table} WHERE {condition}", "")
        place = f"SELECT {{0}} FROM {self._table} WHERE"
        either = f"{place} {condition} UNION ALL {place} {of_subject} AND closed_id = 0"
        self._obstacles = ("", either, "")
        # Such an alert never changes again: it is not open, and no monitor can take it.
        self.old = text(
            f"SELECT id FROM {self._table} WHERE next_try IS NULL AND closed < :before LIMIT :limit"
        )
        self._delete = (f"DELETE FROM {self._table} WHERE id IN (", ":id{0}", ")")

    def find(self, alerts: Sequence[Alert]) -> Request:
        """A request for the rows of alerts: the place of each in this sequence, then its row."""
        return _many(self._find, len(alerts), " UNION ALL "), _identities(alerts)

    def obstacles(self, alerts: Sequence[Alert]) -> Request:
        """A request for the places, in this sequence, of those that cannot be inserted now."""
        return _many(self._obstacles, len(alerts), " UNION ALL "), _identities(alerts)

    def delete(self, ids: Sequence[int]) -> Request:
        """A request that deletes alerts."""
        return _many(self._delete, len(ids)), {f"id{i}": id_ for i, id_ in enumerate(ids)}

    def select(
        self, selection: AlertSelection, *, after: tuple[int, int] | None, limit: int
    ) -> Request:
        """A request that reads one page of alerts, those that were raised last first."""
        values: dict[str, Any] = {"limit": limit}
        conditions, order = list[str](), "raised DESC, id DESC"
        # For each of these, there is an index of the columns and of those of the order.
        if selection.only_open:
            conditions, order = self._within("closed_id", "0", conditions, order)
        if selection.key is not None:
            conditions, order = self._within(self._quote("key"), ":key", conditions, order)
            values["key"] = selection.key
        if selection.rules:
            names = [f"rule{i}" for i in range(len(selection.rules))]
            values.update(zip(names, sorted(selection.rules), strict=True))
            conditions.append(f"{self._quote('rule')} IN ({', '.join(f':{n}' for n in names)})")
        if selection.since is not None:
            conditions.append("raised >= :since")
            values["since"] = selection.since
        if after is not None:
            earlier = self._dialect.after.replace(">", "<")
            conditions.append(earlier.format("raised", "id", ":raised", ":id"))
            values["raised"], values["id"] = after
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return _text(
            f"SELECT {self._columns} FROM {self._table}{where} ORDER BY {order} LIMIT :limit"
        ), values

    def _within(
        self, column: str, value: str, conditions: Sequence[str], order: str
    ) -> tuple[list[str], str]:
        """Add a condition for a column's value, as `Dialect.within_index`, and extend the order."""
        condition, first = self._dialect.within_index
        return [condition.format(column, value), *conditions], f"{first.format(column)}{order}"


def _identities(alerts: Sequence[Alert]) -> dict[str, Any]:
    """The values that identify alerts in a statement, each name with a number."""
    return {
        f"{name}{i}": value
        for i, alert in enumerate(alerts)
        for name, value in identity_of(alert).items()
    }


def identity_of(alert: Alert) -> dict[str, Any]:
    """The values that identify an alert in a statement."""
    return {name: getattr(alert, name) for name in IDENTITY}


def inserted(alert: Alert) -> dict[str, Any]:
    """The values that `AlertStatements.insert` binds."""
    values = {name: getattr(alert, name) for name in _GIVEN}
    return {
        **values,
        "label": None if alert.label is None else storable(alert.label[:LABEL_LENGTH]),
        "text": storable(alert.text[:REASON_LENGTH]),
        "on_raise": names_text(alert.on_raise),
        "on_close": names_text(alert.on_close),
        "is_told": int(bool(alert.on_raise)),
    }


def closing(alert: Alert, why: str) -> dict[str, Any]:
    """The values that `AlertStatements.close` binds."""
    return {**identity_of(alert), "closed_text": storable(why[:REASON_LENGTH])}


def noted(alert: Alert) -> dict[str, Any]:
    """The values that `AlertStatements.note` binds."""
    return {
        **identity_of(alert),
        "owner": alert.owner,
        "fence": alert.fence,
        "closed": alert.closed,
        "next_try": alert.next_try,
        "deliveries": deliveries_text(alert.deliveries),
    }


def numbered_alert(columns: Sequence[Any]) -> NumberedAlert:
    """The row that a statement has read: the id, then `COLUMNS`."""
    id_, *given = columns
    values = dict(zip(COLUMNS, given, strict=True))
    for name in "on_raise", "on_close":
        values[name] = names_in(values[name])
    values["deliveries"] = deliveries_in(values["deliveries"])
    return NumberedAlert(id_, Alert(**values))


@lru_cache(maxsize=64)
def _many(parts: tuple[str, str, str], count: int, separator: str = ", ") -> TextClause:
    head, values, tail = parts
    return text(head + separator.join(values.format(i) for i in range(count)) + tail)


@lru_cache(maxsize=64)
def _text(statement: str) -> TextClause:
    return text(statement)

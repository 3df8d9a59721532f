"""Alerts, in a table beside the table of schedules."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from math import ceil
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import DBAPIError
from typing_extensions import override

from psched.base.texts import storable
from psched.core.alerts.alert import Alert, deliveries_in, deliveries_text, names_in, names_text
from psched.core.alerts.protocol import EVERY_ALERT, AlertSelection, KeepsAlerts
from psched.stores.pages import Page, Pages, batched
from psched.stores.sql import raw_execute
from psched.stores.sql.conditions import Request
from psched.stores.sql.connector import Connector, one_request
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.errors import ErrorKind
from psched.stores.sql.history import LABEL_LENGTH, REASON_LENGTH
from psched.stores.sql.side_tables import PAGE, SideStore, SideTable, Where

COLUMNS = tuple(field.name for field in fields(Alert))

_SUBJECT = ("key", "host", "rule")

IDENTITY = (*_SUBJECT, "since")
"""The columns that identify an alert, which have a unique index."""

RULE_LENGTH = 32

_GIVEN = (*IDENTITY, "type", "label", "scheduled_time", "text", "on_raise", "on_close")
"""The columns whose values the caller of `insert` gives."""

_NONE = names_text(())
"""The text of no names."""


_BATCH = 100
"""The most alerts that one transaction changes, or one statement deletes."""

_identity = attrgetter(*IDENTITY)


class AlertStatements:
    """Every statement that psched sends about the table of alerts."""

    def __init__(self, table: str, dialect: Dialect, quote: Callable[[str], str]) -> None:
        self.table = SideTable(
            f"{table}_alerts",
            dialect,
            quote,
            read=["id", *COLUMNS],
            others=["closed_id"],
            unique=IDENTITY,
        )
        self._table = self.table.quoted
        self._quote = quote
        self._dialect = dialect
        now, integer = dialect.now_milliseconds, dialect.integer
        identity = self.table.one
        # An index refuses an alert that exists, or whose subject has an open one. On PostgreSQL, an
        # error would end the transaction, so the row is left out instead; on the others, see
        # `SqlAlerts._send`. It is no INSERT … SELECT … WHERE NOT EXISTS, because for such a
        # statement MySQL locks the numbers of the table, so that other monitors' requests fail.
        ignore = "ON CONFLICT DO NOTHING" if dialect.aborts else ""
        set_now = {
            "raised": now,
            "next_try": f"CASE WHEN :is_told = 1 THEN {now} END",
            "deliveries": "'{}'",
        }
        self.insert = self.table.insertion(_GIVEN, set_now, ignore)
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
            f"SELECT {self.table.columns} FROM {self._table} WHERE next_try <= {now}"
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
        condition = self.table.each
        # These queries are for `SideTable.for_each`. The first reads the place of each alert and
        # its row, the second the places of those that cannot be inserted now.
        self.find = f"SELECT {{0}}, {self.table.columns} FROM {self._table} WHERE {condition}"
        place = f"SELECT {{0}} FROM {self._table} WHERE"
        self.obstacles = f"{place} {condition} UNION ALL {place} {of_subject} AND closed_id = 0"
        # Such an alert never changes again: it is not open, and no monitor can take it.
        self.old = text(
            f"SELECT id FROM {self._table} WHERE next_try IS NULL AND closed < :before LIMIT :limit"
        )

    def select(
        self, selection: AlertSelection, *, after: tuple[int, int] | None, limit: int
    ) -> Request:
        """A request that reads one page of alerts, those that were raised last first."""
        where, order = Where(), "raised DESC, id DESC"
        # For each of these, there is an index of the columns and of those of the order. An order
        # begins with the column of its index, see `Dialect.within_index`.
        within, first = self._dialect.within_index
        key = self._quote("key")
        if selection.key is not None:
            where.add(within.format(key, ":key"), key=selection.key)
        if selection.only_open:
            where.add(within.format("closed_id", "0"))
            order = f"{first.format('closed_id')}{order}"
        if selection.key is not None:
            order = f"{first.format(key)}{order}"
        if selection.rules:
            where.add(where.one_of(self._quote("rule"), "rule", selection.rules))
        where.add("raised >= :since", since=selection.since)
        if after is not None:
            earlier = self._dialect.after.replace(">", "<").format("raised", "id", ":raised", ":id")
            where.add(earlier, raised=after[0], id=after[1])
        return self.table.page(where, order, limit)


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


def alert_of(columns: Sequence[Any]) -> Alert:
    """The alert in a row that a statement has read: the id, then `COLUMNS`."""
    _, *given = columns
    values = dict(zip(COLUMNS, given, strict=True))
    for name in "on_raise", "on_close":
        values[name] = names_in(values[name])
    values["deliveries"] = deliveries_in(values["deliveries"])
    return Alert(**values)


class SqlAlerts(SideStore, KeepsAlerts):
    """Keeps alerts, as `KeepsAlerts` describes.

    If the outcome of a request is unknown, the request can be repeated, or left:

    - An alert that was raised or closed by the first request is not raised or closed by the second,
      which then does not return it. The delivery is due in any case, and some monitor takes it.
    - An alert that was taken is due again after the lease.
    - Deliveries that were noted have ended the lease, so that the second request stores nothing.
    - An alert that was deleted is not counted again.
    """

    def __init__(
        self, table: str, connector: Connector, check: Callable[[Connection], None]
    ) -> None:
        self._sql = AlertStatements(table, connector.dialect, connector.quote)
        super().__init__(connector, check, self._sql.table)

    @override
    def raise_alerts(self, alerts: Sequence[Alert]) -> Sequence[Alert]:
        self._require()
        # Nearly always, the monitors find again what is known already. So most requests write
        # nothing, and the databases refuse only what another monitor inserts at the same time.
        new = list[Alert]()
        for batch in batched(alerts, _BATCH):
            request = self._sql.table.for_each(self._sql.obstacles, batch)
            known = {int(place) for (place,) in self._query(*request)}
            new += [alert for place, alert in enumerate(batch) if place not in known]
        return self._change(self._sql.insert, new, inserted)

    @override
    def close_alerts(self, alerts: Sequence[Alert], text: str) -> Sequence[Alert]:
        self._require()
        return self._change(self._sql.close, alerts, lambda alert: closing(alert, text))

    @override
    def find_alerts(self, selection: AlertSelection = EVERY_ALERT) -> Iterator[Alert]:
        self._require()

        def read(place: Any, most: int) -> Page[Alert]:  # noqa: ANN401  # when raised, and the id
            request = self._sql.select(selection, after=place or None, limit=most)
            found = self._query(*request)
            alerts = [*map(alert_of, found)]
            is_last = len(found) < most
            return Page(alerts, None if is_last else (alerts[-1].raised, found[-1][0]))

        return Pages(read, selection.limit, PAGE)

    @override
    @one_request
    def take_alerts(self, owner: str, *, lease: float, limit: int) -> Sequence[Alert]:
        # Other monitors can read the same alerts. The fence shows that one of them has taken an
        # alert meanwhile, and the due time that the lease of that monitor has not ended.
        self._require()
        found = self._query(self._sql.due, {"limit": limit})
        due = [*map(alert_of, found)]
        wanted = {"owner": owner, "lease": ceil(lease * 1000)}
        return self._change(
            self._sql.take,
            due,
            lambda alert: {**identity_of(alert), **wanted, "fence": alert.fence},
        )

    @override
    def note_deliveries(self, alert: Alert) -> bool:
        self._require()
        return self._write(self._sql.note, noted(alert)) == 1

    @override
    @one_request
    def trim_alerts(self, *, before: int, limit: int) -> int:
        self._require()
        old = [id_ for (id_,) in self._query(self._sql.old, {"before": before, "limit": limit})]
        requests = map(self._sql.table.delete, batched(old, _BATCH))
        return sum(self._write(*request) for request in requests)

    def _change(
        self,
        statement: TextClause,
        alerts: Sequence[Alert],
        values_of: Callable[[Alert], Mapping[str, Any]],
    ) -> list[Alert]:
        """Send a statement for each alert; return those that it has changed, as they are stored."""
        # Transactions that lock the rows in the same order do not wait for each other in a circle.
        places = sorted(range(len(alerts)), key=lambda place: _identity(alerts[place]))
        changed = dict[int, Alert]()
        for batch in batched(places, _BATCH):
            written = self._change_batch(statement, [alerts[i] for i in batch], values_of)
            changed |= {batch[place]: alert for place, alert in written.items()}
        return [changed[place] for place in sorted(changed)]

    @one_request
    def _change_batch(
        self,
        statement: TextClause,
        batch: Sequence[Alert],
        values_of: Callable[[Alert], Mapping[str, Any]],
    ) -> Mapping[int, Alert]:
        """Send the statement for each alert of a batch in one transaction.

        Returns the alerts that were changed, by their places in the batch.
        """
        values = [values_of(alert) for alert in batch]

        def write(connection: Connection) -> Mapping[int, Alert]:
            places = [i for i, each in enumerate(values) if self._send(connection, statement, each)]
            if not places:
                return {}
            # Until the transaction ends, nobody else can change these rows.
            written = [batch[place] for place in places]
            request = self._sql.table.for_each(self._sql.find, written)
            self._connector.step()
            found = raw_execute.rows(connection, *request)
            return {places[int(i)]: alert_of(columns) for i, *columns in found}

        return self._connector.transact(write, patient=False)

    def _send(
        self, connection: Connection, statement: TextClause, values: Mapping[str, Any]
    ) -> bool:
        """Send a statement in a transaction; return whether it has inserted or updated a row."""
        self._connector.step()
        try:
            return raw_execute.count(connection, statement, values) == 1
        except DBAPIError as error:
            # MySQL and SQLite undo only the statement, so the transaction continues.
            kind = self._connector.dialect.classify(error.orig or error)
            if kind is ErrorKind.DUPLICATE:
                return False
            raise

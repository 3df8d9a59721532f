"""Keeps alerts in a table beside the table of schedules."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, TextClause
from sqlalchemy.exc import DBAPIError
from typing_extensions import override

from psched.base.clock import Clock
from psched.base.errors import SchemaError
from psched.core.alerts.alert import Alert
from psched.core.alerts.protocol import EVERY_ALERT, AlertSelection
from psched.stores.parameters import StoreParameters
from psched.stores.sql import raw_execute
from psched.stores.sql.alerts.statements import (
    IDENTITY,
    AlertStatements,
    NumberedAlert,
    closing,
    identity_of,
    inserted,
    noted,
    numbered_alert,
)
from psched.stores.sql.errors import ErrorKind
from psched.stores.sql.history.store import Pages
from psched.stores.sql.pauses.store import PauseStore
from psched.stores.sql.table_store import S, one_request

_BATCH = 100
"""The most alerts that one transaction changes, or one statement deletes."""

_identity = attrgetter(*IDENTITY)


class AlertStore(PauseStore[S]):
    """A store that keeps alerts in ``<table>_alerts``, as `KeepsAlerts` describes.

    A subclass sets ``_alerts_problem`` when it connects.

    If the outcome of a request is unknown, the request can be repeated, or left:

    - An alert that was raised or closed by the first request is not raised or closed by the second,
      which then does not return it. The delivery is due in any case, and some monitor takes it.
    - An alert that was taken is due again after the lease.
    - Deliveries that were noted have ended the lease, so that the second request stores nothing.
    - An alert that was deleted is not counted again.

    Args:
        parameters: the settings of the store.
        rng: random generator for the pauses between tries to get SQLite's write lock.
    """

    def __init__(self, parameters: StoreParameters, *, clock: Clock, rng: random.Random) -> None:
        super().__init__(parameters, clock=clock, rng=rng)
        connector = self._connector
        self._alerts = AlertStatements(parameters.table, connector.dialect, connector.quote)
        self._alerts_problem: str | None = "not connected yet"

    def alerts_problem(self) -> str | None:
        """Why no alerts are kept, as `KeepsAlerts.alerts_problem` describes."""
        # The version is read again, because somebody may have run `psched init` meanwhile.
        self._connector.read(self._check)
        return self._alerts_problem

    @override
    def try_rights(self) -> None:
        super().try_rights()
        if self._alerts_problem is None:
            self._try_each(self._alerts.rights, self._alerts.name)

    def raise_alerts(self, alerts: Sequence[Alert]) -> Sequence[Alert]:
        """Insert alerts, as `KeepsAlerts.raise_alerts` describes."""
        self._require_alerts()
        # Nearly always, the monitors find again what is known already. So most requests write
        # nothing, and the databases refuse only what another monitor inserts at the same time.
        new = list[Alert]()
        for start in range(0, len(alerts), _BATCH):
            batch = alerts[start : start + _BATCH]
            known = {int(place) for (place,) in self._query(*self._alerts.obstacles(batch))}
            new += [alert for place, alert in enumerate(batch) if place not in known]
        return self._change(self._alerts.insert, new, inserted)

    def close_alerts(self, alerts: Sequence[Alert], text: str) -> Sequence[Alert]:
        """Close alerts, as `KeepsAlerts.close_alerts` describes."""
        self._require_alerts()
        return self._change(self._alerts.close, alerts, lambda alert: closing(alert, text))

    def alerts(self, selection: AlertSelection = EVERY_ALERT) -> Iterator[Alert]:
        """The alerts of a selection, as `KeepsAlerts.alerts` describes."""
        self._require_alerts()
        last: tuple[int, int] | None = None

        def read(_before: int | None, limit: int) -> list[NumberedAlert]:
            nonlocal last
            request = self._alerts.select(selection, after=last, limit=limit)
            found = [numbered_alert(columns) for columns in self._query(*request)]
            last = found[-1].place if found else last
            return found

        return map(attrgetter("alert"), Pages(read, selection.limit))

    @one_request
    def take_alerts(self, owner: str, *, lease: float, limit: int) -> Sequence[Alert]:
        """Lease alerts whose deliveries are due, as `KeepsAlerts.take_alerts` describes.

        Other monitors can read the same alerts. The fence shows that one of them has taken an alert
        meanwhile, and the due time that the lease of that monitor has not ended.
        """
        self._require_alerts()
        found = self._query(self._alerts.due, {"limit": limit})
        due = [numbered_alert(columns).alert for columns in found]
        wanted = {"owner": owner, "lease": ceil(lease * 1000)}
        return self._change(
            self._alerts.take,
            due,
            lambda alert: {**identity_of(alert), **wanted, "fence": alert.fence},
        )

    def note_deliveries(self, alert: Alert) -> bool:
        """Store deliveries, as `KeepsAlerts.note_deliveries` describes."""
        self._require_alerts()
        return self._write(self._alerts.note, noted(alert)) == 1

    @one_request
    def trim_alerts(self, *, before: int, limit: int) -> int:
        """Delete old alerts, as `KeepsAlerts.trim_alerts` describes."""
        self._require_alerts()
        old = [id_ for (id_,) in self._query(self._alerts.old, {"before": before, "limit": limit})]
        batches = (old[start : start + _BATCH] for start in range(0, len(old), _BATCH))
        return sum(self._write(*self._alerts.delete(batch)) for batch in batches)

    def _change(
        self,
        statement: TextClause,
        alerts: Sequence[Alert],
        values_of: Callable[[Alert], Mapping[str, Any]],
    ) -> list[Alert]:
        """Send a statement for each alert.

        Returns:
            The alerts whose row it has inserted or updated, as they are stored, in the given order.
        """
        # Transactions that lock the rows in the same order do not wait for each other in a circle.
        places = sorted(range(len(alerts)), key=lambda place: _identity(alerts[place]))
        changed = dict[int, Alert]()
        for start in range(0, len(places), _BATCH):
            batch = places[start : start + _BATCH]
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
        """Send a statement for each alert, in one transaction.

        Returns:
            The alerts whose row was inserted or updated, by their places in the batch.
        """
        values = [values_of(alert) for alert in batch]

        def write(connection: Connection) -> Mapping[int, Alert]:
            places = [i for i, each in enumerate(values) if self._send(connection, statement, each)]
            if not places:
                return {}
            # Until the transaction ends, nobody else can change these rows.
            request = self._alerts.find([batch[place] for place in places])
            self._connector.step()
            found = raw_execute.rows(connection, *request)
            return {places[int(i)]: numbered_alert(columns).alert for i, *columns in found}

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

    def _require_alerts(self) -> None:
        """Raise an error if no alerts are kept."""
        if self._alerts_problem is not None and (problem := self.alerts_problem()) is not None:
            raise SchemaError(problem)

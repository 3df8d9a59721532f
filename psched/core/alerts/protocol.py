"""The part of a store that keeps alerts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from psched.core.alerts.alert import Alert


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSelection:
    """The alerts that `KeepsAlerts.find_alerts` returns: those that fulfil everything.

    Attributes:
        key: the key of the schedule; None means every key and every host.
        rules: the rules; empty means every rule.
        only_open: whether closed alerts are left out.
        since: the earliest ``raised``, in milliseconds; None means the oldest alert.
        limit: the largest number of alerts; None means no limit.
    """

    key: str | None = None
    rules: frozenset[str] = frozenset()
    only_open: bool = False
    since: int | None = None
    limit: int | None = None


EVERY_ALERT = AlertSelection()
"""The selection of all alerts."""


class KeepsAlerts(Protocol):
    """The attribute ``alerts`` of a `psched.core.store_protocol.Store`: it keeps alerts.

    Several monitors use the same store at the same time. Each alert is raised, closed and delivered
    by one of them: the store decides by which.

    Every method can raise the exceptions of the methods of a store. If `problem` returns a problem,
    the monitors call no other method of this protocol, and the others may raise a
    `psched.errors.SchemaError`.
    """

    def problem(self) -> str | None:
        """Why no alerts are kept, for example because no table exists; None if they are."""
        ...

    def raise_alerts(self, alerts: Sequence[Alert]) -> Sequence[Alert]:
        """Insert alerts, except those that exist, and those whose subject has an open alert.

        The store sets ``raised`` to its present time. If ``on_raise`` names a hook, it sets
        ``next_try`` to that time, too; else to None. It ignores the fields of what happens later:
        ``closed``, ``closed_text``, ``deliveries``, ``owner`` and ``fence``.

        Returns:
            The alerts that were inserted, as they are stored.
        """
        ...

    def close_alerts(self, alerts: Sequence[Alert], text: str) -> Sequence[Alert]:
        """Close alerts that are open; an alert that was closed meanwhile stays as it is.

        The store sets ``closed`` to its present time, and ``closed_text`` to the text. If
        ``on_close`` names a hook, it sets ``next_try`` to its present time, unless an earlier one
        is stored, or a monitor is delivering the alert: see `note_deliveries`.

        Returns:
            The alerts that this call has closed, as they are stored.
        """
        ...

    def find_alerts(self, selection: AlertSelection = EVERY_ALERT) -> Iterator[Alert]:
        """The alerts of a selection, those that were raised last first."""
        ...

    def take_alerts(self, owner: str, *, lease: float, limit: int) -> Sequence[Alert]:
        """Lease alerts whose deliveries are due, so that no other monitor delivers them meanwhile.

        The store increases ``fence``, sets ``owner``, and sets ``next_try`` to the end of the
        lease. If the monitor dies, the deliveries are due again after that time.

        Args:
            owner: a text that no other monitor uses.
            lease: the length of the lease in seconds.
            limit: the largest number of alerts.

        Returns:
            The alerts that are now leased, as they are stored, those due longest first.
        """
        ...

    def note_deliveries(self, alert: Alert) -> bool:
        """Store ``deliveries`` and ``next_try`` of a leased alert, and end the lease.

        If the alert was closed since it was taken, so that ``closed`` differs, and ``on_close``
        names a hook, the store sets ``next_try`` to its present time: what `close_alerts` has left
        to do is then done.

        Returns:
            Whether the lease was still held, by ``owner`` and ``fence``; if not, nothing is stored.
        """
        ...

    def trim_alerts(self, *, before: int, limit: int) -> int:
        """Delete alerts that were closed before a time and have no delivery left.

        Args:
            before: the time in milliseconds.
            limit: the largest number of alerts to delete.

        Returns:
            The number of deleted alerts.
        """
        ...

"""The methods of a collection of schedules that read alerts, and close them by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psched.base.errors import InvalidError, NotSupportedError
from psched.base.retry import read_each
from psched.client.arguments import chosen_key
from psched.client.operations.present import CollectionOfPresent
from psched.core.selection import check_limit, chosen_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from psched.core.alerts.alert import Alert
    from psched.core.alerts.protocol import KeepsAlerts
    from psched.core.schedule import Since


class CollectionOfAlerts(CollectionOfPresent):
    """The part of `psched.ScheduleCollection` that reads and closes alerts."""

    def alerts(
        self,
        key: str | None = None,
        *,
        rule: str | Iterable[str] | None = None,
        only_open: bool = True,
        since: Since | None = None,
        limit: int | None = None,
    ) -> Iterator[Alert]:
        """Read alerts, those that were raised last first.

        Args:
            key: the key of a schedule, also of a deleted one; None means every schedule and host.
            rule: only alerts of this rule, or of these; None means every rule.
            only_open: whether alerts that are over are left out.
            since: the earliest ``raised``, as in `runs`; None means the oldest that is kept.
            limit: the largest number of alerts; None means no limit.

        Raises:
            InvalidError: a value is invalid; the error's ``field`` is the name of the argument.
            NotSupportedError: the store keeps no alerts now; the text names the fix.
        """
        # Imported here, as in `CollectionChanges`.
        from psched.core.alerts.alert import Rule  # noqa: PLC0415
        from psched.core.alerts.protocol import AlertSelection  # noqa: PLC0415

        rules = chosen_texts("rule", rule)
        if unknown := rules - {*Rule}:
            raise InvalidError(
                "rule", f"{min(unknown)!r} is unknown; choose from {', '.join(Rule)}"
            )
        check_limit(limit)
        store = self._keeping_alerts()
        selection = AlertSelection(
            key=chosen_key(key),
            rules=rules,
            only_open=only_open,
            since=None if since is None else self._earliest(since),
            limit=limit,
        )
        return read_each(self._send, self._send(lambda: store.alerts(selection)))

    def close_alerts(self, alerts: Sequence[Alert], text: str) -> Sequence[Alert]:
        """Close open alerts by hand. The same incident is not told of again.

        Args:
            alerts: the alerts.
            text: why, and who says so.

        Returns:
            The alerts that this call has closed.

        Raises:
            NotSupportedError: the store keeps no alerts now; the text names the fix.
        """
        store = self._keeping_alerts()
        return self._send(lambda: store.close_alerts(alerts, text))

    def _keeping_alerts(self) -> KeepsAlerts:
        from psched.core.alerts.protocol import KeepsAlerts  # noqa: PLC0415

        store = self._store
        if not isinstance(store, KeepsAlerts):
            raise NotSupportedError(
                "this store keeps no alerts; psched's own table does, and so does a store of your"
                " own that has the methods of KeepsAlerts"
            )
        if (problem := self._send(store.alerts_problem)) is not None:
            raise NotSupportedError(f"there are no alerts: {problem}")
        return store

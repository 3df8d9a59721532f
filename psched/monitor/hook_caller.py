"""Calls the hooks of the configuration about alerts."""

from collections.abc import Collection

from psched.config import Config
from psched.config.monitoring.hooks import TaskHook
from psched.core.alerts.alert import Alert
from psched.core.alerts.hooks import hooks_of
from psched.core.history.redaction import Redaction
from psched.notify.hooks import Deliverers
from psched.notify.notification import Notification


class HookCaller:
    """Delivers events of alerts; see `psched.monitor.delivering.Deliverer`.

    Args:
        deliverers: the hooks.
        settings: the settings of the installation.
        host: the name of this host.
    """

    def __init__(self, deliverers: Deliverers, settings: Config, host: str) -> None:
        self._deliverers = deliverers
        self._settings = settings
        self._host = host
        self._redaction = Redaction(settings.redact)

    @property
    def names(self) -> Collection[str]:
        """The names of the hooks."""
        return self._deliverers.keys()

    def tries(self, hook: str) -> int:
        """The largest number of tries of a delivery by a hook."""
        return self._deliverers[hook].tries

    def deliver(self, hook: str, event: str, alert: Alert) -> None:
        """Deliver an event by a hook.

        Args:
            hook: the name of the hook.
            event: ``raised`` or ``closed``.
            alert: the alert.

        Raises:
            DeliveryError: it was not delivered.
        """
        self._deliverers[hook].deliver(
            Notification(
                event=event,
                alert=alert,
                installation=self._settings.table,
                host=self._host,
                redaction=self._redaction,
            )
        )


def hooks_without_store(rule: str, settings: Config) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The hooks that are told about an alert, without those that need the store."""

    def kept(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if not isinstance(settings.hooks.get(name), TaskHook))

    told, told_later = hooks_of(rule, settings)
    return kept(told), kept(told_later)

"""Calls the hooks of the configuration about alerts."""

from psched.config import Config
from psched.config.monitoring.hooks import TaskHook
from psched.core.alerts.alert import Alert
from psched.core.alerts.hooks import hooks_of
from psched.core.history.redaction import Redaction
from psched.monitor.delivering import DeliveryFailedError
from psched.notify.delivery import DeliveryError, next_wait
from psched.notify.hooks import Deliverers
from psched.notify.notification import Notification


class HookCaller:
    """Delivers events of alerts; see `psched.monitor.delivering.Deliver`.

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

    def __call__(self, hook: str, event: str, alert: Alert, tries: int) -> None:
        """Deliver an event by a hook.

        Args:
            hook: the name of the hook.
            event: ``raised`` or ``closed``.
            alert: the alert.
            tries: how often this was tried before.

        Raises:
            DeliveryFailedError: it was not delivered.
        """
        notification = Notification(
            event=event,
            alert=alert,
            installation=self._settings.table,
            host=self._host,
            redaction=self._redaction,
        )
        try:
            deliverer = self._deliverers.named(hook)
        except DeliveryError as error:
            # Another host may define the hook. Its monitor can take the next try.
            raise DeliveryFailedError(str(error), next_wait(tries + 1)) from None
        try:
            deliverer.deliver(notification)
        except DeliveryError as error:
            wait = next_wait(tries + 1, deliverer.tries) if error.retry else None
            raise DeliveryFailedError(str(error), wait) from None


def hooks_without_store(rule: str, settings: Config) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The hooks that are told about an alert, without those that need the store."""

    def kept(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if not isinstance(settings.hooks.get(name), TaskHook))

    told, told_later = hooks_of(rule, settings)
    return kept(told), kept(told_later)

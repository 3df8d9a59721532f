"""The hooks of a configuration, ready to deliver."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from psched.base.clock import Clock
from psched.base.errors import AlreadyExistsError, InvalidError, PschedError
from psched.base.exec_data import EXEC_TYPE
from psched.base.texts import brief
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.config.monitoring.hooks import ON_SETTINGS, CommandHook, Hook, MailHook, TaskHook
from psched.notify.http_client import HttpClient
from psched.notify.mail import MailDeliverer
from psched.notify.notification import Deliverer, DeliveryError, Notification
from psched.notify.program import CommandDeliverer
from psched.notify.webhook import WebhookDeliverer

FIELD = "notification"  # the field of the task's data that contains the notification

FIELD_OF_EXEC = "data"
"""The same if the type is ``exec``: its program gets what stands under ``data``."""


class TaskDeliverer:
    """Submits a task for each notification.

    The key of the task is computed from the event, so an event is submitted once, however often it
    is tried. The task names no hooks: if it fails, no hook is told, because that could go on for
    ever.
    """

    def __init__(
        self,
        name: str,
        hook: TaskHook,
        open_schedules: Callable[[], AbstractContextManager[ScheduleCollection]],
    ) -> None:
        self._name = name
        self._hook = hook
        self._open = open_schedules
        self.tries = hook.tries

    def deliver(self, notification: Notification) -> None:
        """Submit a task; see `psched.notify.notification.Deliverer`."""
        field = FIELD_OF_EXEC if self._hook.type == EXEC_TYPE else FIELD
        data = {**self._hook.data, field: notification.body}
        nobody: dict[str, Any] = dict.fromkeys(ON_SETTINGS, ())
        try:
            with self._open() as schedules:
                schedules.push(self.key_of(notification), self._hook.type, data, **nobody)
        except AlreadyExistsError:
            return  # an earlier try has submitted it
        except InvalidError as error:
            raise DeliveryError(brief(str(error)), retry=False) from None
        except (PschedError, OSError) as error:
            raise DeliveryError(brief(str(error)), retry=True) from None

    def key_of(self, notification: Notification) -> str:
        """The key of the task."""
        return f"psched-hook.{self._name}.{notification.id}"


def deliverers(
    settings: Config,
    open_schedules: Callable[[], AbstractContextManager[ScheduleCollection]],
    clock: Clock,
) -> Mapping[str, Deliverer]:
    """What delivers notifications by the hooks of a configuration, by their names."""
    http = HttpClient(allowed=settings.allow_private_addresses, clock=clock)

    def made(name: str, hook: Hook) -> Deliverer:
        if isinstance(hook, CommandHook):
            return CommandDeliverer(hook)
        if isinstance(hook, MailHook):
            return MailDeliverer(hook, clock)
        if isinstance(hook, TaskHook):
            return TaskDeliverer(name, hook, open_schedules)
        return WebhookDeliverer(hook, http, clock)

    return {name: made(name, hook) for name, hook in settings.hooks.items()}

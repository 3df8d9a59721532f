"""Hooks that submit a one-off task: the only kind that uses the queue."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from psched.base.errors import AlreadyExistsError, InvalidError, PschedError
from psched.base.exec_data import EXEC_TYPE
from psched.base.texts import brief
from psched.client.collection import ScheduleCollection
from psched.config.monitoring.hooks import ON_SETTINGS, TaskHook
from psched.notify.delivery import DeliveryError
from psched.notify.notification import Notification

FIELD = "notification"
"""The field of the task's data that contains the notification."""

FIELD_OF_EXEC = "data"
"""The same for tasks of type ``exec``, whose data can have no field of another name."""


class TaskDeliverer:
    """Submits a task for each notification.

    The key of the task is computed from the event, so an event is submitted once, however often it
    is tried. The task names no hooks: if it fails, no hook is told, because that could go on for
    ever.

    Args:
        name: the name of the hook.
        hook: the definition.
        open_schedules: opens the collection of schedules.
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
        """Submit a task; see `psched.notify.delivery.Deliverer`."""
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

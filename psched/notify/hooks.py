"""The hooks of a configuration, ready to deliver."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from psched.base.clock import Clock
from psched.base.errors import AlreadyExistsError, InvalidError, PschedError
from psched.base.exec_data import EXEC_TYPE
from psched.base.texts import brief
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.config.monitoring import ON_SETTINGS, CommandHook, Hook, MailHook, TaskHook
from psched.notify.http_client import HttpClient
from psched.notify.mail import send_mail
from psched.notify.notification import Deliver, DeliveryError, Notification
from psched.notify.program import run_for
from psched.notify.webhook import send_request

FIELD = "notification"
"""The field of the task's data that contains the notification."""

FIELD_OF_EXEC = "data"
"""The field that contains it in a task of type ``exec``, whose program gets what is in ``data``."""


def submit_task(
    name: str,
    hook: TaskHook,
    open_schedules: Callable[[], AbstractContextManager[ScheduleCollection]],
    notification: Notification,
) -> None:
    """Submit a task for a notification.

    Its key is computed from the event, so an event is submitted once, however often it is tried.
    The task names no hooks: if it fails, no hook is told, because that could go on for ever.
    """
    field = FIELD_OF_EXEC if hook.type == EXEC_TYPE else FIELD
    data = {**hook.data, field: notification.body}
    nobody: dict[str, Any] = dict.fromkeys(ON_SETTINGS, ())
    try:
        with open_schedules() as schedules:
            schedules.push(f"psched-hook.{name}.{notification.id}", hook.type, data, **nobody)
    except AlreadyExistsError:
        return  # an earlier try has submitted it
    except InvalidError as error:
        raise DeliveryError(brief(str(error)), retry=False) from None
    except (PschedError, OSError) as error:
        raise DeliveryError(brief(str(error)), retry=True) from None


def deliverers(
    settings: Config,
    open_schedules: Callable[[], AbstractContextManager[ScheduleCollection]],
    clock: Clock,
) -> Mapping[str, Deliver]:
    """What delivers notifications by the hooks of a configuration, by their names."""
    http = HttpClient(allowed=settings.allow_private_addresses, clock=clock)

    def made(name: str, hook: Hook) -> Deliver:
        if isinstance(hook, CommandHook):
            return partial(run_for, hook)
        if isinstance(hook, MailHook):
            return partial(send_mail, hook, clock)
        if isinstance(hook, TaskHook):
            return partial(submit_task, name, hook, open_schedules)
        return partial(send_request, hook, http, clock)

    return {name: made(name, hook) for name, hook in settings.hooks.items()}

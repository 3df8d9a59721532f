"""The hooks of a configuration, ready to deliver."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager

from psched.base.clock import Clock
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.config.monitoring.hooks import CommandHook, Hook, MailHook, TaskHook
from psched.notify.command import CommandDeliverer
from psched.notify.delivery import Deliverer, DeliveryError
from psched.notify.http_client import HttpClient
from psched.notify.mail import MailDeliverer
from psched.notify.task import TaskDeliverer
from psched.notify.webhook import WebhookDeliverer


class Deliverers(Mapping[str, Deliverer]):
    """Delivers notifications by the hooks of a configuration, by their names.

    Args:
        settings: the configuration.
        open_schedules: opens the collection of schedules, for hooks that submit tasks.
        clock: tells the time, and measures time limits.
    """

    def __init__(
        self,
        settings: Config,
        open_schedules: Callable[[], AbstractContextManager[ScheduleCollection]],
        clock: Clock,
    ) -> None:
        http = HttpClient(allowed=settings.allow_private_addresses, clock=clock)

        def made(name: str, hook: Hook) -> Deliverer:
            if isinstance(hook, CommandHook):
                return CommandDeliverer(hook)
            if isinstance(hook, MailHook):
                return MailDeliverer(hook, clock)
            if isinstance(hook, TaskHook):
                return TaskDeliverer(name, hook, open_schedules)
            return WebhookDeliverer(hook, http, clock)

        self._made = {name: made(name, hook) for name, hook in settings.hooks.items()}

    def __getitem__(self, name: str) -> Deliverer:
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def named(self, name: str) -> Deliverer:
        """The deliverer of a hook."""
        if name not in self._made:
            raise DeliveryError(f"hooks does not define {name} on this host", retry=True)
        return self._made[name]

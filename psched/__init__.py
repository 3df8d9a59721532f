"""psched: a highly available cron and task queue on the database you already run.

>>> import psched
>>> with psched.open("psched.yml") as schedules:
...     schedules.add("s1", "user_task", cron="* * * * *", data={"k": 1})

Reading order for the source: `model`, `backend`, `policy`, `leaser`, `tasks`, `worker`,
`supervisor.master`, `app`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psched.app import open_schedules as open  # noqa: A004  # the seeds' word
    from psched.application.task import Task
    from psched.base.errors import (
        AlreadyExistsError,
        AlreadyFinishedError,
        ConfigError,
        InvalidError,
        NotFoundError,
        NotSupportedError,
        PreemptedError,
        ProcessStopError,
        ScheduleError,
        StoreError,
        StoreUnavailableError,
    )
    from psched.client.collection import ScheduleCollection
    from psched.client.schedule import Schedule, ScheduleMetadata
    from psched.service.embedded import Worker
    from psched.service.start import start

_HOMES = {
    "open": "psched.app:open_schedules",
    "ScheduleCollection": "psched.client.collection",
    "Schedule": "psched.client.schedule",
    "ScheduleMetadata": "psched.client.schedule",
    "Task": "psched.application.task",
    "Worker": "psched.service.embedded",
    "start": "psched.service.start",
    **dict.fromkeys(
        (
            "AlreadyExistsError",
            "AlreadyFinishedError",
            "ConfigError",
            "InvalidError",
            "NotFoundError",
            "NotSupportedError",
            "PreemptedError",
            "ProcessStopError",
            "ScheduleError",
            "StoreError",
            "StoreUnavailableError",
        ),
        "psched.base.errors",
    ),
}

__all__ = [
    "AlreadyExistsError",
    "AlreadyFinishedError",
    "ConfigError",
    "InvalidError",
    "NotFoundError",
    "NotSupportedError",
    "PreemptedError",
    "ProcessStopError",
    "Schedule",
    "ScheduleCollection",
    "ScheduleError",
    "ScheduleMetadata",
    "StoreError",
    "StoreUnavailableError",
    "Task",
    "Worker",
    "open",
    "start",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  # PEP 562
    # `import psched` alone loads neither SQLAlchemy nor anything else that takes time.
    if name not in _HOMES:
        raise AttributeError(f"module 'psched' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    value = getattr(import_module(module), attribute or name)
    globals()[name] = value
    return value

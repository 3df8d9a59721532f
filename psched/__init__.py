"""psched: a highly available cron and task queue on the database you already run.

>>> import psched
>>> with psched.open("psched.yml") as schedules:
...     schedules.add("s1", "user_task", cron="* * * * *", data={"k": 1})

docs/architecture.md describes the structure of the source.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psched.app import open_schedules
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
        PschedError,
        ScheduleError,
        StoreError,
        StoreUnavailableError,
        TransientStoreError,
        UnknownOutcomeError,
    )
    from psched.client.collection import ScheduleCollection
    from psched.core.history.run import Run
    from psched.core.history.task_end import TaskEnd
    from psched.core.output.output import Output
    from psched.core.schedule import Schedule, Schedules
    from psched.core.schedule_metadata import ScheduleMetadata
    from psched.service.embedded import Worker
    from psched.service.functions.app import App
    from psched.service.start import start

    open = open_schedules  # noqa: A001  # PerfectSched's name

_MODULES = {
    "App": "psched.service.functions.app",
    "open": "psched.app:open_schedules",
    "Output": "psched.core.output.output",
    "Run": "psched.core.history.run",
    "Schedule": "psched.core.schedule",
    "ScheduleCollection": "psched.client.collection",
    "ScheduleMetadata": "psched.core.schedule_metadata",
    "Schedules": "psched.core.schedule",
    "Task": "psched.application.task",
    "TaskEnd": "psched.core.history.task_end",
    "Worker": "psched.service.embedded",
    "start": "psched.service.start",
}
"""For each public name: the module that defines it, as ``module``.

The form is ``module:name`` if the module uses a different name. Public names that are missing here
are in `psched.base.errors`.
"""

__all__ = [
    "AlreadyExistsError",
    "AlreadyFinishedError",
    "App",
    "ConfigError",
    "InvalidError",
    "NotFoundError",
    "NotSupportedError",
    "Output",
    "PreemptedError",
    "ProcessStopError",
    "PschedError",
    "Run",
    "Schedule",
    "ScheduleCollection",
    "ScheduleError",
    "ScheduleMetadata",
    "Schedules",
    "StoreError",
    "StoreUnavailableError",
    "Task",
    "TaskEnd",
    "TransientStoreError",
    "UnknownOutcomeError",
    "Worker",
    "start",
]
# `open` is public, but is not in ``__all__``: a star import must not replace Python's own `open`.


def __getattr__(name: str) -> Any:  # noqa: ANN401  # PEP 562
    # A name is imported when it is first used, so that `import psched` alone loads neither
    # SQLAlchemy nor any other slow module.
    if name not in {*__all__, "open"}:
        raise AttributeError(f"module 'psched' has no attribute {name!r}")
    module, _, attribute = _MODULES.get(name, "psched.base.errors").partition(":")
    value = getattr(import_module(module), attribute or name)
    globals()[name] = value
    return value

"""psched: a highly available cron and task queue on the database you already run.

>>> import psched
>>> with psched.open("psched.yml") as schedules:
...     schedules.add("s1", "user_task", cron="* * * * *", data={"k": 1})

`open` opens a collection of schedules (`ScheduleCollection`). `start` makes a program a service
that runs its own jobs; `Worker.run` makes it one that runs the tasks of a collection. A handler
gets a `Task`. Every error is a `PschedError`, except `ProcessStopError`. What requests return
(`Run`, `TaskEnd`, `ScheduleMetadata` …) does not change, so any thread can use it; each other class
says which threads and forked processes can use it.

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
        MissingDatabaseError,
        MissingTableError,
        NotFoundError,
        NotLoadedError,
        NotSupportedError,
        PreemptedError,
        ProcessStopError,
        PschedError,
        ScheduleError,
        SchemaError,
        StoreBusyError,
        StoreError,
        StoreSlowError,
        StoreUnavailableError,
        TransientStoreError,
        UnknownOutcomeError,
    )
    from psched.base.quantities import Duration
    from psched.client.collection import ScheduleCollection
    from psched.client.selected import SelectedSchedules
    from psched.config import Config
    from psched.core.arguments import (
        AddOptions,
        Changes,
        JobFields,
        NewSchedule,
        NewTask,
        PushOptions,
        Settings,
    )
    from psched.core.columns import When
    from psched.core.history.answer import Answer
    from psched.core.history.records import AuditRecord
    from psched.core.history.run import Run, TaskEnd
    from psched.core.model import Row
    from psched.core.operations.backfills import Backfill
    from psched.core.operations.pauses import PauseRule
    from psched.core.operations.rescheduled import Rescheduled
    from psched.core.output import Output
    from psched.core.preview import UpcomingTime
    from psched.core.schedule import Schedule, ScheduleMetadata, Schedules
    from psched.service.functions import App
    from psched.service.program import Worker
    from psched.service.start import Program, start

    open = open_schedules  # noqa: A001  # PerfectSched's name

_MODULES = {
    "App": "psched.service.functions",
    "open": "psched.app:open_schedules",
    "AddOptions": "psched.core.arguments",
    "Answer": "psched.core.history.answer",
    "AuditRecord": "psched.core.history.records",
    "Backfill": "psched.core.operations.backfills",
    "Changes": "psched.core.arguments",
    "Config": "psched.config",
    "Duration": "psched.base.quantities",
    "JobFields": "psched.core.arguments",
    "NewSchedule": "psched.core.arguments",
    "NewTask": "psched.core.arguments",
    "Output": "psched.core.output",
    "PauseRule": "psched.core.operations.pauses",
    "Program": "psched.service.start",
    "PushOptions": "psched.core.arguments",
    "Rescheduled": "psched.core.operations.rescheduled",
    "Row": "psched.core.model",
    "Run": "psched.core.history.run",
    "Schedule": "psched.core.schedule",
    "ScheduleCollection": "psched.client.collection",
    "ScheduleMetadata": "psched.core.schedule",
    "Schedules": "psched.core.schedule",
    "SelectedSchedules": "psched.client.selected",
    "Settings": "psched.core.arguments",
    "Task": "psched.application.task",
    "TaskEnd": "psched.core.history.run",
    "UpcomingTime": "psched.core.preview",
    "When": "psched.core.columns",
    "Worker": "psched.service.program",
    "start": "psched.service.start",
}
"""For each public name: the module that defines it, as ``module``.

The form is ``module:name`` if the module uses a different name. Public names that are missing here
are in `psched.base.errors`.
"""

__all__ = [
    "AddOptions",
    "AlreadyExistsError",
    "AlreadyFinishedError",
    "Answer",
    "App",
    "AuditRecord",
    "Backfill",
    "Changes",
    "Config",
    "ConfigError",
    "Duration",
    "InvalidError",
    "JobFields",
    "MissingDatabaseError",
    "MissingTableError",
    "NewSchedule",
    "NewTask",
    "NotFoundError",
    "NotLoadedError",
    "NotSupportedError",
    "Output",
    "PauseRule",
    "PreemptedError",
    "ProcessStopError",
    "Program",
    "PschedError",
    "PushOptions",
    "Rescheduled",
    "Row",
    "Run",
    "Schedule",
    "ScheduleCollection",
    "ScheduleError",
    "ScheduleMetadata",
    "Schedules",
    "SchemaError",
    "SelectedSchedules",
    "Settings",
    "StoreBusyError",
    "StoreError",
    "StoreSlowError",
    "StoreUnavailableError",
    "Task",
    "TaskEnd",
    "TransientStoreError",
    "UnknownOutcomeError",
    "UpcomingTime",
    "When",
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


def __dir__() -> list[str]:
    # `help` and completion ask for the names, also for those that were not used yet.
    return sorted({*globals(), *__all__, "open"})

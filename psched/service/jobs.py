"""The jobs of a program. A job is a handler with a schedule, or a handler of pushed tasks.

Worker 0 of each generation declares them in the store before it claims tasks: `JobDeclarer`.
"""

import dataclasses
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import ceil
from typing import Any, ClassVar

from psched.app import CLOCK, new_nonce
from psched.application.dispatch import Dispatch, Target, check_handler
from psched.application.function import TaskFunction
from psched.application.task import Task
from psched.base.errors import (
    AlreadyExistsError,
    InvalidError,
    LoadError,
    MissingTableError,
    NotFoundError,
    NotSupportedError,
)
from psched.client.auditor import this_process
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.config.urls import file_of
from psched.core.columns import NAME_LENGTH, check_name
from psched.core.declare import KNOWN, describe, name_main_class, refuse_unknown
from psched.core.definition import parse_row
from psched.core.model import ENDED, Row
from psched.core.store_protocol import Store
from psched.files.apply import apply_plan, remove
from psched.files.plan import may_be_declared, plan
from psched.service.functions import App
from psched.triggers.trigger import first

_log = logging.getLogger("psched.worker")

_TRIGGERS = frozenset({"cron", "every", "at", "trigger", "next_time"})
"""The fields that say when a schedule runs; a job must not have more than one of them."""

_PAGE = 500
"""The number of schedules that are read in one step. Between two steps, the worker does other work.
"""

_TRIES = 5
"""The most attempts to declare the jobs. An attempt fails if another host or a client changes the
same jobs at the same time."""


class Jobs:
    """All jobs of one program.

    The program's name replaces ``__main__`` in the import paths of its classes. The type of a job
    with a schedule begins with the label, because another program might have a job with the same
    key. Users' triggers are tried from ``now`` on.
    """

    def __init__(
        self, program: str, label: str, settings: Config, now: Callable[[], float]
    ) -> None:
        self.label = label
        self.settings = settings
        self.program = program
        self._now = now
        self._keys: set[str] = set()
        self.routes: dict[str | re.Pattern[str], Target] = {}
        self.schedules: list[dict[str, Any]] = []  # key and fields, of jobs with a schedule
        self.included: list[App] = []  # their hooks are called

    def check_key(self, key: str) -> None:
        """Raise an error if no new job can have this key."""
        check_name("key", key)
        if key in self._keys:
            raise InvalidError("key", f"{key!r} is the key of another job of this program")

    def add(self, key: str, run: object, fields: Mapping[str, Any]) -> None:
        """Add a job."""
        self.check_key(key)
        if "type" in fields:
            raise InvalidError("type", "is derived from the job's key; leave it out")
        if fields.get("label") is not None:
            raise InvalidError("label", "is that of the whole program; give it to psched.start")
        refuse_unknown(fields, KNOWN)
        fields = {name: value for name, value in fields.items() if value is not None}
        if not (callable(run) or callable(getattr(run, "run", None))):
            raise InvalidError("run", "must be a function, a class, or an object with run()")
        try:
            route, data = self._handler_of(run)
            check_handler(route, key)
        except LoadError as error:
            raise InvalidError("run", str(error)) from None
        if data is not None:
            if "data" in fields:
                raise InvalidError(
                    "data", "must be left out: it stores the parameters of the object"
                )
            fields["data"] = data
        fields |= _trigger(run, data, fields)
        if _TRIGGERS & {*fields}:
            type_ = f"{self.label}/{key}"
            if len(type_) > NAME_LENGTH:
                raise InvalidError(
                    "key",
                    f"is too long: with the label {self.label!r} and a slash, it has more than"
                    f" {NAME_LENGTH} characters",
                )
            schedule = {"key": key, "type": type_, **fields}
            self.row(schedule)  # check now, so that an error shows the user's line
            self.schedules.append(schedule)
        elif fields:
            raise InvalidError(
                "cron", "is missing, and so are every, at and trigger: set one of them"
            )
        else:
            type_ = key
        self._keys.add(key)
        self.routes[type_] = route

    def row(self, schedule: Mapping[str, Any]) -> Row:
        """The row that one of the `schedules` declares, even if all its times have passed."""
        fields = {name: value for name, value in schedule.items() if name != "key"}
        fields["label"] = self.label
        return describe(schedule["key"], fields, self.settings, self._now)

    def dispatch(self) -> Dispatch:
        """A `Dispatch` with the `routes` of the jobs, and the hooks of included apps."""

        class Routes(App):
            routes: ClassVar[Mapping[str | re.Pattern[str], Target]] = self.routes

        made = Routes()
        for app in self.included:
            made.after_fork(app.after_fork)
            made.before_exit(app.before_exit)
        return made

    def _handler_of(self, run: Any) -> tuple[Target, dict[str, Any] | None]:  # noqa: ANN401
        if inspect.isclass(run):
            return run, None
        if isinstance(run, TaskFunction):
            return run.handler, None
        if callable(getattr(run, "run", None)):
            kind = check_handler(type(run), type(run).__name__)
            return _object_handler(kind), self._as_data(run)
        return _with_task(run), None

    def _as_data(self, run: object) -> dict[str, Any]:
        """The data of the schedule of a job that is an object.

        They are the import path of the object's class, and the arguments with which a worker calls
        the class to create the object again.
        """
        kind = type(run)
        module = self.program if kind.__module__ == "__main__" else kind.__module__
        if dataclasses.is_dataclass(run):
            names = [field.name for field in dataclasses.fields(run) if field.init]
            parameters = {name: getattr(run, name) for name in names}
        else:
            parameters = _attributes(run)
        try:
            inspect.signature(kind).bind(**parameters)
        except TypeError as error:
            raise InvalidError(
                "run",
                f"cannot be made again from its attributes: {kind.__qualname__} {error}; turn the"
                " class into a dataclass",
            ) from None
        return {"job": f"{module}:{kind.__qualname__}", "parameters": parameters}


def _attributes(run: object) -> dict[str, Any]:
    """The attributes of an object by name; those of a named tuple are its fields."""
    found = dict(run._asdict()) if isinstance(run, tuple) and hasattr(run, "_asdict") else {}
    for kind in type(run).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in {"__dict__", "__weakref__"} and hasattr(run, name):
                found[name] = getattr(run, name)
    return found | (vars(run) if hasattr(run, "__dict__") else {})


def _trigger(
    run: object, data: Mapping[str, Any] | None, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """The field ``trigger`` as workers import it: an object with ``next_at`` can be its own."""
    if "trigger" in fields:
        return {"trigger": name_main_class(fields["trigger"])}
    if data is not None and not _TRIGGERS & {*fields} and callable(getattr(run, "next_at", None)):
        return {"trigger": name_main_class((type(run), data["parameters"]))}
    return {}


def _with_task(function: Callable[..., object]) -> Target:
    """A handler that calls the function, with the task only if it has a parameter for it."""
    try:
        signature = inspect.signature(function)
        signature.bind()
    except (TypeError, ValueError):  # the function needs an argument, or has no signature
        return function
    if "task" in signature.parameters:
        return function
    check_handler(function, getattr(function, "__name__", "run"))
    return lambda _task: function()


def _object_handler(kind: type[Any]) -> type[Any]:
    """A handler class: it makes an object of the task's data, and calls its ``run()``."""

    class Run:
        def __init__(self, task: Task) -> None:
            self._task = task
            self._job = kind(**task.data.get("parameters", {}))
            if callable(getattr(self._job, "kill", None)):
                self.kill = self._job.kill

        def run(self) -> Any:  # noqa: ANN401  # the job's own value
            run: Any = _with_task(self._job.run)
            return run(self._task)

    return Run


class JobDeclarer:
    """Declares a program's jobs in the store, as schedules with the program's label.

    With ``prune``, schedules of the label that are no longer in the program are removed; else a
    warning about each of them is logged.
    """

    def __init__(self, jobs: Jobs, *, prune: bool) -> None:
        self._jobs = jobs
        self._settings = jobs.settings
        self._prune = prune

    def declare(self, store: Store) -> Iterator[None]:
        """Declare the jobs in steps, between which the worker extends leases and reads messages."""
        # Do not repeat a failed request (tries=1), because a worker that waits for the store
        # neither extends leases nor reads its master's messages.
        schedules = ScheduleCollection(
            store,
            self._settings,
            clock=CLOCK,
            draw_nonce=new_nonce,
            tries=1,
            author=partial(this_process, self._jobs.program),
        )
        file = file_of(self._settings.url)
        if self._settings.type == "rdb" and file is not None and not file.exists():
            try:
                _init(store)
            except OSError as error:
                _log.error("the folder of the database cannot be made: %s", error)
        for tries in range(1, _TRIES + 1):
            try:
                self._apply(schedules)
                break
            except MissingTableError:
                _init(store)
            except (AlreadyExistsError, NotFoundError) as error:
                # Another host has added the same job meanwhile, or a client has deleted a job. Try
                # again: the next attempt reads the store again.
                if tries == _TRIES:
                    _log.error("the program's jobs cannot be declared: %s", error)
            except (InvalidError, NotSupportedError) as error:
                # End the declaration, but do not raise, so that the worker still runs the schedules
                # that are in the store.
                _log.error("the program's jobs cannot be declared: %s", error)
                return
            yield
        yield from self._find_removed(schedules)

    def _apply(self, schedules: ScheduleCollection) -> None:
        wanted = self._jobs.schedules
        found = schedules.read_many([job["key"] for job in wanted])
        now = schedules.now()
        waiting = {key for key, metadata in found.items() if metadata.row.status not in ENDED}
        over = {
            job["key"] for job in wanted if job["key"] not in waiting and self._is_over(job, now)
        }
        for key in sorted(over - {*found}):
            _log.warning("the job %r is not declared: all its times have passed", key)
        made = plan(
            [job for job in wanted if job["key"] not in over],
            [metadata.row for metadata in found.values()],
            self._jobs.label,
            settings=self._settings,
            now=lambda: now,
        )
        for key, why in made.refused.items():
            _log.error("the job %r is not declared: it %s", key, why)
        apply_plan(
            dataclasses.replace(made, refused={}),
            schedules,
            settings=self._settings,
            report=lambda done, key: _log.info("the job %r was %s", key, done),
        )

    def _is_over(self, job: Mapping[str, Any], now: float) -> bool:
        """Whether all times in a job's declaration have passed.

        The job's row is not read, because it might have been deleted after the last of the times.
        """
        row = self._jobs.row(job)
        trigger = parse_row(row, self._settings).trigger
        if trigger is None:
            return row.next_time is not None and row.next_time < now
        return first(trigger, ceil(now)) is None

    def _find_removed(self, schedules: ScheduleCollection) -> Iterator[None]:
        """Find the label's jobs that are no longer in the program, and remove them or log them."""
        label, keys = self._jobs.label, {job["key"] for job in self._jobs.schedules}
        removed: dict[str, None] = {}  # an ordered set, because a row can be listed twice
        for number, metadata in enumerate(schedules.list(label=label), start=1):
            row = metadata.row
            if row.key not in keys and row.status not in ENDED and may_be_declared(row):
                removed[row.key] = None
            if not number % _PAGE:
                yield
        for key in removed:
            if self._prune:
                remove(key, label, schedules, _log_removal)
            else:
                _log.warning(
                    "the job %r is no longer in the program, and is not run; prune=True removes it",
                    key,
                )


def _init(store: Store) -> None:
    """Create the table, as ``psched init`` does, and log each step."""
    for line in store.init():
        _log.info("%s", line)


def _log_removal(_done: str, key: str) -> None:
    _log.warning("the job %r was removed: it is no longer in the program", key)

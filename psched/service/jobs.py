"""The jobs of a program. A job is a handler with a schedule, or a handler of pushed tasks."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from psched.application.dispatch import Dispatch, Target, check_handler
from psched.application.function import TaskFunction
from psched.application.task import Task
from psched.base.errors import InvalidError, LoadError
from psched.config import Config
from psched.core.arguments.fields import refuse_unknown
from psched.core.columns import NAME_LENGTH, check_name
from psched.core.declare import KNOWN, describe
from psched.core.model import Row
from psched.core.shorthands import name_main_class
from psched.service.functions.app import App

_TRIGGERS = frozenset({"cron", "every", "at", "trigger", "next_time"})
"""The fields that say when a schedule runs; a job must not have more than one of them."""


class Jobs:
    """All jobs of one program.

    Args:
        program: the program's name, which replaces ``__main__`` in the import paths of its classes.
        label: the owner of the jobs. The type of a job with a schedule begins with the label,
            because another program might have a job with the same key.
        settings: contains the default values of the schedules' fields.
        now: a clock; users' triggers are tried from this time on.

    Attributes:
        program: the program's name.
        routes: the handler of each type.
        schedules: the key and the fields of each schedule. A job without a schedule has no item.
        included: the apps whose hooks are called.
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
        self.schedules: list[dict[str, Any]] = []
        self.included: list[App] = []

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
    """The field ``trigger`` in a form that workers can import; empty if it is not needed.

    If no field says when the job runs, an object with ``next_at`` is its own trigger.
    """
    if "trigger" in fields:
        return {"trigger": name_main_class(fields["trigger"])}
    if data is not None and not _TRIGGERS & {*fields} and callable(getattr(run, "next_at", None)):
        return {"trigger": name_main_class((type(run), data["parameters"]))}
    return {}


def _with_task(function: Callable[..., object]) -> Target:
    """Return a handler that accepts a task and calls the function.

    A function that has no parameter for the task is called without arguments.
    """
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
    """A handler class that creates an object of class ``kind`` and calls the object's ``run()``.

    The arguments for ``kind`` are in the task's data.
    """

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

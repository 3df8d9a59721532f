"""Jobs: what a program's own code runs, as a schedule and the handler for it."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from psched.application.dispatch import Dispatch, Target, check_handler
from psched.application.task import Task
from psched.base.errors import InvalidError, LoadError
from psched.core.columns import NAME_LENGTH, check_name
from psched.core.shorthands import name_main_class

_WAYS = frozenset({"cron", "every", "at", "trigger", "next_time"})
"""The fields that say when a schedule runs."""


class Jobs:
    """All jobs of one program.

    Args:
        program: the program's name, for classes that it defines itself.
        label: whose the jobs are. It is in the types of those with a schedule: another program
            may have a job of the same name.
        check: refuses a schedule that makes no sense: in the user's own line, and not in a
            worker's log.
    """

    def __init__(
        self, program: str, label: str, check: Callable[[Mapping[str, Any]], object]
    ) -> None:
        self._check = check
        self._program = program
        self._label = label
        self._keys: set[str] = set()
        self.routes: dict[str | re.Pattern[str], Target] = {}
        self.schedules: list[dict[str, Any]] = []
        """What is to be declared of each that runs by itself."""

    def add(self, key: str, run: object, fields: Mapping[str, Any]) -> None:
        """Note a job.

        Args:
            key: its name.
            run: a function of the task or of nothing; a class as handlers are; or an object with
                ``run()``, which is stored by its class's name and its parameters.
            fields: of its schedule; without any trigger it has none, and is a type for the queue,
                unless it is an object with ``next_at(after)``, which is its own trigger then.

        Raises:
            InvalidError: it makes no sense; its ``field`` names what.
        """
        check_name("key", key)
        if key in self._keys:
            raise InvalidError("key", f"{key!r} is that of another job here")
        if "type" in fields:
            raise InvalidError("type", "follows from the job's key; leave it out")
        fields = {name: value for name, value in fields.items() if value is not None}
        if not (callable(run) or callable(getattr(run, "run", None))):
            raise InvalidError("run", "must be a function, a class, or an object with run()")
        try:
            route, data = self._routed(run)
            check_handler(route, key)
        except LoadError as error:
            raise InvalidError("run", str(error)) from None
        if data is not None:
            if "data" in fields:
                raise InvalidError("data", "is an object's own: it holds the parameters of that")
            fields["data"] = data
        fields |= _trigger(run, data, fields)
        if _WAYS & {*fields}:
            type_ = f"{self._label}/{key}"
            if len(type_) > NAME_LENGTH:
                raise InvalidError(
                    "key", f"and the label {self._label!r} have more than {NAME_LENGTH} characters"
                )
            schedule = {"key": key, "type": type_, **fields}
            self._check(schedule)
            self.schedules.append(schedule)
        elif fields:
            raise InvalidError(
                "cron", "is missing, and so are every, at and trigger: when is it to run?"
            )
        else:
            type_ = key
        self._keys.add(key)
        self.routes[type_] = route

    def dispatch(self) -> Dispatch:
        """The routes from jobs to what runs them."""

        class Routes(Dispatch):
            routes: ClassVar[Mapping[str | re.Pattern[str], Target]] = self.routes

        return Routes()

    def _routed(self, run: Any) -> tuple[Target, dict[str, Any] | None]:  # noqa: ANN401
        if inspect.isclass(run):
            return run, None
        if callable(getattr(run, "run", None)):
            return _object_run(type(run)), self._described(run)
        return _of_task(run), None

    def _described(self, run: object) -> dict[str, Any]:
        """An object as its class's import path and the parameters that make it again."""
        kind = type(run)
        module = self._program if kind.__module__ == "__main__" else kind.__module__
        if dataclasses.is_dataclass(run):
            names = [field.name for field in dataclasses.fields(run) if field.init]
            parameters = {name: getattr(run, name) for name in names}
        else:
            parameters = dict(vars(run)) if hasattr(run, "__dict__") else {}
        try:
            inspect.signature(kind).bind(**parameters)
        except TypeError as error:
            raise InvalidError(
                "run",
                f"cannot be made again from its attributes: {kind.__qualname__} {error}; make it a"
                " dataclass",
            ) from None
        return {"job": f"{module}:{kind.__qualname__}", "parameters": parameters}


def _trigger(
    run: object, data: Mapping[str, Any] | None, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """The field ``trigger`` of a job, if it has one, as its workers know it."""
    if "trigger" in fields:
        return {"trigger": name_main_class(fields["trigger"])}
    if data is not None and not _WAYS & {*fields} and callable(getattr(run, "next_at", None)):
        return {"trigger": name_main_class((type(run), data["parameters"]))}
    return {}


def _of_task(function: Callable[..., object]) -> Target:
    """A function of a task, whether or not it wants to see that."""
    try:
        signature = inspect.signature(function)
        signature.bind()
    except (TypeError, ValueError):  # one of the interpreter's own does not say
        return function
    if "task" in signature.parameters:
        return function
    check_handler(function, getattr(function, "__name__", "run"))
    return lambda _task: function()


def _object_run(kind: type[Any]) -> type[Any]:
    """The handler that makes an object anew, as the task's row describes it, and runs it."""

    class Run:
        def __init__(self, task: Task) -> None:
            self._task = task
            self._job = kind(**task.data.get("parameters", {}))
            if callable(getattr(self._job, "kill", None)):
                self.kill = self._job.kill

        def run(self) -> None:
            run: Any = _of_task(self._job.run)
            run(self._task)

    return Run

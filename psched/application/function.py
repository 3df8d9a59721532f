"""Functions that are tasks: a call pushes a task, and a worker calls the function with its data."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

from psched.application.task import Task
from psched.base.errors import InvalidError
from psched.core.columns import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Unpack

    from psched.core.arguments import FunctionPushOptions
    from psched.core.schedule import Schedule, Schedules

C = ParamSpec("C")
"""The parameters of the function."""

P = ParamSpec("P")
"""The parameters of the function without the one for the task: the arguments of a push."""

R = TypeVar("R")

_OF_THE_CALL = {
    "type": "is the type of the function",
    "data": "is made from the arguments of push()",
}
"""Arguments of `ScheduleCollection.push` that are no options, and why."""

_UNNAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)

_TASK = re.compile(r"(psched\.)?Task( \| None)?|(typing\.)?Optional\[(psched\.)?Task\]")
"""The texts of annotations that mean the class `Task`."""


class Pushes(Protocol):
    """What pushes the tasks of functions: a `psched.App`."""

    @property
    def schedules(self) -> Schedules:
        """The schedules of the store to which tasks are pushed."""
        ...


class TaskFunction(Generic[C, P, R]):
    """A function whose calls can be pushed as tasks; created by `psched.App.task`.

    A call of the object calls the function in this process, like a call of the function itself. For
    threads and forks, the rules of the app apply.

    Args:
        app: pushes the tasks.
        type_: the type of the tasks.
        function: the function that a task calls.
        options: the options of each push that does not set them otherwise.

    Attributes:
        type: the type of the tasks.
        handler: the handler of the type: a function that takes the task.

    Raises:
        InvalidError: the arguments of the function cannot be stored.
    """

    def __init__(
        self, app: Pushes, type_: str, function: Callable[C, R], options: Mapping[str, Any]
    ) -> None:
        functools.update_wrapper(self, function)
        self.type = type_
        self._app = app
        self._function = function
        self._arguments = Arguments(function)
        self._options = check_options(options)
        self.handler = self._make_handler()

    def __call__(self, /, *args: C.args, **kwargs: C.kwargs) -> R:
        """Call the function here."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<TaskFunction {self.type!r}>"

    def data(self, /, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """The data of a task that calls the function with these arguments.

        `ScheduleCollection.add` and `ScheduleCollection.push_many` accept them as ``data``.

        Raises:
            InvalidError: an argument is missing or unknown, or JSON cannot represent its value; the
                error's ``field`` is the name of the argument.
        """
        return self._arguments.as_data(args, kwargs)

    def push(self, /, *args: P.args, **kwargs: P.kwargs) -> Schedule:
        """Push a task that calls the function with these arguments in a worker.

        Returns:
            The schedule of the task, for example to wait for its end.

        Raises:
            InvalidError: an argument is missing or unknown, or JSON cannot represent its value; the
                error's ``field`` is the name of the argument.
            ConfigError: the settings of the app cannot be used.
            TransientStoreError: the store is unavailable.
        """
        return self._push(self._arguments.as_data(args, kwargs), self._options)

    def options(self, **options: Unpack[FunctionPushOptions]) -> Push[P]:
        """Set options of a push, as in ``mail.options(delay="1m").push(to="ann")``.

        Args:
            options: ``key`` (default: the type and a new identifier) and all other arguments of
                `ScheduleCollection.push`, except ``type`` and ``data``: ``delay``, ``run_at``,
                ``timeout``, ``max_attempts``, ``retry_wait``, ``expire``, ``connection`` … They
                replace those of the decorator.

        Raises:
            InvalidError: ``type`` or ``data`` is given.
        """
        return Push(self, {**self._options, **check_options(options)})

    def _push(self, data: Mapping[str, Any], options: Mapping[str, Any]) -> Schedule:
        fields = dict(options)
        schedules = self._app.schedules
        pushed = schedules.push(fields.pop("key", None), self.type, data, **fields)
        return schedules[pushed.key]  # any thread can use it, if `schedules` is that of an app

    def _make_handler(self) -> Callable[[Task], Any]:
        function, arguments = self._function, self._arguments

        def run(task: Task) -> Any:  # noqa: ANN401
            call: Any = function
            return call(**arguments.from_data(task))

        # A function that does not get the task cannot call its finish().
        vars(run)["finishes_by_returning"] = arguments.task is None
        # Only the names: with ``__wrapped__``, the handler would seem to have other parameters.
        return functools.update_wrapper(
            run, function, assigned=("__module__", "__name__", "__qualname__"), updated=()
        )


class Push(Generic[P]):
    """Pushes tasks of a function with options; created by `TaskFunction.options`.

    Args:
        function: the function.
        options: the options.
    """

    def __init__(
        self,
        function: TaskFunction[Any, P, Any],
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._function = function
        self._options = options

    def push(self, /, *args: P.args, **kwargs: P.kwargs) -> Schedule:
        """Push a task; see `TaskFunction.push`.

        Raises:
            AlreadyExistsError: a schedule or task with the given key exists already.
            InvalidError: an argument or an option is invalid; the error's ``field`` is its name.
        """
        function = self._function
        return function._push(function.data(*args, **kwargs), self._options)  # noqa: SLF001


def check_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a push, if none of them is an argument of the function."""
    for name, why in _OF_THE_CALL.items():
        if name in options:
            raise InvalidError(name, f"is no option: it {why}")
    return options


# --- the arguments ------------------------------------------------------------------------


class Arguments:
    """Converts the arguments of a function to the data of a task, and back.

    The data are a JSON object: each argument's value by the name of its parameter. Arguments that
    the caller leaves out are not stored, so the function's present default applies when it runs.

    One parameter can get the running task instead of an argument: the one that is annotated with
    `psched.Task`, or that has the name ``task`` and no annotation.

    Attributes:
        task: the name of the parameter for the running task; None if the function has none.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            raise InvalidError("function", f"{function!r} has no signature") from None
        parameters = signature.parameters.values()
        unnamed = [each for each in parameters if each.kind in _UNNAMED]
        if unnamed:
            raise InvalidError(
                "function",
                f"has the parameter {unnamed[0]}, but arguments are stored by name; use parameters"
                " that have a name",
            )
        tasks = _task_parameters(function, [*parameters])
        if len(tasks) > 1:
            raise InvalidError("function", f"has several parameters for the task: {tasks}")
        self.task = tasks[0] if tasks else None
        stored = [each for each in parameters if each.name != self.task]
        self._shown = f"{_name_of(function)}{inspect.Signature(stored)}"
        self._takes_more = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in stored)
        named = [each for each in stored if each.kind is not inspect.Parameter.VAR_KEYWORD]
        self._names = [each.name for each in named]
        self._by_position = [
            each.name for each in named if each.kind is not inspect.Parameter.KEYWORD_ONLY
        ]
        self._required = [each.name for each in named if each.default is inspect.Parameter.empty]

    def as_data(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, Any]:
        """The data of a task with these arguments; errors have their names as ``field``."""
        if len(args) > len(self._by_position):
            raise InvalidError(
                f"argument {len(self._by_position) + 1}",
                f"is one too many by position: the function is {self._shown}",
            )
        data = dict(zip(self._by_position, args, strict=False))
        if twice := [name for name in kwargs if name in data]:
            raise InvalidError(twice[0], "is given twice, by position and by name")
        if self.task in kwargs:
            raise InvalidError(
                self.task or "", "is passed by psched when the task runs; leave it out"
            )
        data |= kwargs
        if problem := self._mismatch(data):
            raise InvalidError(*problem)
        for name, value in data.items():
            encode(name, {name: value})
        return data

    def from_data(self, task: Task) -> dict[str, Any]:
        """The arguments with which a task calls the function, by name.

        The data can have been pushed by another version of the program, or written by SQL.
        """
        if problem := self._mismatch(task.data):
            name, what = problem
            raise InvalidError("data", f"does not match the function: {name} {what}")
        return task.data if self.task is None else {**task.data, self.task: task}

    def _mismatch(self, data: Mapping[str, object]) -> tuple[str, str] | None:
        """The first name that does not match the function, and what is wrong; None if all match."""
        for name in data:
            if name == self.task or not (self._takes_more or name in self._names):
                return name, f"is not an argument: the function is {self._shown}"
        for name in self._required:
            if name not in data:
                return name, f"is missing: the function is {self._shown}"
        return None


def _task_parameters(
    function: Callable[..., object], parameters: Sequence[inspect.Parameter]
) -> list[str]:
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # noqa: BLE001  # an annotation can name what is only imported for type checks
        hints = {}
    return [
        each.name
        for each in parameters
        if each.kind is not inspect.Parameter.VAR_KEYWORD
        and _takes_task(each, hints.get(each.name, each.annotation))
    ]


def _takes_task(parameter: inspect.Parameter, annotation: object) -> bool:
    if annotation is inspect.Parameter.empty:
        return parameter.name == "task"
    if isinstance(annotation, str):
        return _TASK.fullmatch(annotation) is not None
    return annotation is Task or Task in typing.get_args(annotation)


def _name_of(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", type(function).__name__)

"""Functions that are tasks: a call pushes a task, and a worker calls the function with its data."""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack

from psched.application.arguments import Arguments
from psched.application.task import Task
from psched.base.errors import InvalidError
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

    def options(self, **options: Unpack[FunctionPushOptions]) -> "Push[P]":
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
    """Return the options of a push, if none of them is an argument of the function.

    Raises:
        InvalidError: ``type`` or ``data`` is among them.
    """
    for name, why in _OF_THE_CALL.items():
        if name in options:
            raise InvalidError(name, f"is no option: it {why}")
    return options

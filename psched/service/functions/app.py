"""``psched.App``: registers functions as tasks, pushes their tasks, and runs them as a dispatch."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from typing_extensions import override

from psched.app import ConfigLike, open_schedules, read_config
from psched.application.dispatch import Dispatch, Routes, check_handler
from psched.application.function import TaskFunction, check_options
from psched.application.task import Task
from psched.base.errors import InvalidError, LoadError
from psched.client.collection import ScheduleCollection
from psched.client.push_arguments import fields_of_push, naming_arguments
from psched.config import Config, from_mapping
from psched.core.arguments.fields import FunctionOptions
from psched.core.arguments.settings import Settings
from psched.core.columns import check_name
from psched.core.declare import declare
from psched.core.schedule import Schedules
from psched.service.functions.thread_schedules import ThreadSchedules

P = ParamSpec("P")
R = TypeVar("R")

_OF_ONE_PUSH = ("key", "at", "run_at", "next_time", "next_run_time", "connection")
"""Options that make sense for one push, and not for all pushes of a function."""


class TaskDecorator(Protocol):
    """What `App.task` returns: makes a function a task."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Task, P], R], /
    ) -> TaskFunction[Concatenate[Task, P], P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> TaskFunction[P, P, R]: ...


class App(Dispatch):
    """Functions that are tasks: a program pushes their calls, and workers run them.

    ::

        app = psched.App("psched.yml")


        @app.task("mail", max_attempts=3)
        def mail(to, subject="Hello"): ...


        mail.push(to="ann")

    One module serves the program that pushes and the workers, whose setting ``dispatch`` names the
    app (``dispatch: jobs:app``). The settings are read and the store is opened when they are first
    needed. In a worker and in its tasks, an app uses the settings of the worker.

    Any number of threads can use an app and its functions at once, and so can processes that were
    forked: each thread and each process opens a connection of its own. For forks on SQLite, see
    `ScheduleCollection`.

    Args:
        given: settings, a mapping of some settings, or the path of a file; see `psched.open`.
        environment: the section of the file to read; None means ``$PSCHED_ENV``, else
            ``development``.
        settings: further settings, by name, such as ``url``.

    Attributes:
        functions: the functions, by their types.
    """

    def __init__(
        self,
        given: ConfigLike = None,
        /,
        *,
        environment: str | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        super().__init__()
        self._at_fork: list[Callable[[], object]] = []
        self._at_exit: list[Callable[[], object]] = []
        self.functions: dict[str, TaskFunction[Any, Any, Any]] = {}
        self._schedules = ThreadSchedules(
            lambda: open_schedules(read_config(given, environment, settings))
        )

    def task(self, type_: str, /, **options: Unpack[FunctionOptions]) -> TaskDecorator:
        """Make the decorated function a task.

        The arguments of the function must be values that JSON can represent. A parameter that is
        annotated with `psched.Task`, or that is named ``task`` without an annotation, gets the
        running task; it should be the first one.

        Args:
            type_: the type of the tasks. Workers find the function by it.
            options: options of each push, such as ``max_attempts``, ``retry_wait`` and ``expire``;
                see `ScheduleCollection.push`. `TaskFunction.options` replaces them for one push.

        Raises:
            InvalidError: the type, an option or the function is not valid; the error's ``field`` is
                the name of the argument, or ``function``.
        """
        check_name("type", type_)
        if type_ in self.functions:
            raise InvalidError("type", f"{type_!r} is the type of another function of this app")
        _check_usual_options(options)

        def decorate(function: object) -> TaskFunction[Any, Any, Any]:
            if not callable(function) or isinstance(function, type | TaskFunction):
                raise InvalidError("function", f"must be a function, not {function!r}")
            try:
                check_handler(function, type_)
            except LoadError as error:
                raise InvalidError("function", str(error)) from None
            made = TaskFunction[Any, Any, Any](self, type_, function, options)
            self.functions[type_] = made
            return made

        return cast("TaskDecorator", decorate)

    @property
    def schedules(self) -> Schedules:
        """The schedules of the store, in any thread; in a function that a task runs, those of it.

        The store is opened at the first request.
        """
        return cast("Schedules", self._schedules)

    def close(self) -> None:
        """Close this thread's connection to the store. A later request opens a new connection."""
        self._schedules.close()

    def use(self, open_: Callable[[], ScheduleCollection]) -> None:
        """Push to other schedules from now on, such as those of the worker that runs this process.

        Args:
            open_: opens a collection; each thread calls it when it first needs one.
        """
        self._schedules = ThreadSchedules(open_)

    @contextmanager
    def using(self, open_: Callable[[], ScheduleCollection]) -> Iterator[None]:
        """Push to other schedules within the block; for tests."""
        before = self._schedules
        self.use(open_)
        try:
            yield
        finally:
            self._schedules = before

    @override
    def after_fork(self, function: Callable[[], object] | None = None, /) -> Any:
        """Decorate a function that each process of tasks calls before its first task."""
        return _hook(self._at_fork, function)

    @override
    def before_exit(self, function: Callable[[], object] | None = None, /) -> Any:
        """Decorate a function that each process of tasks calls at its end."""
        return _hook(self._at_exit, function)

    @classmethod
    @override
    def route(cls, routes: Routes) -> None:
        if cls is App:
            raise LoadError(
                "psched.App: routes belong to a class, so all apps would get them; make a subclass"
                " of App"
            )
        super().route(routes)

    @override
    def find(self, type_: str) -> Any | None:
        found = self.functions.get(type_)
        return super().find(type_) if found is None else found.handler


def _hook(added: list[Callable[[], object]], function: Callable[[], object] | None) -> object:
    """Add a function that a user decorates. Without one, psched calls those that were added."""
    if function is not None:
        added.append(function)
        return function
    for each in added:
        each()
    return None


def _check_usual_options(options: Mapping[str, Any]) -> None:
    """Refuse options that no push of the function could have.

    Raises:
        InvalidError: an option is unknown, has an invalid value, or belongs to one push.
    """
    check_options(options)
    for name in _OF_ONE_PUSH:
        if name in options:
            raise InvalidError(
                name, f"belongs to one push; write FUNCTION.options({name}=…).push(…)"
            )
    with naming_arguments([options]):
        declare("any", fields_of_push(options), _defaults(), lambda: 0)


@cache
def _defaults() -> Config:
    """Settings that are good enough to check options."""
    return from_mapping({"url": "sqlite:///unused.db"})

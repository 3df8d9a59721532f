"""``psched.App``: registers functions as tasks, pushes their tasks, and runs them as a dispatch."""

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from typing_extensions import override

from psched.app import ConfigLike, open_schedules, read_config
from psched.application.dispatch import Dispatch, Routes, check_handler, running_task
from psched.application.function import TaskFunction, check_options
from psched.application.task import Task
from psched.base.errors import InvalidError, LoadError
from psched.client.arguments import fields_of_push, naming_arguments
from psched.client.collection import ScheduleCollection
from psched.config import Config, from_mapping
from psched.core.arguments import FunctionOptions, Settings
from psched.core.columns import check_name
from psched.core.declare import declare
from psched.core.schedule import Schedule, Schedules

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
    """Refuse options that no push of the function could have."""
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


class _Mark:
    """Lives as long as the thread that has created it, because only a thread-local refers to it."""

    __slots__ = ("__weakref__",)


class ThreadSchedules:
    """Stands for a collection of schedules, in every thread and after every fork.

    Each thread uses a collection of its own, because a collection has one connection and must not
    be used by two threads at once. It is opened when the thread first needs it. After a fork, the
    child uses none of those of its parent, because both would send requests over one connection. A
    thread that runs a task uses the collection of the task.

    Args:
        open_schedules: opens a collection.
    """

    def __init__(self, open_schedules: Callable[[], ScheduleCollection]) -> None:
        self._open = open_schedules
        self._left: list[object] = []
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._opened: list[tuple[weakref.ref[_Mark], ScheduleCollection]] = []

    def after_fork(self) -> None:
        """Leave alone what the parent has opened; the child calls this."""
        # They are kept: if they were collected as garbage, their drivers could tell the server to
        # end the parent's session.
        self._left.append((self._local, self._opened))
        self._begin()

    def current(self) -> Schedules:
        """The collection that the calling thread uses now.

        Raises:
            ConfigError: the settings cannot be used.
        """
        if (task := running_task()) is not None:
            return task.schedules
        found: ScheduleCollection | None = getattr(self._local, "schedules", None)
        if found is None:
            found = self._open()
            mark = self._local.mark = _Mark()
            self._local.schedules = found
            with self._lock:
                self._close_unused()
                self._opened.append((weakref.ref(mark), found))
        return found

    def _close_unused(self) -> None:
        """Close the connections of threads that have ended."""
        for mark, schedules in self._opened:
            if mark() is None:
                with suppress(Exception):
                    schedules.close()
        self._opened = [each for each in self._opened if each[0]() is not None]

    def close(self) -> None:
        """Close the connections of this thread, and of threads that have ended.

        A later request opens a new connection.
        """
        with self._lock:
            self._close_unused()
        found: ScheduleCollection | None = getattr(self._local, "schedules", None)
        if found is not None:
            found.close()

    # Python looks these methods up in the class, not by `__getattr__`.

    def __getitem__(self, key: str) -> Schedule:
        # The reference uses this object, so it can be passed to another thread.
        stands_for_schedules: Any = self
        return Schedule(stands_for_schedules, key)

    def __contains__(self, key: object) -> bool:
        return key in self.current()

    def __iter__(self) -> Iterator[Schedule]:
        return iter(self.current())

    def __len__(self) -> int:
        return len(self.current())

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # that of the collection
        if name.startswith("__"):  # those that `copy` and `pickle` look for, before `__init__`
            raise AttributeError(name)
        return getattr(self.current(), name)


_ALL: weakref.WeakSet[ThreadSchedules] = weakref.WeakSet()


def _after_fork() -> None:
    for each in [*_ALL]:
        each.after_fork()


os.register_at_fork(after_in_child=_after_fork)

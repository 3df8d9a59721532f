"""The dispatch, which maps a task's type to its handler; handlers are loaded and called here."""

import inspect
import logging
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from types import AsyncGeneratorType, GeneratorType, ModuleType
from typing import Any, ClassVar

from psched.application.function import TaskFunction
from psched.application.task import Task
from psched.base.errors import InvalidError, LoadError, NotAllowedError, UnfinishedError
from psched.base.loader import extend_path, find_object, load_module

Target = type[Any] | Callable[[Task], object] | TaskFunction[..., ..., Any] | str
"""A class whose instances have ``run()``, a function that takes a task, a function of an app, or
the name of one of these.

A name is ``"module:name"``, or only ``"name"`` if the handler is defined in the module of the
dispatch class or of one of its base classes.
"""

_log = logging.getLogger("psched.task")

_RUNNING: ContextVar[tuple[Task, int] | None] = ContextVar("psched_running_task", default=None)
"""The task that is being run, and the thread that runs its handler; None if none is run."""

_GENERATORS = (GeneratorType, AsyncGeneratorType)

Routes = Mapping[str | re.Pattern[str], Target]
"""Handlers by type, or by a pattern that is searched for in the type."""


class Dispatch:
    """Maps types to handlers.

    A worker loads it before it forks the processes that run tasks. In each of them, only the main
    thread uses it.

    Attributes:
        routes: handlers by type, or by a pattern that is searched for in the type. A handler is a
            class that takes the task and has ``run()``, a function that takes the task, or the
            name of either. ``run`` and the function may be coroutine functions (``async def``).
            ``"module:name"`` is imported when a task first needs it. A ``"name"`` without a module
            is looked up when a task first needs it: first in the module of the dispatch's class,
            then in the modules of the base classes. An exact type precedes patterns. Patterns are
            tried in their order in ``routes``.
    """

    routes: ClassVar[Routes] = {}

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}
        _check_routes(type(self).__name__, self.routes)

    @classmethod
    def route(cls, routes: Routes) -> None:
        """Add routes to this class; the routes of its base classes do not change.

        ::

            class Dispatch(BaseDispatch):
                pass


            Dispatch.route({"user_task": UserTask, re.compile("^report-"): "Report"})

        Args:
            routes: see the attribute `routes`; a route that exists already is replaced.

        Raises:
            LoadError: a route is neither a text nor a pattern, or its target cannot be a handler.
        """
        _check_routes(cls.__name__, routes)
        cls.routes = {**cls.routes, **routes}

    def find(self, type_: str) -> Any | None:  # noqa: ANN401  # see Target
        """The handler of a type; None if no route matches.

        Raises:
            LoadError: the handler's module cannot be imported, or does not define the handler.
        """
        target = self.routes.get(type_)
        if target is None:
            for route, candidate in self.routes.items():
                if isinstance(route, re.Pattern) and route.search(type_):
                    target = candidate
                    break
        handler = self._load(target) if isinstance(target, str) else target
        return handler.handler if isinstance(handler, TaskFunction) else handler

    def after_fork(self) -> object:
        """Called in each process of tasks, before its first task; override it.

        If it raises, the attempt fails.
        """

    def before_exit(self) -> object:
        """Called at the end of each process of tasks, after its exit functions; override it.

        If it raises, the attempt fails whose task was the last of the process.
        """

    def load_all(self) -> None:
        """Import now every handler that would be imported when a task first needs it.

        Raises:
            LoadError: a handler cannot be imported.
        """
        for target in self.routes.values():
            if isinstance(target, str):
                self._load(target)

    def _load(self, name: str) -> Any:  # noqa: ANN401
        if name not in self._loaded:
            self._loaded[name] = check_handler(find_object(name, self._modules()), name)
        return self._loaded[name]

    def _modules(self) -> list[ModuleType]:
        """The modules in which a handler's name without a module is looked up."""
        classes = type(self).__mro__
        named = (each.__module__ for each in classes[: classes.index(Dispatch)])
        return [sys.modules[name] for name in dict.fromkeys(named) if name in sys.modules]


def _check_routes(dispatch: str, routes: Routes) -> None:
    """Refuse routes that cannot work; names of handlers are not looked up yet."""
    for route, target in routes.items():
        if not isinstance(route, (str, re.Pattern)):
            raise LoadError(
                f"{dispatch}: a route must be a text or a compiled pattern, not {route!r}"
            )
        if not isinstance(target, str):
            check_handler(target, f"{dispatch}: the route {getattr(route, 'pattern', route)!r}")


def check_handler(target: Any, where: str) -> Any:  # noqa: ANN401  # anything a user wrote
    """Return a target if it can be a handler.

    If the handler is asynchronous, import asyncio. Loading the handlers precedes the forks, so that
    no task waits for this import. Refused is also a generator function, because calling it would
    run nothing, and a ``kill`` that is a coroutine function, because a signal handler cannot run
    it.
    """
    if inspect.isclass(target):
        if not callable(getattr(target, "run", None)):
            raise LoadError(f"{where}: the class {target.__name__} has no run() method")
        for name in ("run", "before_perform", "perform", "after_perform"):
            _check_function(getattr(target, name, None), f"{where}: {target.__name__}.{name}")
        if inspect.iscoroutinefunction(getattr(target, "kill", None)):
            raise LoadError(
                f"{where}: {target.__name__}.kill is a coroutine; it must be a plain function. If"
                " there is no kill, the handler's asyncio task is cancelled"
            )
    elif callable(target):
        _check_function(target, f"{where}: {getattr(target, '__name__', target)}")
    else:
        raise LoadError(f"{where}: {target!r} is neither a class nor a function")
    return target


def check_returned(returned: Any, type_: str) -> None:  # noqa: ANN401
    """Refuse what a handler has returned if it shows that the handler's code has not run.

    For example, `check_handler` does not recognize a decorated generator function.
    """
    if isinstance(returned, _GENERATORS):
        raise LoadError(
            f"the handler of {type_!r} has returned a generator, so its code has not run; it must"
            " be a function that returns"
        )


def _check_function(function: Any, where: str) -> None:  # noqa: ANN401
    """Refuse a generator function, because calling it does not run its code."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise LoadError(f"{where} is a generator; it must be a function that returns")
    if inspect.iscoroutinefunction(function):
        import_module("asyncio")


# --- the dispatch of an installation -----------------------------------------------------


class Router:
    """Finds the handler of a type: in the user's dispatch, else among the built-in handlers."""

    def __init__(self, dispatch: Dispatch | None, built_in: Mapping[str, Any]) -> None:
        self._dispatch = dispatch
        self._built_in = built_in

    def find(self, type_: str) -> Any | None:  # noqa: ANN401  # see dispatch.Target
        """The handler of a type, see `Dispatch.find`; None if the type has no handler."""
        found = None if self._dispatch is None else self._dispatch.find(type_)
        return self._built_in.get(type_) if found is None else found


def load_dispatch(
    load_path: Sequence[str], require: Sequence[str], name: str | None
) -> Dispatch | None:
    """Import the modules that a configuration requires, in their order, and return its dispatch.

    The dispatch is named as ``module:attribute``, or by its name in one of these modules.
    """
    extend_path(load_path)
    modules = [load_module(module) for module in require]
    return None if name is None else instance(find_object(name, modules), name)


def instance(dispatch: Any, name: str) -> Dispatch:  # noqa: ANN401  # whatever has that name
    """Return a dispatch; if a class is given, create an instance of it."""
    if isinstance(dispatch, type) and issubclass(dispatch, Dispatch):
        dispatch = dispatch()
    if not isinstance(dispatch, Dispatch):
        raise LoadError(f"{name} should be a subclass of psched.application.Dispatch")
    return dispatch


# --- the call of a handler ----------------------------------------------------------------


@contextmanager
def running(task: Task) -> Iterator[None]:
    """Make a task the one that this thread runs, within the block."""
    before = _RUNNING.set((task, threading.get_ident()))
    try:
        yield
    finally:
        _RUNNING.reset(before)


def running_task() -> Task | None:
    """The task that this thread runs; None if it runs none.

    Other threads of the task run none, also those that have got a copy of the context: they must
    not use the connection of the task at the same time.
    """
    found = _RUNNING.get()
    return found[0] if found is not None and found[1] == threading.get_ident() else None


def call_handler(
    handler: Any,  # noqa: ANN401  # see dispatch.Target
    task: Task,
    assignment: Mapping[str, Any],
    *,
    offer_kill: Callable[[Callable[[str], object]], object],
    run_awaitable: Callable[[Awaitable[Any]], Any],
) -> Any:  # noqa: ANN401  # the handler's own value
    """Run the code of a handler for a task, and return what it has returned.

    The handler is a class that takes the task and has ``run()``, or a function that takes the task.
    ``offer_kill`` receives its method ``kill``, if there is one. ``run_awaitable`` returns the
    value of what an asynchronous handler has returned. If the handler returns without a decision,
    and ``on_return`` is ``retry``, this is an `UnfinishedError`.
    """
    if task.run_as is not None and not getattr(handler, "runs_as_others", False):
        raise NotAllowedError(
            f"run_as: {task.run_as}: only the built-in type exec runs programs as other users, and"
            " here a handler of yours serves this type"
        )
    with running(task):
        if isinstance(handler, type):
            make: Callable[[Task], Any] = handler
            run = make(task)
            if callable(getattr(run, "kill", None)):
                offer_kill(run.kill)
            returned = run.run()
        else:
            returned = handler(task)
        if hasattr(returned, "__await__"):
            returned = run_awaitable(returned)
    check_returned(returned, task.type)
    if assignment["result"] == "return" and returned is not None:
        _keep_returned(task, returned)
    must_finish = assignment["on_return"] == "retry" and not getattr(
        handler, "finishes_by_returning", False
    )
    if must_finish and not task.settled:
        raise UnfinishedError("returned without finish(), and on_return is retry")
    return returned


def _keep_returned(task: Task, returned: Any) -> None:  # noqa: ANN401  # any value
    """Make what a handler has returned the result of its task, if it can be a result."""
    try:
        task.result = returned
    except InvalidError as error:
        _log.warning("what the handler has returned is not kept as the result: %s", error.problem)

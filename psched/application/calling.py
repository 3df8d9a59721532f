"""Calls the handler of a task: in a runner, and in a user's own tests."""

import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from psched.application.dispatch import check_returned
from psched.application.task import Task
from psched.base.errors import InvalidError, UnfinishedError

_RUNNING: ContextVar[tuple[Task, int] | None] = ContextVar("psched_running_task", default=None)
"""The task that is being run, and the thread that runs its handler; None if none is run."""


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


_log = logging.getLogger("psched.task")


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

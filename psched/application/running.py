"""The task that a thread runs: what a handler pushes goes through its connection."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from psched.application.task import Task

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

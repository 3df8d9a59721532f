"""The base class of handlers."""

from typing import Any

from psched.application.task import Task
from psched.core.schedule import Schedules


class Base:
    """Runs one task.

    Override `run`, or `perform` and the two hooks around it. If `run` returns, the task is
    finished; if it raises, the task is tried again after ``retry_wait``. Calling
    ``task.finish()``, ``task.retry()`` or ``task.release()`` decides explicitly.

    To stop a handler, psched raises `ProcessStopError` once in the handler's running code, so that
    the ``finally`` clauses run. If the handler defines ``kill(reason)``, psched calls ``kill``
    instead: at once, and again every ``kill_interval`` seconds. If ``kill`` raises an exception,
    that exception interrupts the handler's running code. The reason is ``timeout``, ``shutdown``,
    ``deleted``, ``cancelled`` or ``lease``. If the handler has not ended ``graceful_kill_limit``
    seconds later, psched kills the handler's process and all processes that it has started.

    Attributes:
        task: the task to run.
    """

    def __init__(self, task: Task) -> None:
        self.task = task

    @property
    def schedules(self) -> Schedules:
        """The schedules of the store that the task came from, on a separate connection."""
        return self.task.schedules

    def run(self) -> Any:  # noqa: ANN401  # the handler's own value
        """Call `before_perform`; if it returns True, call `perform` and then `after_perform`.

        Returns:
            What `perform` has returned; None if it was not called.
        """
        if not self.before_perform():
            return None
        try:
            return self.perform()
        finally:
            self.after_perform()

    def before_perform(self) -> bool:
        """Called first; if it returns False, `perform` and `after_perform` are not called."""
        return True

    def perform(self) -> Any:  # noqa: ANN401
        """Do the work of the task; override this method, or `run`."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither run nor perform")

    def after_perform(self) -> None:
        """Called after `perform`, even if `perform` raised an exception."""

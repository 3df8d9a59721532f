"""The base class of handlers."""

from psched.application.task import Task
from psched.core.schedule import Schedules


class Base:
    """Runs one task.

    Override `run`, or `perform` and the two hooks around it. If `run` returns, the task is
    finished; if it raises, the task is tried again after ``retry_wait``. Calling
    ``task.finish()``, ``task.retry()`` or ``task.release()`` decides explicitly.

    When a handler is asked to stop, `ProcessStopError` is raised once in the handler's running
    code, so that the ``finally`` clauses run. If the handler defines ``kill(reason)``, psched calls
    ``kill`` instead: at once, and again every ``kill_interval``. If ``kill`` raises an exception,
    that exception interrupts the handler's running code. The reason is ``timeout``, ``shutdown``,
    ``deleted``, ``cancelled`` or ``lease``. Whatever the handler does, its process and all
    processes that it has started are killed ``graceful_kill_limit`` seconds later.

    Attributes:
        task: the task to run.
    """

    def __init__(self, task: Task) -> None:
        self.task = task

    @property
    def schedules(self) -> Schedules:
        """The schedules of the store that the task came from, on a separate connection."""
        return self.task.schedules

    def run(self) -> None:
        """Run the task: `before_perform`, and if that returns true, `perform`, `after_perform`."""
        if not self.before_perform():
            return
        try:
            self.perform()
        finally:
            self.after_perform()

    def before_perform(self) -> bool:
        """Called before `perform`; if it returns False, nothing else is called."""
        return True

    def perform(self) -> None:
        """Do the work of the task; override this method, or `run`."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither run nor perform")

    def after_perform(self) -> None:
        """Called after `perform`, even if `perform` raised an exception."""

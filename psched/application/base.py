"""The base class of handlers."""

from psched.application.task import Task
from psched.core.schedule import Schedules


class Base:
    """Runs one task.

    Override `run`, or `perform` and the two hooks around it. A run that returns has finished its
    task, one that raises has it tried again after ``retry_wait``; calling ``task.finish()``,
    ``task.retry()`` or ``task.release()`` decides explicitly.

    A handler that is asked to stop gets a `ProcessStopError` raised wherever it is, once, so
    that its ``finally`` clauses run. One that defines ``kill(reason)`` has that called instead,
    at once and again every ``kill_interval``; what it raises is raised wherever the handler is.
    The reason is ``timeout``, ``shutdown``, ``deleted`` or ``lease``. Whatever it does, its
    process and all it has started are killed ``graceful_kill_limit`` seconds later.

    Attributes:
        task: what to run.
    """

    def __init__(self, task: Task) -> None:
        self.task = task

    @property
    def schedules(self) -> Schedules:
        """The schedules of the store that the task came from, over a connection of its own."""
        return self.task.schedules

    def run(self) -> None:
        """Run the task: `before_perform`, `perform` unless that said no, `after_perform`."""
        if not self.before_perform():
            return
        try:
            self.perform()
        finally:
            self.after_perform()

    def before_perform(self) -> bool:
        """Called before `perform`; False leaves the task at that."""
        return True

    def perform(self) -> None:
        """The work itself."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither run nor perform")

    def after_perform(self) -> None:
        """Called after `perform`, also if that raised."""

"""What the keys of the command top do with a schedule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from psched.cli.top.snapshot import ComingTask, PausedTask, RunningTask, Task
from psched.client.collection import ScheduleCollection
from psched.core.model import PAUSED
from psched.core.operations.extra_runs import schedule_key

NOTE = "psched top"
"""The note in the audit trail of what is done here."""


@dataclass(frozen=True, slots=True)
class Action:
    """A change of a schedule.

    Attributes:
        verb: what is done, for the question that is asked before.
        done: what was done, for the message after it.
        apply: does it, given the schedules and the key.
    """

    verb: str
    done: str
    apply: Callable[[ScheduleCollection, str], object]

    def perform(self, schedules: ScheduleCollection, key: str) -> str:
        """Do it, and return a message for the user."""
        with schedules.audited(NOTE):
            self.apply(schedules, key)
        return f"{self.done} {key}"


PAUSE = Action("pause", "paused", lambda schedules, key: schedules[key].pause())
RESUME = Action("resume", "resumed", lambda schedules, key: schedules[key].resume())
TRIGGER = Action("trigger", "triggered", lambda schedules, key: schedules[key].trigger())

ACTIONS: Mapping[str, Callable[[Task], Action]] = {
    "p": lambda task: RESUME if _is_paused(task) else PAUSE,
    "t": lambda _task: TRIGGER,
}
"""For each key of the keyboard: which action it means for a row."""


def _is_paused(task: Task) -> bool:
    if isinstance(task, PausedTask):
        return True
    return isinstance(task, RunningTask | ComingTask) and task.status == PAUSED


def target_of(task: Task) -> str:
    """The key of the schedule that an action changes: of an extra run, that of its schedule."""
    return schedule_key(task.key)

"""Prefetch: a worker leases rows before it has a free slot for them.

With short tasks, a worker would spend most of its time waiting for the store, because it ends the
lease of one task and then claims the next row. So while tasks are short and more rows are due than
slots are free, a worker leases up to one further row per slot. Such a row starts as soon as a slot
is free, before the lease of the task before it has ended.

While all slots are busy with very short tasks, no task waits for a request. Then the ends of leases
wait for a moment, so that one request ends several of them, and the next claim leases several rows.

Another worker could have started a prefetched row. So a row that cannot start soon is given back:
no attempt is counted, and no record is written. The row is then due anew, after all rows that are
due already, so after such a mistake a worker prefetches nothing for a while.
"""

from math import inf

from psched.base.clock import Clock
from psched.config import Config
from psched.worker.running_task import RunningTask
from psched.worker.task_table import TaskTable
from psched.worker.unstarted_leases import UnstartedLeases

_SHORT = 0.1
"""Tasks are short if their mean duration is at most this many seconds."""

_VERY_SHORT = 0.02
"""The ends of leases wait for one another if the mean duration of tasks is at most this many
seconds."""

_GATHERING = 0.01
"""The maximum number of seconds for which the end of a lease waits for others."""

_PATIENCE = 0.15
"""Seconds after which a prefetched row is given back."""

_BACK_OFF = 60.0
"""Seconds without prefetch after a prefetched row had to be given back."""

_WEIGHT = 1 / 8
"""The weight of the latest duration in the mean."""


class Prefetch:
    """Decides how many rows a worker prefetches, and until when they wait.

    Args:
        settings: contain the number of slots.
        clock: measures how long rows wait.
        tasks: the running tasks.
        unstarted: owns the leases of the prefetched rows.
    """

    def __init__(
        self, settings: Config, clock: Clock, tasks: TaskTable, unstarted: UnstartedLeases
    ) -> None:
        self._slots = settings.concurrency
        self._clock = clock
        self._tasks = tasks
        self._unstarted = unstarted
        self._mean = inf
        self._not_before = 0.0

    def ended(self, task: RunningTask) -> None:
        """Note the duration of a task that has ended."""
        took = task.ended - task.started
        self._mean = took if self._mean == inf else self._mean + (took - self._mean) * _WEIGHT

    def back_off(self) -> None:
        """Prefetch nothing for a while, because a row had to be given back."""
        self._not_before = self._clock.monotonic() + _BACK_OFF

    @property
    def tasks_are_short(self) -> bool:
        """Whether the tasks of this worker are known to be short."""
        return self._mean <= _SHORT

    @property
    def free_slots(self) -> int:
        """How many slots have no process; tasks can be started in these now.

        The lease of a task that has ended can be held still.
        """
        return self._slots - sum(not task.empty for task in self._tasks)

    @property
    def room(self) -> int:
        """How many more rows may be prefetched."""
        now = self._clock.monotonic()
        if not self.tasks_are_short or now < self._not_before:
            return 0
        # The slot of a task that turns out to be long will not be free soon.
        long = sum(not task.empty and task.started < now - _SHORT for task in self._tasks)
        unstarted = len(self._unstarted.prefetched) + len(self._unstarted.waiting)
        return max(0, self._slots - long - unstarted)

    @property
    def most(self) -> int:
        """How many rows to prefetch now.

        0 until half of the prefetched rows have been started, because a claim of several rows costs
        hardly more than a claim of one.
        """
        return 0 if len(self._unstarted.prefetched) > self._slots // 2 else self.room

    @property
    def until(self) -> float:
        """When to give back a row that is prefetched now, seconds of the monotonic clock."""
        return self._clock.monotonic() + _PATIENCE

    @property
    def wakes(self) -> float:
        """When the next row is to be given back, seconds of the monotonic clock; inf if none."""
        return min((lease.until for lease in self._unstarted.prefetched.values()), default=inf)

    @property
    def gathers_until(self) -> float:
        """Until when the ends of leases wait for others, seconds of the monotonic clock.

        0 if they do not wait.
        """
        if self._mean > _VERY_SHORT or self.free_slots > 0:
            return 0.0
        return min((each.ended for each in self._tasks if each.empty), default=-inf) + _GATHERING

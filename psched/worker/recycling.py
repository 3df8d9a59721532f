"""Decides when a worker is replaced by a new one, so that leaked memory is freed."""

import random

from psched.config import Config

_JITTER = 0.1
"""Each worker's limits are raised or lowered at random by up to this fraction, so that the workers
are not all replaced at the same time."""


class Recycling:
    """One worker's limits, after which it is replaced: ``worker_max_tasks``, ``worker_max_age``.

    Args:
        settings: contain both limits.
        rng: the source of the random variation of the limits.
        now: the current time, seconds of the monotonic clock.

    Attributes:
        why: why the worker is to be replaced, as a phrase for the log; empty while no limit has
            been reached.
    """

    def __init__(self, settings: Config, rng: random.Random, now: float) -> None:
        tasks, age = settings.worker_max_tasks, settings.worker_max_age
        factor = rng.uniform(1 - _JITTER, 1 + _JITTER)
        self._tasks = max(1, round(tasks * factor)) if tasks else None
        self._until = now + age * factor if age else None
        self.why = ""

    def reached(self, tasks: int, now: float) -> bool:
        """Return True if a limit has been reached, but only once: later calls return False.

        Args:
            tasks: how many tasks the worker has run.
            now: the current time, seconds of the monotonic clock.
        """
        if self.why:
            return False
        if self._tasks is not None and tasks >= self._tasks:
            self.why = f"has run {tasks} tasks"
        elif self._until is not None and now >= self._until:
            self.why = "has reached worker_max_age"
        return bool(self.why)

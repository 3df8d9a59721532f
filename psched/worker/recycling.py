"""Decides when a worker is replaced by a new one, so that memory leaks do not add up."""

import random

from psched.config import Config

_JITTER = 0.1
"""Each worker's limits vary by up to this share, so that not all are replaced at once."""


class Recycling:
    """One worker's limits: ``worker_max_tasks`` and ``worker_max_age``.

    Args:
        settings: the limits.
        rng: draws the jitter.
        now: the current time, seconds of the monotonic clock.

    Attributes:
        why: a phrase for the log that names the limit that was reached; empty until then.
    """

    def __init__(self, settings: Config, rng: random.Random, now: float) -> None:
        tasks, age = settings.worker_max_tasks, settings.worker_max_age
        factor = rng.uniform(1 - _JITTER, 1 + _JITTER)
        self._tasks = max(1, round(tasks * factor)) if tasks else None
        self._until = now + age * factor if age else None
        self.why = ""

    def reached(self, tasks: int, now: float) -> bool:
        """Return True at the first call that finds a limit reached; False at all other calls.

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

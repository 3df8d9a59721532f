"""When a worker that died is replaced, and when a crash loop is given up."""

import random

_BACKOFF = (1.0, 60.0)
"""Seconds: the pause after the second failure in a row, and the limit to which it doubles."""

_HEALTHY = 60.0
"""Seconds of life after which a worker's earlier failures no longer count."""

_CRASH_LOOP = 5
"""Failures in a row, of every worker, that make a crash loop."""


class Respawn:
    """The failures of the workers, by their numbers.

    A worker is replaced at once when it fails for the first time, because others wait for the
    tasks that it ran. Only repeated failures are slowed down.

    Args:
        rng: draws the jitter, so that hosts do not retry in step.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures: dict[int, int] = {}
        self._not_before: dict[int, float] = {}

    def failed(self, number: int, lived: float, now: float) -> None:
        """Note that a worker has exited without being told to.

        Args:
            number: the worker's.
            lived: seconds for which it had been ready.
            now: seconds of the monotonic clock.
        """
        failures = 1 if lived >= _HEALTHY else self._failures.get(number, 0) + 1
        self._failures[number] = failures
        shortest, longest = _BACKOFF
        pause = 0 if failures == 1 else min(longest, shortest * 2 ** (failures - 2))
        self._not_before[number] = now + pause * self._rng.uniform(0.8, 1.2)

    def refused(self, number: int, now: float) -> None:
        """Note that the system had no process for a worker, which is not the worker's failure.

        Args:
            number: the worker's.
            now: seconds of the monotonic clock.
        """
        self._not_before[number] = now + _BACKOFF[0] * self._rng.uniform(0.8, 1.2)

    def allowed(self, number: int, now: float) -> bool:
        """Whether the worker with this number may be forked now."""
        return now >= self._not_before.get(number, now)

    def wakes(self, now: float) -> float:
        """When the next worker may be forked, seconds of the monotonic clock."""
        return min((at for at in self._not_before.values() if at > now), default=float("inf"))

    def forget(self) -> None:
        """Forget earlier failures, because they say nothing about a new generation."""
        self._failures.clear()
        self._not_before.clear()

    def is_crash_loop(self, count: int) -> bool:
        """Whether each of so many workers has failed too often in a row."""
        return count > 0 and all(
            self._failures.get(number, 0) >= _CRASH_LOOP for number in range(count)
        )

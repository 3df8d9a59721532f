"""When a dead worker is replaced, and when workers have failed too often to try again."""

import random

_BACKOFF = (1.0, 60.0)
"""Seconds: the pause after the second failure in a row, and the longest pause. Each further failure
doubles the pause."""

_HEALTHY = 60.0
"""Seconds of life after which a worker's earlier failures no longer count."""

_CRASH_LOOP = 5
"""The number of failures in a row that each worker must have for a crash loop."""


class Respawn:
    """Counts the failures of each worker number, and says when the worker may be replaced.

    After its first failure, a worker is replaced at once, because the tasks that it ran wait for
    another try. After each further failure in a row, the master pauses first.

    Args:
        rng: randomizes the pauses, so that hosts do not retry at the same instants.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures: dict[int, int] = {}
        self._not_before: dict[int, float] = {}

    def failed(self, number: int, lived: float, now: float) -> None:
        """Note that a worker has exited without being told to.

        Args:
            number: the worker's number.
            lived: seconds from the worker's fork to its exit; 0 if it never became ready.
            now: seconds of the monotonic clock.
        """
        failures = 1 if lived >= _HEALTHY else self._failures.get(number, 0) + 1
        self._failures[number] = failures
        shortest, longest = _BACKOFF
        pause = 0 if failures == 1 else min(longest, shortest * 2 ** (failures - 2))
        self._not_before[number] = now + pause * self._rng.uniform(0.8, 1.2)

    def refused(self, number: int, now: float) -> None:
        """Note that the system could not fork a worker. This does not count as a failure.

        Args:
            number: the worker's number.
            now: seconds of the monotonic clock.
        """
        self._not_before[number] = now + _BACKOFF[0] * self._rng.uniform(0.8, 1.2)

    def allowed(self, number: int, now: float) -> bool:
        """Whether the worker with this number may be forked now."""
        return now >= self._not_before.get(number, now)

    def wakes(self, now: float) -> float:
        """When the next pause ends, in seconds of the monotonic clock; infinity: there is none."""
        return min((at for at in self._not_before.values() if at > now), default=float("inf"))

    def forget(self) -> None:
        """Forget all failures and pauses, because they say nothing about a new generation."""
        self._failures.clear()
        self._not_before.clear()

    def is_crash_loop(self, count: int) -> bool:
        """Whether each worker with a number below ``count`` has failed too often in a row."""
        return count > 0 and all(
            self._failures.get(number, 0) >= _CRASH_LOOP for number in range(count)
        )

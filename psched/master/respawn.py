"""Decides when a dead worker is replaced, and when the master gives up replacing workers."""

import random

_BACKOFF = (1.0, 60.0)
"""Two times in seconds: the pause after the second failure in a row, and the longest pause. Each
further failure doubles the pause."""

_HEALTHY = 60.0
"""If a worker fails that has lived for at least this many seconds, the earlier failures of workers
with its number are not counted any more."""

_CRASH_LOOP = 5
"""The master gives up when every worker number has had this many failures in a row."""


class Respawn:
    """Counts the failures of each worker number, and decides when a failed worker is replaced.

    After its first failure, a worker is replaced at once, because the tasks that it ran wait for
    another try. After each further failure in a row, the master waits before it replaces the
    worker, for a time that differs between hosts. All times are of the monotonic clock.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures: dict[int, int] = {}
        self._not_before: dict[int, float] = {}

    def failed(self, number: int, lived: float, now: float) -> None:
        """Count a failure of a worker that exited untold; ``lived`` is 0 if it was never ready."""
        failures = 1 if lived >= _HEALTHY else self._failures.get(number, 0) + 1
        self._failures[number] = failures
        shortest, longest = _BACKOFF
        pause = 0 if failures == 1 else min(longest, shortest * 2 ** (failures - 2))
        self._not_before[number] = now + pause * self._rng.uniform(0.8, 1.2)

    def refused(self, number: int, now: float) -> None:
        """Begin a pause because the system could not fork a worker. No failure is counted."""
        self._not_before[number] = now + _BACKOFF[0] * self._rng.uniform(0.8, 1.2)

    def allowed(self, number: int, now: float) -> bool:
        """Whether a worker with this number can be forked now; False during a pause."""
        return now >= self._not_before.get(number, now)

    def wakes(self, now: float) -> float:
        """When the next pause ends, in seconds of the monotonic clock; infinity if none is left."""
        return min((at for at in self._not_before.values() if at > now), default=float("inf"))

    def forget(self) -> None:
        """Forget all failures and pauses; called when a new generation replaces the old one."""
        self._failures.clear()
        self._not_before.clear()

    def is_crash_loop(self, count: int) -> bool:
        """Whether every worker number below ``count`` has had `_CRASH_LOOP` failures in a row."""
        return count > 0 and all(
            self._failures.get(number, 0) >= _CRASH_LOOP for number in range(count)
        )

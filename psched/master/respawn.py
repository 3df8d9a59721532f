"""When a worker that died may be replaced, and when there is no point in it any more."""

import random

_BACKOFF = (1.0, 60.0)
"""Seconds: the pause after the second failure in a row, doubled each time, and its limit."""

_HEALTHY = 60.0
"""Seconds of life after which a worker's failures are forgotten."""

_HOPELESS = 5
"""Failures in a row, of every worker, that make a crash loop."""


class Respawn:
    """The failures of each worker's place.

    The first failure is answered at once: whoever was waiting for the dead worker's tasks waits
    no longer than needed. Only what fails again is slowed down.

    Args:
        rng: draws the jitter, so that hosts do not retry in step.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures: dict[int, int] = {}
        self._not_before: dict[int, float] = {}

    def failed(self, number: int, lived: float, now: float) -> None:
        """The worker in this place has ended unasked.

        Args:
            number: the place.
            lived: seconds for which it had been ready.
            now: seconds of the monotonic clock.
        """
        failures = 1 if lived >= _HEALTHY else self._failures.get(number, 0) + 1
        self._failures[number] = failures
        shortest, longest = _BACKOFF
        pause = 0 if failures == 1 else min(longest, shortest * 2 ** (failures - 2))
        self._not_before[number] = now + pause * self._rng.uniform(0.8, 1.2)

    def refused(self, number: int, now: float) -> None:
        """The system had no process to give to this place: no failure of its worker's.

        Args:
            number: the place.
            now: seconds of the monotonic clock.
        """
        self._not_before[number] = now + _BACKOFF[0] * self._rng.uniform(0.8, 1.2)

    def allowed(self, number: int, now: float) -> bool:
        """Whether this place may be filled now."""
        return now >= self._not_before.get(number, now)

    def wakes(self, now: float) -> float:
        """When the next place may be filled."""
        return min((at for at in self._not_before.values() if at > now), default=float("inf"))

    def forget(self) -> None:
        """A new generation: what failed before says nothing about it."""
        self._failures.clear()
        self._not_before.clear()

    def hopeless(self, places: int) -> bool:
        """Whether every one of the places has failed too often in a row."""
        return places > 0 and all(
            self._failures.get(number, 0) >= _HOPELESS for number in range(places)
        )

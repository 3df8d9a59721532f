"""Pauses between requests to a store that does not answer, and log lines about each outage."""

import logging
import random
from collections.abc import Callable
from typing import TypeVar

from psched.base import lease_times
from psched.base.clock import Clock
from psched.base.errors import (
    SchemaError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
    TransientStoreError,
    UnknownOutcomeError,
)
from psched.base.texts import brief
from psched.config import Config
from psched.core.history.counts import STORE_ERRORS, STORE_SECONDS, Counts

T = TypeVar("T")

_log = logging.getLogger("psched.worker")

_FIRST_PAUSE = 0.1
"""Seconds of the pause after a first failure; each consecutive failure doubles the pause."""

_FAST_AGAIN_AFTER = 10.0
"""Seconds without a slow answer after which the store counts as fast enough again."""

_MOST_REASONS = 5
"""The maximum number of different reasons that are logged for one outage, each of them once. The
reason can change during an outage."""


_KINDS = {
    UnknownOutcomeError: "unknown_outcome",
    StoreBusyError: "busy",
    StoreUnavailableError: "unavailable",
    SchemaError: "schema",
}
"""For classes of errors, subclasses first: their names in metrics. Others are \"refused\"."""


class Slowness:
    """Warns when the store begins to answer too slowly for the leases, and logs when this ends.

    Args:
        settings: contain the length of leases, and the driver's timeout.
        clock: measures for how long the answers are too slow.
    """

    def __init__(self, settings: Config, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._limit = lease_times.slow_request(settings.alive_time, settings.driver_timeout)
        self._since: float | None = None
        self._last = 0.0
        self._given_back = 0

    def answered(self, took: float) -> None:
        """Note that a request was answered."""
        now = self._clock.monotonic()
        if took > self._limit:
            self._begin(f"the store answers slowly: a request took {took:.1f} s", took, now)
        elif self._since is not None and now >= self._last + _FAST_AGAIN_AFTER:
            text = "the store answers in time again, after %.1f s; leases given back unrun: %d"
            _log.warning(text, now - self._since, self._given_back)
            self._since, self._given_back = None, 0

    def gave_back(self, key: str, lease: float) -> None:
        """Note that a row was given back because its lease was too old to start the task."""
        now = self._clock.monotonic()
        text = f"{key}: given back unrun, its lease of {lease:g} s was too old when it could start"
        self._begin(text, self._limit, now)
        self._given_back += 1

    def _begin(self, text: str, took: float, now: float) -> None:
        self._last = now
        if self._since is not None:
            return
        self._since = now
        # ``took`` can be the time of a claim, which waits for two answers. The calculation treats
        # it as the time of one answer, so that it does not recommend too short an alive_time.
        enough = lease_times.sufficient_alive_time(took, self._settings.database_timeout)
        _log.warning(
            "%s; with alive_time %d, tasks can be killed although the store answers: set"
            " alive_time to %d or more, or make the store or the way to it faster",
            text,
            self._settings.alive_time,
            max(enough, self._settings.alive_time + 1),
        )


def _kind(error: StoreError) -> str:
    """The kind of an error, for metrics."""
    for kind, name in _KINDS.items():
        if isinstance(error, kind):
            return name
    return "refused"


class StoreBackoff:
    """Sends requests to the store; after a failure, sends none until a pause has passed.

    Args:
        clock: measures the pauses, and the time until each answer.
        rng: the source of random pauses, so that workers do not all try again at the same time.
        longest_pause: the maximum pause in seconds.
        slowness: receives the duration of each answered request.
        counts: counts the answers and the failures.

    Attributes:
        not_before: the earliest time of the next request, seconds of the monotonic clock.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        rng: random.Random,
        longest_pause: float,
        slowness: Slowness,
        counts: Counts,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._longest_pause = longest_pause
        self._slowness = slowness
        self._counts = counts
        self._pause = _FIRST_PAUSE
        self.not_before = 0.0
        self._away_since: float | None = None
        self._answered = False
        self._reason = ""
        self._logged: set[str] = set()

    @property
    def away(self) -> str | None:
        """Why the store does not answer; None if it answers."""
        return None if self._away_since is None else self._reason

    @property
    def ready(self) -> bool:
        """Whether a request can be sent now, because no pause is running."""
        return self._clock.monotonic() >= self.not_before

    def ask(self, request: Callable[[], T]) -> T:
        """Send a request, and return the answer."""
        begun = self._clock.monotonic()
        if begun < self.not_before:
            raise StoreUnavailableError(self._reason)
        try:
            answer = request()
        except TransientStoreError as error:
            self._failed(error)
            raise
        except StoreError as error:
            self._failed(error)
            raise StoreUnavailableError(str(error)) from error
        self._answered = True
        took = self._clock.monotonic() - begun
        self._slowness.answered(took)
        self._counts.observe(STORE_SECONDS, took)
        return answer

    def all_answered(self) -> None:
        """Note that all requests of a tick were answered, which ends an outage.

        A single answer does not end an outage, because some stores that fail still answer reads.
        """
        if self._away_since is not None and self._answered:
            away = self._clock.monotonic() - self._away_since
            _log.warning("the store answers again, after %.1f s", away)
            self._away_since, self._pause = None, _FIRST_PAUSE

    def _failed(self, error: StoreError) -> None:
        now, self._reason = self._clock.monotonic(), brief(str(error))
        self._counts.add(STORE_ERRORS, _kind(error))
        self._counts.has_news = True
        self._answered = False
        if self._away_since is None:
            self._away_since, self._logged = now, {self._reason}
            _log.error("%s; running tasks go on while their leases last", error)
        elif self._reason not in self._logged and len(self._logged) < _MOST_REASONS:
            self._logged.add(self._reason)
            _log.info("the store is still away: %s", error)
        self.not_before = now + self._pause * self._rng.uniform(0.5, 1)
        self._pause = min(2 * self._pause, self._longest_pause)

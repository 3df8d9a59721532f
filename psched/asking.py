"""Asking a store that may be away: one line when it goes, one when it is back, no hot loop."""

import logging
import random
from collections.abc import Callable
from typing import TypeVar

from psched.clock import Clock
from psched.errors import StoreError, StoreUnavailableError
from psched.texts import brief

T = TypeVar("T")

_log = logging.getLogger("psched.worker")

_FIRST_PAUSE = 0.1
"""Seconds; each further failure in a row doubles it."""

_REASONS = 5
"""Said about one outage at most, each once: what has begun it need not be what keeps it up."""


class Asker:
    """The pace of requests to a store.

    Args:
        clock: this host's clocks.
        rng: draws the jitter, so that workers do not come back in step.
        longest_pause: seconds between two tries at most.
        before: called before each request, which may take as long as the driver waits.

    Attributes:
        not_before: when to ask again, seconds of the monotonic clock.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        rng: random.Random,
        longest_pause: float,
        before: Callable[[], object],
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._longest_pause = longest_pause
        self._before = before
        self._pause = _FIRST_PAUSE
        self._away_since: float | None = None
        self._answered = False
        self._reason = ""
        self._said: set[str] = set()
        self.not_before = 0.0

    @property
    def away(self) -> str | None:
        """Why the store does not answer, if that is so."""
        return None if self._away_since is None else self._reason

    @property
    def ready(self) -> bool:
        """Whether the store may be asked now."""
        return self._clock.monotonic() >= self.not_before

    def ask(self, request: Callable[[], T]) -> T:
        """Send a request.

        Raises:
            StoreUnavailableError: it failed, has been reported, and the store is to be left
                alone until `not_before`; or that is so already, and it was not sent. Whatever
                the store's reason is, a missing table or a wrong password too: somebody may be
                about to mend it.
        """
        if not self.ready:
            raise StoreUnavailableError(self._reason)
        self._before()
        try:
            answer = request()
        except StoreUnavailableError as error:
            self._failed(error)
            raise
        except StoreError as error:
            self._failed(error)
            raise StoreUnavailableError(str(error)) from error
        self._answered = True
        return answer

    def all_answered(self) -> None:
        """Of all that there was to ask, nothing has failed: the store is back, if it was away.

        One answer does not say that: what cannot be written, say, can often still be read.
        """
        if self._away_since is not None and self._answered:
            away = self._clock.monotonic() - self._away_since
            _log.warning("the store answers again, after %.1f s", away)
            self._away_since, self._pause = None, _FIRST_PAUSE

    def _failed(self, error: StoreError) -> None:
        now, self._reason = self._clock.monotonic(), brief(str(error))
        self._answered = False
        if self._away_since is None:
            self._away_since, self._said = now, {self._reason}
            _log.error("%s; running tasks go on while their leases last", error)
        elif self._reason not in self._said and len(self._said) < _REASONS:
            self._said.add(self._reason)
            _log.info("the store is still away: %s", error)
        self.not_before = now + self._pause * self._rng.uniform(0.5, 1)
        self._pause = min(2 * self._pause, self._longest_pause)

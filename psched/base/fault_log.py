"""A fault that may come back at every tick: one line when it begins, one when it is over."""

import logging

from psched.base.clock import Clock

_QUIET = 5.0
"""Seconds without the fault after which it is over. Less, and two lines would come for each of
many short faults, as when each task that ends makes room for just one other."""

_REASONS = 5
"""Logged of one outage at most, each once."""


class FaultLog:
    """What is logged of one kind of fault.

    Args:
        what: cannot be done, for people.
        log: where to say so.
        clock: this host's clocks.
    """

    def __init__(self, what: str, log: logging.Logger, clock: Clock) -> None:
        self._what = what
        self._log = log
        self._clock = clock
        self._since = self._last = 0.0
        self._times = 0
        self._said: set[int | str] = set()

    @property
    def ongoing(self) -> bool:
        """Whether it has begun and is not over."""
        return self._times > 0

    def failed(self, error: Exception | str) -> None:
        """It has happened, once more perhaps.

        Args:
            error: why, for people.
        """
        self._last = self._clock.monotonic()
        if not self.ongoing:
            self._since = self._last
        self._times += 1
        # The text of an OSError may hold a path that is another each time.
        reason = getattr(error, "errno", None) or str(error)
        if reason not in self._said and len(self._said) < _REASONS:
            self._said.add(reason)
            self._log.error("%s: %s", self._what, error)

    def passed(self) -> None:
        """It does not happen now; to be called again and again."""
        if self.ongoing and self._clock.monotonic() >= self._last + _QUIET:
            took = self._last - self._since
            if self._times > 1:
                self._log.warning("%s: over after %.1f s, %d times", self._what, took, self._times)
            else:
                self._log.warning("%s: over, it happened once", self._what)
            self._times = 0
            self._said.clear()

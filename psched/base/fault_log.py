"""Rate-limited logging of a fault that may recur at every tick: when it begins, when it is over."""

import logging

from psched.base.clock import Clock

_QUIET = 5.0
"""Seconds without the fault after which it is over. With fewer, a fault that comes and goes would
log two lines each time; for example when a fork succeeds only after a task has ended."""

_REASONS = 5
"""The number of different reasons that are logged while the fault lasts; each is logged once."""


class FaultLog:
    """Logs one kind of fault.

    Args:
        what: the fault, for people: ``cannot fork``.
        traceback: each reason is logged with the traceback of its exception.
    """

    def __init__(
        self, what: str, log: logging.Logger, clock: Clock, *, traceback: bool = False
    ) -> None:
        self._what = what
        self._traceback = traceback
        self._log = log
        self._clock = clock
        self._since = self._last = 0.0
        self._times = 0
        self._logged: set[int | str] = set()

    @property
    def ongoing(self) -> bool:
        """Whether the fault has begun and is not over."""
        return self._times > 0

    def failed(self, error: Exception | str) -> None:
        """Note that the fault has occurred, for this reason."""
        self._last = self._clock.monotonic()
        if not self.ongoing:
            self._since = self._last
        self._times += 1
        # The text is not compared, because an OSError may name another path each time.
        reason = getattr(error, "errno", None) or str(error)
        if reason not in self._logged and len(self._logged) < _REASONS:
            self._logged.add(reason)
            shown = error if self._traceback and isinstance(error, Exception) else None
            self._log.error("%s: %s", self._what, error, exc_info=shown)

    def passed(self) -> None:
        """Note that the fault does not occur now; call this at every tick."""
        if self.ongoing and self._clock.monotonic() >= self._last + _QUIET:
            took = self._last - self._since
            if self._times > 1:
                self._log.warning("%s: over after %.1f s, %d times", self._what, took, self._times)
            else:
                self._log.warning("%s: over, it happened once", self._what)
            self._times = 0
            self._logged.clear()

"""Rate-limited logging of a fault that can recur at every tick of a process's loop.

Each new reason and the end of the fault are logged, not each occurrence.
"""

import logging

from psched.base.clock import Clock

_QUIET = 5.0
"""A fault has ended when it has not occurred for this many seconds.

If the time were shorter, an intermittent fault would log two lines for each occurrence. An example
of such a fault is a fork that succeeds only after a task has ended.
"""

_REASONS = 5
"""The largest number of reasons that are logged while a fault lasts; each is logged once."""


class FaultLog:
    """Logs one kind of fault.

    Args:
        what: the description of the fault in the log, such as ``cannot fork``.
        log: receives the messages.
        clock: measures how long the fault lasts.
        traceback: whether each reason is logged with the traceback of its exception.
        patience: seconds for which the fault must last until it is logged. With patience, the
            logged duration ends when `passed` is first called; otherwise with the last occurrence.

    Attributes:
        ongoing: whether the fault has begun and has not ended; read only.
    """

    def __init__(
        self,
        what: str,
        log: logging.Logger,
        clock: Clock,
        *,
        traceback: bool = False,
        patience: float = 0.0,
    ) -> None:
        self._what = what
        self._traceback = traceback
        self._log = log
        self._clock = clock
        self._patience = patience
        self._since = self._last = 0.0
        self._passed: float | None = None
        self.ongoing = False
        self._times = 0
        self._logged: set[int | str] = set()

    def failed(self, error: Exception | str) -> None:
        """Record that the fault has occurred, and log the reason if it is new.

        Nothing is logged before the fault has lasted for ``patience``.
        """
        self._last = self._clock.monotonic()
        if not self.ongoing:
            self._since, self._times = self._last, 0
        self.ongoing = True
        self._times += 1
        self._passed = None
        if self._last < self._since + self._patience:
            return
        # An OSError is identified by its errno, because its text can name another path each time.
        reason = getattr(error, "errno", None) or str(error)
        if reason not in self._logged and len(self._logged) < _REASONS:
            self._logged.add(reason)
            shown = error if self._traceback and isinstance(error, Exception) else None
            self._log.error("%s: %s", self._what, error, exc_info=shown)

    def passed(self) -> None:
        """Log the end of the fault if it was logged and has not occurred for `_QUIET` seconds.

        The caller must call this at every tick at which the fault does not occur.
        """
        if not self.ongoing:
            return
        now = self._clock.monotonic()
        if self._passed is None:
            self._passed = now
        if not self._logged:
            self.ongoing = False
        elif now >= self._last + _QUIET:
            took = (self._passed if self._patience else self._last) - self._since
            how = "over, it happened once"
            if self._times > 1:
                how = f"over after {took:.1f} s, {self._times} times"
            self._log.warning("%s: %s", self._what, how)
            self.ongoing = False
            self._logged.clear()

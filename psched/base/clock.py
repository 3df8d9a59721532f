"""The only module that asks what time it is.

Three clocks, three uses, never mixed:

* ``monotonic``: how long something has taken or been silent. It stops while the machine is
  suspended, so a suspend never looks like a hang.
* ``boottime``: lease deadlines. It continues during a suspend, as the store's clock does.
* ``wall``: what people read, and the offset to the store's clock.

When a row is due and when a lease ends is decided by the store's clock, `Store.now`.
"""

import time
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """Where a process reads time from. All readings are seconds."""

    def monotonic(self) -> float:
        """Seconds since some instant, suspended time excluded."""
        ...

    def boottime(self) -> float:
        """Seconds since boot, suspended time included."""
        ...

    def wall(self) -> float:
        """Unix seconds by this host's clock, which may be wrong, and may be set."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait. Only for pauses between retries, which are far shorter than any deadline."""
        ...


class SystemClock:
    """The kernel's clocks, called directly because a Python function around each takes time."""

    monotonic = staticmethod(time.monotonic)
    boottime = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))
    wall = staticmethod(time.time)
    sleep = staticmethod(time.sleep)

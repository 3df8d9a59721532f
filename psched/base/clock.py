"""The only module that reads a clock.

There are three clocks. Each has one use, and their readings are never compared with each other:

* ``monotonic``: how long something has taken or been silent. It stops while the machine is
  suspended, so a suspend never looks like a hang.
* ``boottime``: lease deadlines. It continues during a suspend, as the store's clock does.
* ``wall``: times that are shown to people, and the offset to the store's clock.

The store's clock, `Store.now`, decides when a row is due and when a lease ends.
"""

import time
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """The source of a process's time. All readings are in seconds."""

    def monotonic(self) -> float:
        """Seconds since an unspecified instant, without the time during which it was suspended."""
        ...

    def boottime(self) -> float:
        """Seconds since boot, suspended time included."""
        ...

    def wall(self) -> float:
        """Unix seconds by this host's clock, which may be wrong, and may be changed at any time."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds.

        Used only for pauses between retries, which are far shorter than any deadline.
        """
        ...


class SystemClock:
    """The kernel's clocks. They are called directly, because a Python wrapper would cost time."""

    monotonic = staticmethod(time.monotonic)
    boottime = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))
    wall = staticmethod(time.time)
    sleep = staticmethod(time.sleep)

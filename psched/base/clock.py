"""The only module of psched that reads a clock.

There are three clocks for three purposes. A reading of one clock is never compared with a reading
of another clock:

* ``monotonic`` measures how long something has taken, or for how long a process has sent nothing.
  This clock stops while the machine is suspended, so that a suspend does not look like a hang.
* ``boottime`` measures lease deadlines. This clock continues during a suspend, as the store's clock
  does.
* ``wall`` gives the times that are shown to people. psched also uses this clock to
  compute the offset between this host's clock and the store's clock.

The store's clock, `Store.now`, decides when a row is due and when a lease ends.
"""

import time
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """The source of a process's time. All readings are in seconds."""

    def monotonic(self) -> float:
        """Seconds since an unspecified instant; time during a suspend is not counted."""
        ...

    def boottime(self) -> float:
        """Seconds since boot, suspended time included."""
        ...

    def wall(self) -> float:
        """Unix seconds by this host's clock, which can be wrong and can be changed at any time."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds.

        Used only for pauses between retries, which are far shorter than any deadline.
        """
        ...


class SystemClock:
    """The kernel's clocks. No Python function wraps them, because a wrapper would cost time."""

    monotonic = staticmethod(time.monotonic)
    boottime = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))
    wall = staticmethod(time.time)
    sleep = staticmethod(time.sleep)

"""The only module that asks what time it is.

Three clocks, three uses, never mixed:

* ``monotonic``: how long something has taken or been silent. It stands still while the
  machine is suspended, so a suspend never looks like a hang.
* ``boottime``: lease deadlines. It goes on during a suspend, as the store's clock does.
* ``wall``: what people read, and the offset to the store's clock.

When a row is due, and when a lease ends, is the store's time: ``Backend.now``.
"""

import time
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """Where a process reads time from. All readings are seconds."""

    def monotonic(self) -> float:
        """Seconds of this host's running time."""
        ...

    def boottime(self) -> float:
        """Seconds since boot, suspended time included."""
        ...

    def wall(self) -> float:
        """Unix seconds as this host believes them to be; may step."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait; only for retries far shorter than any deadline."""
        ...


class SystemClock:
    """The kernel's clocks, without a function of ours around each."""

    monotonic = staticmethod(time.monotonic)
    boottime = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))
    wall = staticmethod(time.time)
    sleep = staticmethod(time.sleep)

"""The only module that asks what time it is.

Three clocks, three uses, never mixed:

* ``monotonic``: how long something has taken or been silent. It stands still while the
  machine is suspended, so a suspend never looks like a hang.
* ``boottime``: lease deadlines. It goes on during a suspend, as the store's clock does.
* ``wall``: what people read, and the offset to the store's clock.

When a row is due, and when a lease ends, is the store's time: ``Backend.now``.
"""

import time
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
    """The kernel's clocks."""

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()

    def boottime(self) -> float:
        """See `Clock.boottime`."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        """See `Clock.wall`."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        time.sleep(seconds)

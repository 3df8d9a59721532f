"""What happened when, by the clock of the witnesses: that of boot time, as Unix seconds."""

import sys
import time

_BOOTED = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
"""Read once: a step of the clock of the day must not move one note against another."""


def unix(boottime: float) -> float:
    """A time of the boot-time clock, as Unix seconds."""
    return _BOOTED + boottime


def now() -> float:
    """The present time."""
    return unix(time.clock_gettime(time.CLOCK_BOOTTIME))


class Journal:
    """Notes what was done, and prints it.

    Attributes:
        begun: the time from which times are shown.
    """

    def __init__(self) -> None:
        self.begun = now()
        self._notes: list[tuple[float, str]] = []

    def note(self, text: str) -> None:
        """Note something that happens now."""
        at = now()
        self._notes.append((at, text))
        sys.stdout.write(f"{self.shown(at)} {text}\n")
        sys.stdout.flush()

    def shown(self, at: float) -> str:
        """A time, for people."""
        return f"{at - self.begun:8.3f}"

    def between(self, since: float, until: float) -> list[str]:
        """The notes of a time."""
        return [f"{self.shown(at)} {text}" for at, text in self._notes if since <= at <= until]

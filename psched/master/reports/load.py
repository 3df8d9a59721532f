"""How busy the workers are: their free slots, and the due rows that wait for one."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from math import floor
from typing import Any, NamedTuple

from psched.base.clock import Clock

_log = logging.getLogger("psched.master")

MOST_DUE = 100
"""A worker counts at most this many due rows, so that the count is cheap."""


class Load(NamedTuple):
    """How busy a worker is, or all workers of a master together."""

    slots: int = 0  # the number of tasks that can run at the same time
    # How many more tasks can be started now; 0 if no more tasks are claimed, or if no process can
    # be forked.
    free: int = 0
    # The number of due rows that wait because no slot is free. `MOST_DUE` means this number or
    # more.
    due: int = 0
    late: float = 0.0  # the seconds by which the oldest of these rows is late; 0 if no row waits

    @property
    def is_full(self) -> bool:
        """Whether no task can be started because all slots are busy."""
        return self.slots > 0 and self.free == 0

    @property
    def capacity(self) -> str:
        """The free slots, as text."""
        return f"{self.free} of {self.slots} slots free"

    @property
    def waiting(self) -> str:
        """The due rows that wait, as text; empty if there are none."""
        if not self.due:
            return ""
        more = " or more" if self.due >= MOST_DUE else ""
        return f"{self.due}{more} due, oldest {floor(self.late)} s late"


def load_in(fields: Mapping[str, Any]) -> Load | None:
    """The load among the fields of a message or document; None if its sender does not report it.

    Older versions of psched do not report it.
    """
    if not all(name in fields for name in Load._fields):
        return None
    return Load(*(fields[name] for name in Load._fields))


def total(loads: Iterable[Load]) -> Load:
    """Return the load of several workers together.

    The slots are added up. The rows that wait are not, because all workers see the same rows.
    """
    found = [Load(), *loads]
    return Load(
        slots=sum(load.slots for load in found),
        free=sum(load.free for load in found),
        due=max(load.due for load in found),
        late=max(load.late for load in found),
    )


class LoadLog:
    """Logs when due rows begin to wait for a slot, and when this ends."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: float | None = None
        self._latest = 0.0

    def note(self, load: Load, unable: Sequence[str] = ()) -> None:
        """Note the load of all workers; log the beginning or the end of an episode."""
        now = self._clock.monotonic()
        if load.due and self._since is None and not load.free:
            self._since, self._latest = now, 0.0
            why = "raise concurrency or processors"
            why = f"no process can be forked: {unable[0]}" if unable else why
            _log.warning("%s, no free slot: %s", load.waiting, why)
        elif not load.due and self._since is not None:
            text = "no due row waits for a slot any more, after %.0f s; the oldest was %d s late"
            _log.info(text, now - self._since, self._latest)
            self._since = None
        self._latest = max(self._latest, load.late)

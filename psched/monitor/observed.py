"""What the master has told the monitor: totals of counts, and what is true now of the workers."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psched.base.clock import Clock
from psched.master.totals import Host

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is known at one moment."""

    # How often each thing has happened, by name and two labels; see `psched.core.history.counts`.
    totals: Mapping[Key, int] = field(default_factory=dict)
    # What is true of the workers of this host; None if the master has not said it yet.
    host: Host | None = None
    # For how many seconds the master has said nothing; 0 if it has never said anything.
    silent: float = 0.0

    def labelled(self, name: str) -> Mapping[tuple[str, str], int]:
        """The totals of one name, by their two labels."""
        return {
            (one, other): count for (of, one, other), count in self.totals.items() if of == name
        }


class Observed:
    """Keeps what the master has told; several threads can read it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._totals: dict[Key, int] = {}
        self._host: Host | None = None
        self._heard = 0.0

    def note(self, message: Mapping[str, Any]) -> None:
        """Note a message of the master of the kind ``totals``."""
        totals: Sequence[tuple[str, str, str, int]] = message["totals"]
        with self._lock:
            self._totals.update({(name, one, other): n for name, one, other, n in totals})
            self._heard = self._clock.monotonic()
            self._host = Host(**{name: message["host"][name] for name in Host._fields})

    @property
    def now(self) -> Observation:
        """What is known now."""
        with self._lock:
            silent = 0.0 if self._host is None else self._clock.monotonic() - self._heard
            return Observation(totals=dict(self._totals), host=self._host, silent=silent)

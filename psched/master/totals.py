"""Adds up what the workers have counted, so that the numbers never fall when a worker is replaced.

The master knows what a count means only as far as `Host` needs it. It passes the totals on to the
monitor, which shows them as metrics.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from psched.base.clock import Clock
from psched.master.reports.load import total
from psched.master.workers import Workers

MOST_COUNTS = 20_000
"""The most totals; all further counts are dropped. Workers send far fewer."""

_MOST_LABELS = 100
"""The most first labels of one name; all further ones are counted as `_OTHER`."""

_OTHER = "other"

_CLAIMS = "claims"
_UNANSWERED = "failed"

Counted = Sequence[Sequence[Any]]
"""Name, first label, second label and number; see `psched.core.history.counts.Counted`."""


class Host(NamedTuple):
    """What is true now of the workers of this host.

    Attributes:
        workers: how many workers are alive.
        ready: how many of them may claim rows.
        away: for how many of them the store does not answer.
        slots: the number of tasks that can run at the same time.
        free: how many more tasks can be started now.
        tasks: how many tasks run, each under its lease.
        deaths: how many workers have died since the master's start.
    """

    workers: int = 0
    ready: int = 0
    away: int = 0
    slots: int = 0
    free: int = 0
    tasks: int = 0
    deaths: int = 0


class Totals:
    """The sums of all that workers have counted since the master's start.

    Args:
        clock: measures the time since the last answered claim.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._totals: dict[tuple[str, str, str], int] = {}
        self._labels: dict[str, set[str]] = {}
        self._changed: set[tuple[str, str, str]] = set()
        self._claimed_at: float | None = None
        self._host = Host()

    def add(self, counted: Counted) -> None:
        """Add what a worker has counted since its last message."""
        for name, label, value, number in counted:
            if name == _CLAIMS and label != _UNANSWERED:
                self._claimed_at = self._clock.monotonic()
            key = name, self._known(name, label), value
            if key in self._totals or len(self._totals) < MOST_COUNTS:
                self._totals[key] = self._totals.get(key, 0) + number
                self._changed.add(key)

    def changes(self, workers: Workers, *, everything: bool) -> Mapping[str, Any] | None:
        """The message for the monitor with the totals that have changed since the last call.

        Args:
            workers: all workers that are alive.
            everything: whether the message contains all totals, for a new monitor.

        Returns:
            The message; None if nothing has changed.
        """
        host = _host(workers)
        if not everything and not self._changed and host == self._host:
            return None
        keys: Iterable[tuple[str, str, str]] = self._totals if everything else self._changed
        totals = [[*key, self._totals[key]] for key in keys]
        self._changed.clear()
        self._host = host
        claimed = self._claimed_at
        ago = None if claimed is None else self._clock.monotonic() - claimed
        return {"totals": totals, "host": host._asdict(), "claimed_ago": ago}

    def _known(self, name: str, label: str) -> str:
        labels = self._labels.setdefault(name, set()) if len(self._labels) < _MOST_LABELS else set()
        if label not in labels and len(labels) >= _MOST_LABELS:
            return _OTHER
        labels.add(label)
        return label


def _host(workers: Workers) -> Host:
    living = [*workers]
    load = total(worker.load for worker in living if not worker.draining)
    return Host(
        workers=len(living),
        ready=sum(worker.ready and not worker.draining for worker in living),
        away=sum(worker.store_fault is not None for worker in living),
        slots=load.slots,
        free=load.free,
        tasks=sum(worker.tasks for worker in living),
        deaths=workers.deaths,
    )

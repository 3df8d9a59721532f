"""Adds up what the workers have counted, so that the numbers never fall when a worker is replaced.

The master does not know what a count means. It passes the totals on to the monitor, which shows
them as metrics.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import floor
from typing import Any, NamedTuple

from psched.base.texts import brief
from psched.master.messages import MOST_COUNTS
from psched.master.reports.health import total
from psched.master.workers import Workers

_MOST_LABELS = 100
"""The most names, and the most first labels of one name; further labels count as `_OTHER`."""

_OTHER = "other"

Counted = Sequence[Sequence[Any]]
"""Name, first label, second label and number; see `psched.core.history.counts.Counted`."""


class Host(NamedTuple):
    """What is true now of the workers of this host."""

    slots: int = 0  # the number of tasks that can run at the same time
    free: int = 0  # how many more tasks can be started now
    tasks: int = 0  # how many tasks run, each under its lease
    # How many due rows wait because no slot is free, see `psched.master.reports.health.Load`.
    due: int = 0
    late: int = 0  # the whole seconds by which the oldest of these rows is late
    deaths: int = 0  # how many workers have died since the master's start
    # When the last one has died, in seconds of the boot-time clock; None if none has.
    last_death: float | None = None
    # Why no task could be claimed lately, see `psched.master.reports.health`; None if one could be.
    problem: str | None = None


class Totals:
    """The sums of all that workers have counted since the master's start."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str, str], int] = {}
        self._labels: dict[str, set[str]] = {}
        self._changed: set[tuple[str, str, str]] = set()
        self._host = Host()

    def add(self, counted: Counted) -> None:
        """Add what a worker has counted since its last message; drop it if there are too many."""
        for name, label, value, number in counted:
            key = name, self._known(name, label), value
            if key in self._totals or len(self._totals) < MOST_COUNTS:
                self._totals[key] = self._totals.get(key, 0) + number
                self._changed.add(key)

    def changes(
        self, host: Host, *, everything: bool, anyway: bool = False
    ) -> Mapping[str, Any] | None:
        """The message for the monitor with the totals that have changed since; None without any."""
        if not (everything or anyway) and not self._changed and host == self._host:
            return None
        keys: Iterable[tuple[str, str, str]] = self._totals if everything else self._changed
        totals = [[*key, self._totals[key]] for key in keys]
        self._changed.clear()
        self._host = host
        return {"totals": totals, "host": host._asdict()}

    def _known(self, name: str, label: str) -> str:
        if name not in self._labels and len(self._labels) >= _MOST_LABELS:
            return _OTHER
        labels = self._labels.setdefault(name, set())
        if label not in labels and len(labels) >= _MOST_LABELS:
            return _OTHER
        labels.add(label)
        return label


def host_of(workers: Workers, problem: str | None) -> Host:
    """What is true now of the workers."""
    living = [*workers]
    load = total(worker.load for worker in living if not worker.draining)
    return Host(
        slots=load.slots,
        free=load.free,
        tasks=sum(worker.tasks for worker in living),
        due=load.due,
        late=floor(load.late),
        deaths=workers.deaths,
        last_death=workers.last_death,
        problem=None if problem is None else brief(problem),
    )

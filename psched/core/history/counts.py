"""Counts what a worker does, for metrics: whole numbers, which are sent to the master as deltas.

A count is identified by a name and two labels. A histogram is several counts: one for each bucket,
and one for the sum of all values, in microseconds.
"""

from bisect import bisect_left
from collections.abc import Sequence

from psched.core.history.records import DECISIONS, MOST_COUNTED, SKIPPED, WHOLE, Attempt, Outcome
from psched.core.model import Settlement

RUNS = "runs"
ATTEMPTS = "attempts"
LATENESS = "lateness"
DURATION = "duration"
CLAIMS = "claims"
STORE_ERRORS = "store_errors"
STORE_SECONDS = "store_seconds"
SKIPS = "skips"

BUCKETS = {
    LATENESS: (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 1800, 7200),
    DURATION: (0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14_400, 43_200, 86_400),
    STORE_SECONDS: (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
}
"""For each histogram: the upper bounds of its buckets, in seconds. One more bucket has no bound."""

SUM = "sum"
"""The first label of the count that is the sum of a histogram's values, in microseconds."""

OTHER = "other"
"""Stands for each further type of task when there are too many."""

_MOST_TYPES = 100
"""The most types of task that are counted apart."""

_LONGEST_TYPE = 100
"""The most characters of a type that is counted apart."""

Counted = Sequence[tuple[str, str, str, int]]
"""Deltas: name, first label, second label, and by how much the count has grown."""


class Counts:
    """What has been counted and not yet been sent.

    Attributes:
        has_news: whether more was counted than what every search for due rows counts.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], int] = {}
        self._types: set[str] = set()
        self.has_news = False

    def add(self, name: str, label: str = "", value: str = "", number: int = 1) -> None:
        """Count ``number`` more of the metric ``name`` with these two labels."""
        key = name, label, value
        self._counts[key] = self._counts.get(key, 0) + number

    def observe(self, name: str, seconds: float) -> None:
        """Count a value in its bucket of a histogram."""
        seconds = max(0.0, seconds)
        self.add(name, str(bisect_left(BUCKETS[name], seconds)))
        self.add(name, SUM, number=round(seconds * 1_000_000))

    def started(self, late: float) -> None:
        """Count a started task."""
        self.has_news = True
        self.observe(LATENESS, late)

    def ended(self, type_: str, attempt: Attempt) -> None:
        """Count an attempt that has ended, however it has."""
        self.has_news = True
        self.add(ATTEMPTS, self._known(type_), attempt.outcome)
        if attempt.started is not None and attempt.outcome in WHOLE:
            self.observe(DURATION, (attempt.ended - attempt.started) / 1000)

    def lost(self, type_: str) -> None:
        """Count an attempt that has ended without anybody seeing its end."""
        self.has_news = True
        self.add(ATTEMPTS, self._known(type_), Outcome.LOST)

    def decided(self, type_: str, settlement: Settlement) -> None:
        """Count what became of occurrences by a settlement."""
        self.has_news = True
        if settlement.fate in DECISIONS:
            self.add(RUNS, self._known(type_), settlement.fate)
        elif settlement.fate in SKIPPED:
            self.add(SKIPS, settlement.fate)
        for span in settlement.skipped:
            # The policy does not count the occurrences of a long span, so it counts as the fewest
            # that it can have.
            least = 1 if span.until is None else MOST_COUNTED + 1
            self.add(SKIPS, span.fate, number=least if span.count is None else span.count)

    def take(self) -> Counted:
        """Return what was counted since the last call."""
        counts, self._counts, self.has_news = self._counts, {}, False
        return [(*key, number) for key, number in counts.items()]

    def _known(self, type_: str) -> str:
        """The type, or `OTHER` if there are too many, or if it cannot be shown."""
        if type_ not in self._types:
            shown = type_.isprintable() and len(type_) <= _LONGEST_TYPE
            if not shown or len(self._types) >= _MOST_TYPES:
                return OTHER
            self._types.add(type_)
        return type_

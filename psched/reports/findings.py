"""What the check of the run history finds: violations of promises, and what nobody can tell."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from psched.core.catchup import iso
from psched.core.history.records import RunRecord

TOLERANCE = 1000
"""By how many milliseconds two times of different records can be wrong without being a violation.

The times of a record are estimates, see `psched.core.history.records`: each is wrong by at most
half the duration of a worker's request, and requests that take longer than a second are used only
by a worker that has had no shorter one.
"""


class Kind(StrEnum):
    """The promise that was not kept."""

    MISSING = "missing"
    """An occurrence has no fate, although its schedule has moved on or ended."""
    REPEATED = "repeated"
    """An occurrence has two fates, or ran again after its fate."""
    OVERLAP = "overlap"
    """Two runs of one schedule overlap."""
    FENCE = "fence"
    """A later lease has no larger fence."""
    EARLY = "early"
    """A run has started before it was due."""
    PAUSED = "paused"
    """A run has started while its schedule was paused, or after its occurrence was skipped; or it
    was skipped before it was due."""
    STALE = "stale"
    """Somebody whose lease was over has changed the row."""
    UNSEEN = "unseen"
    """A record tells of a success that nobody has seen, or no record tells of a run."""
    HOST = "host"
    """A run was on a host that its schedule does not name."""
    STUCK = "stuck"
    """Nothing runs a row that is due, or nobody ends a lease."""
    STOPPED = "stopped"
    """A run has begun or gone on after the last master had stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A promise that was not kept, about one occurrence or ``count`` of them."""

    kind: Kind
    key: str
    instant: int  # the scheduled time of the occurrence, or of the first one, in Unix seconds
    text: str  # a sentence for people, without the key
    # The scheduled time of the last occurrence; None if there is one occurrence only.
    until: int | None = None
    count: int = 1
    # The lease, as ``owner#fence``; None if the violation is about no single lease.
    lease: str | None = None

    @classmethod
    def of_run(cls, kind: Kind, record: RunRecord, text: str) -> "Violation":
        """A violation by one run."""
        instant = record.scheduled_time
        return cls(kind=kind, key=record.key, instant=instant, lease=record.lease, text=text)


@dataclass(slots=True)
class Findings:
    """The result of a check of schedules: how much was checked, and what was found."""

    schedules: int = 0
    # How many occurrences were checked. An occurrence in a span that was not counted when it was
    # dropped does not count here, either.
    instants: int = 0
    runs: int = 0
    pending: int = 0  # how many occurrences are due, and wait or run
    # How many occurrences have an unknown fate, by the reason.
    unknown: dict[str, int] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)

    def add(self, other: "Findings") -> None:
        """Add the findings about another schedule."""
        self.schedules += other.schedules
        self.instants += other.instants
        self.runs += other.runs
        self.pending += other.pending
        for reason, count in other.unknown.items():
            self.note_unknown(reason, count)
        self.violations += other.violations

    def note_unknown(self, reason: str, count: int) -> None:
        """Note that the fates of some occurrences cannot be known, for a reason."""
        self.unknown[reason] = self.unknown.get(reason, 0) + count


def show(milliseconds: int) -> str:
    """A time in UTC with milliseconds, as ISO 8601 text."""
    try:
        shown = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError):
        return f"{milliseconds} ms"
    return shown.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def show_range(first: int, last: int) -> str:
    """One scheduled time, or a range of them, as text."""
    return iso(first) if first == last else f"{iso(first)} to {iso(last)}"

"""What the command top shows, as data."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

MOST_ROWS = 100
"""The most tasks of a kind that are read from the store; of failures, more can be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """A task that runs now.

    Attributes:
        key: the key of its row.
        type: its type.
        status: ``running``; ``paused`` if its schedule was paused meanwhile; or a mark of
            `psched.core.model.MARKS`.
        host: the name of the host that runs it; None if it is not known.
        attempt: the number of the attempt.
        elapsed: the seconds since it was claimed; None if they are not known.
        usual: the median of how long the last runs of its schedule took, in seconds; None if it is
            not known.
        percent: its progress; None if it tells none, or runs on another host.
        text: the text of its progress.
    """

    key: str
    type: str
    status: str
    host: str | None
    attempt: int
    elapsed: float | None
    usual: float | None = None
    percent: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateTask:
    """A schedule that is due, but does not run.

    Attributes:
        key: its key.
        type: its type.
        late: the seconds since it could have started; None if its row does not tell.
        reason: why, as far as its row tells.
    """

    key: str
    type: str
    late: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComingTask:
    """A schedule that falls due later, or whose pause ends later.

    Attributes:
        key: its key.
        type: its type.
        status: ``waiting`` or ``paused``.
        at: when, in Unix seconds.
        trigger: its trigger's text; None if it runs once.
    """

    key: str
    type: str
    status: str
    at: int
    trigger: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTask:
    """An attempt that has failed, or an occurrence that was given up.

    Attributes:
        key: the key of its schedule.
        type: its type.
        result: its fate or outcome.
        ended: when, in Unix seconds.
        host: the host that ran it; None if it is not known.
        reason: why.
    """

    key: str
    type: str
    result: str
    ended: float
    host: str | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedTask:
    """A schedule that is paused.

    Attributes:
        key: its key.
        type: its type.
        reason: since when it is paused, until when, by whom and why.
    """

    key: str
    type: str
    reason: str = ""


Task = RunningTask | LateTask | ComingTask | FailedTask | PausedTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Master:
    """A master of this host, or all workers of another host.

    Attributes:
        host: the name of the host.
        pid: the process of the master; None for another host.
        phase: what it is doing, such as ``serving``; ``silent`` if it does not answer.
        generation: the number of its generation; None if it is not known.
        workers: the number of its workers.
        slots: how many tasks they can run at the same time.
        free: how many more tasks they can start.
        clock: by how many seconds the host's clock is ahead of the store's clock; negative if it is
            behind. None if it is not known.
        seen: how many seconds ago a worker of another host last wrote its record; None for this
            host.
    """

    host: str
    pid: int | None = None
    phase: str = "serving"
    generation: int | None = None
    workers: int = 0
    slots: int = 0
    free: int = 0
    clock: float | None = None
    seen: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the command top shows.

    Attributes:
        now: the time of the store's clock, in Unix seconds; None if the store has never answered.
        table: the table and its database.
        masters: the masters of this host, then the other hosts that have live workers.
        counts: the number of rows by status, and of due rows; see
            `psched.core.operations.overview.Overview.counts`. A status that cannot be counted is
            left out.
        running: the tasks that run now, the oldest first.
        late: schedules that are due, the oldest first.
        coming: schedules that fall due next.
        failed: what has failed in the last hour, the newest first.
        paused: schedules that are paused.
        pauses: what standing rules pause, since when, until when, by whom and why.
        problems: what prevents a complete picture, in words.
        away: whether the store does not answer; everything from the store is then old.
    """

    now: float | None
    table: str
    masters: Sequence[Master] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    running: Sequence[RunningTask] = ()
    late: Sequence[LateTask] = ()
    coming: Sequence[ComingTask] = ()
    failed: Sequence[FailedTask] = ()
    paused: Sequence[PausedTask] = ()
    pauses: Sequence[str] = ()
    problems: Sequence[str] = ()
    away: bool = False

    @property
    def slots(self) -> int:
        """How many tasks all workers can run at the same time."""
        return sum(master.slots for master in self.masters)

    @property
    def free(self) -> int:
        """How many more tasks all workers can start."""
        return sum(master.free for master in self.masters)

    def as_object(self) -> dict[str, Any]:
        """The snapshot as a JSON object."""
        return {**asdict(self), "slots": self.slots, "free": self.free}

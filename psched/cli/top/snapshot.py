"""What the command top shows, and how it is read: from the masters of this host and the store."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from dataclasses import replace as changed
from statistics import median
from typing import Any, NamedTuple

from psched.base.clock import Clock
from psched.base.errors import PschedError, StoreError, TransientStoreError
from psched.cli.daemon.masters import serves, shown_progress, table_of
from psched.cli.shown import late_by, result, shown_pause
from psched.cli.time_format import short_time
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.core.history.records import WorkerRecord, nonce_of
from psched.core.history.run import Run
from psched.core.model import RUNNING, Occurrence, Pause, Row
from psched.core.operations.extra_runs import schedule_key
from psched.core.operations.overview import MOST_COUNTED, Overview
from psched.reports.redaction import Redaction

MOST_ROWS = 100
"""The most tasks of a kind that are read from the store; of failures, more can be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """A task that runs now.

    Attributes:
        status: ``running``; ``paused`` if its schedule was paused meanwhile; or a mark of
            `psched.core.model.MARKS`.
        host: the name of the host that runs it; None if it is not known.
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
        result: its fate or outcome.
        ended: when, in Unix seconds.
    """

    key: str
    type: str
    result: str
    ended: float
    host: str | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedTask:
    """A schedule that is paused; the reason says since when, until when, by whom and why."""

    key: str
    type: str
    reason: str = ""


Task = RunningTask | LateTask | ComingTask | FailedTask | PausedTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Master:
    """A master of this host, or all workers of another host.

    Attributes:
        pid: the process of the master; None for another host.
        phase: what it is doing, such as ``serving``; ``silent`` if it does not answer.
        generation: the number of its generation; None if it is not known.
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
        counts: see `psched.core.operations.overview.Overview.counts`.
        running: the oldest first, as of those that are late.
        failed: what has failed in the last hour, the newest first.
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


FAILED_WITHIN = 3600  # failures are shown for so many seconds
_SEARCHED_FIRST = 20_000  # among so many of the newest records, the first screen searches failures

_SEARCHED = 2000
"""Among so many of the newest records, each further screen searches failures that are new."""

_CLOCK_INTERVAL = 30.0
"""The seconds between two comparisons of this host's clock with the store's clock."""

AskMasters = Callable[[], Iterable[tuple[int, Mapping[str, Any] | OSError]]]
"""Asks the masters of this host for their status; see `psched.master.reports.queries`."""


class _Here(NamedTuple):
    """What the masters of this host say that serve the configured table.

    The workers are their process ids, the tasks are by occurrence, and the problems are the masters
    that do not answer, in words.
    """

    masters: Sequence[Master]
    workers: frozenset[int]
    tasks: Mapping[str, Mapping[str, Any]]
    problems: Sequence[str]


class Reader:
    """Reads snapshots; a snapshot needs a few requests, however many schedules there are.

    What has not changed since the previous snapshot is not read again: how long the runs of a
    schedule usually take, as long as the same run goes on, and failures.
    """

    def __init__(
        self,
        schedules: ScheduleCollection,
        settings: Config,
        *,
        ask_masters: AskMasters,
        clock: Clock,
        host: str | None = None,
        told: Callable[[Exception], str] = str,
    ) -> None:
        self._schedules = schedules
        self._settings = settings
        self._redaction = Redaction(settings.redact)
        self._ask_masters = ask_masters
        self._clock = clock
        self._host = settings.this_host if host is None else host
        self._told = told
        self._usual: dict[str, tuple[int, float | None]] = {}
        self._failures: dict[tuple[str, int, str], Run] = {}
        self._searched = False
        self._ahead: tuple[float, float] | None = None
        self._last = Snapshot(now=None, table=table_of(settings))

    def read(self) -> Snapshot:
        """Read a snapshot. If the store does not answer, the snapshot contains what was last read.

        No error of the store is raised; the snapshot's ``problems`` describe it.
        """
        here = self._read_here()
        try:
            self._last = self._read_store(here)
        except (PschedError, OSError) as error:
            self._schedules.close()
            return self._without_store(here, error)
        return self._last

    def progress(self, occurrence: Occurrence) -> Mapping[str, Any] | None:
        """The progress of a task that runs on this host; None if it reports none."""
        task = self._read_here().tasks.get(str(occurrence))
        return None if task is None else shown_progress(task, self._redaction)

    def _without_store(self, here: _Here, error: Exception) -> Snapshot:
        """What was last read from the store, and what the masters of this host say now."""
        text = self._redaction.text(self._told(error))
        away = isinstance(error, TransientStoreError | OSError)
        problem = f"the store does not answer: {text}" if away else text
        known = {task.key: task for task in self._last.running}
        running = []
        for occurrence, task in here.tasks.items():
            key = occurrence.rpartition(".")[0]
            before = known.get(key)
            made = RunningTask(
                key=key,
                type=str(task["type"]),
                status=RUNNING,
                host=self._host,
                attempt=int(task["attempt"]),
                elapsed=float(task["running_for"]),
                usual=None if before is None else before.usual,
            )
            running.append(self._with_progress(made, task))
        others = [task for task in self._last.running if task.host != self._host]
        elsewhere = [master for master in self._last.masters if master.seen is not None]
        return changed(
            self._last,
            masters=(*here.masters, *elsewhere),
            running=(*running, *others),
            problems=(problem, *here.problems),
            away=True,
        )

    def _read_store(self, here: _Here) -> Snapshot:
        seen = self._schedules.overview(MOST_ROWS)
        shown = self._schedules.shown_as_paused()
        problems = [*here.problems]
        workers: Sequence[WorkerRecord] = ()
        failed: Sequence[Run] = ()
        try:
            workers = self._schedules.live_workers()
            failed = self._read_failures(seen.now)
            self._read_usual(seen.running)
        except (TransientStoreError, OSError):
            raise
        except (PschedError, StoreError) as error:
            problems.append(f"no run history: {self._redaction.text(str(error))}")
        hosts = {worker.nonce: worker.host for worker in workers}
        masters = [changed(each, clock=self._measure_clock()) for each in here.masters]
        return Snapshot(
            now=seen.now,
            table=self._last.table,
            masters=(*masters, *self._elsewhere(workers, here, seen)),
            counts=seen.counts,
            running=tuple(self._running(row, seen.now, hosts, here) for row in seen.running),
            late=tuple(self._late(row, shown(row), seen.now) for row in seen.late),
            coming=tuple(
                self._coming(row) for row in map(shown, seen.following) if row.next_run_time
            ),
            failed=tuple(self._failed(run) for run in failed),
            paused=tuple(
                PausedTask(key=row.key, type=row.type, reason=self._paused(row, seen.now, ""))
                for row in seen.paused
            ),
            pauses=tuple(f"paused {self._pause(rule.pause, seen.now)}" for rule in shown.rules),
            problems=tuple(problems),
        )

    # --- this host -----------------------------------------------------------------------

    def _read_here(self) -> _Here:
        masters: list[Master] = []
        workers: set[int] = set()
        tasks: dict[str, Mapping[str, Any]] = {}
        problems: list[str] = []
        for pid, answer in self._ask_masters():
            if isinstance(answer, OSError):
                why = answer.strerror or answer
                problems.append(f"psched-master {pid} does not answer: {why}")
                continue
            if not serves(answer, self._settings):
                continue
            masters.append(
                Master(
                    host=self._host,
                    pid=pid,
                    phase=str(answer["phase"]),
                    generation=answer["generation"],
                    workers=len(answer["workers"]),
                    slots=answer.get("slots", 0),
                    free=answer.get("free", 0),
                )
            )
            for worker in answer["workers"]:
                workers.add(worker["pid"])
                tasks |= {task["occurrence"]: task for task in worker["tasks"]}
        return _Here(masters, frozenset(workers), tasks, problems)

    def _measure_clock(self) -> float:
        """By how many seconds this host's clock is ahead of the store's clock."""
        now = self._clock.monotonic()
        if self._ahead is None or now - self._ahead[1] >= _CLOCK_INTERVAL:
            sent = self._clock.wall()
            store = self._schedules.now()
            self._ahead = (sent + self._clock.wall()) / 2 - store, now
        return self._ahead[0]

    # --- the store -----------------------------------------------------------------------

    def _elsewhere(
        self, workers: Sequence[WorkerRecord], here: _Here, seen: Overview
    ) -> Iterator[Master]:
        """The hosts of the live workers that no master of this host has named."""
        busy: dict[str, int] = {}
        for row in seen.running:
            nonce = nonce_of(row.owner or "")
            busy[nonce] = busy.get(nonce, 0) + 1
        all_read = len(seen.running) < MOST_ROWS
        by_host: dict[str, list[WorkerRecord]] = {}
        for worker in workers:
            if worker.host != self._host or worker.pid not in here.workers:
                by_host.setdefault(worker.host, []).append(worker)
        for host, found in sorted(by_host.items()):
            # The rows tell how busy a worker is now; its record is up to a minute old.
            free = [
                max(0, each.slots - (busy.get(each.nonce, 0) if all_read else each.busy))
                for each in found
            ]
            found.sort(key=lambda each: each.seen)
            offsets = [each.clock_offset for each in found if each.clock_offset is not None]
            yield Master(
                host=host,
                workers=len(found),
                slots=sum(each.slots for each in found),
                free=sum(free),
                clock=offsets[-1] / 1000 if offsets else None,
                seen=max(0.0, seen.now - found[-1].seen),
            )

    def _read_failures(self, now: float) -> Sequence[Run]:
        since = int(now) - FAILED_WITHIN
        among = _SEARCHED if self._searched else _SEARCHED_FIRST
        found = self._schedules.failures(since, among=among, limit=MOST_COUNTED)
        self._searched = True
        # The new ones come first, and a record that was replaced stays where it was.
        newest = {(r.key, r.scheduled_time, r.record.owner): r for r in found}
        kept = {lease: r for lease, r in self._failures.items() if r.ended >= since}
        merged = sorted({**kept, **newest}.items(), key=lambda each: -each[1].ended)
        self._failures = dict(merged[:MOST_COUNTED])
        return [*self._failures.values()]

    def _read_usual(self, rows: Sequence[Row]) -> None:
        """Find how long the runs of the running schedules usually take, unless it is known."""
        of = {row.key: schedule_key(row.key) for row in rows}
        known = {
            row.key: self._usual[row.key]
            for row in rows
            if row.key in self._usual and self._usual[row.key][0] == row.fence
        }
        new = [row for row in rows if row.key not in known]
        took = self._schedules.durations([*{of[row.key] for row in new}]) if new else {}
        for row in new:
            runs = took.get(of[row.key])
            known[row.key] = row.fence, median(runs) / 1000 if runs else None
        self._usual = known

    def _running(self, row: Row, now: float, hosts: Mapping[str, str], here: _Here) -> RunningTask:
        occurrence = Occurrence(row.key, row.next_time or 0)
        task = here.tasks.get(str(occurrence))
        elapsed = None if row.claimed_at is None else max(0.0, now - row.claimed_at)
        made = RunningTask(
            key=row.key,
            type=row.type,
            status=row.state,
            host=hosts.get(nonce_of(row.owner or "")),
            attempt=row.attempt,
            elapsed=elapsed,
            usual=self._usual.get(row.key, (0, None))[1],
        )
        if task is None:
            return made
        with_time = changed(made, host=self._host, elapsed=float(task["running_for"]))
        return self._with_progress(with_time, task)

    def _with_progress(self, made: RunningTask, task: Mapping[str, Any]) -> RunningTask:
        progress = shown_progress(task, self._redaction)
        if progress is None:
            return made
        return changed(made, percent=progress["percent"], text=progress["text"] or "")

    def _late(self, row: Row, shown: Row, now: float) -> LateTask:
        reason = self._paused(shown, now, "paused ")
        if row.owner is not None:
            reason = "its lease has ended: its worker died"
        return LateTask(key=row.key, type=row.type, late=late_by(row, now), reason=reason)

    def _coming(self, row: Row) -> ComingTask:
        return ComingTask(
            key=row.key,
            type=row.type,
            status=row.state,
            at=row.next_run_time or 0,
            trigger=None if row.cron is None else self._text(row.cron),
        )

    def _failed(self, run: Run) -> FailedTask:
        return FailedTask(
            key=run.key,
            type=run.type,
            result=result(run),
            ended=run.ended,
            host=run.host,
            reason=self._text(run.reason),
        )

    def _paused(self, row: Row, now: float, before: str) -> str:
        """The reason of a row; of one that somebody has paused, ``before`` and the pause."""
        if row.pause is None or row.pause.since is None:
            return self._text(row.reason)
        return before + self._pause(row.pause, now)

    def _pause(self, pause: Pause, now: float) -> str:
        return self._text(shown_pause(pause, lambda time: short_time(time, now), since=True))

    def _text(self, text: str | None) -> str:
        return self._redaction.text(text or "")

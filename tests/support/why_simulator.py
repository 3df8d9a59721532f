"""A schedule that is simulated minute by minute, and what became of each of its occurrences.

The simulator knows what became of an occurrence because it has decided it. It uses none of the
functions that explain: it writes the records, the row, the workers and the changes that psched
would have written, and the truth beside them.
"""

import json
from collections import Counter
from dataclasses import dataclass, field

from psched.core.history.records import AuditRecord, RunRecord, WorkerRecord
from psched.core.model import Row

BEGIN = 1_795_305_600
"""2026-11-22T00:00:00Z, the first minute."""

MINUTE = 60
KEY, TYPE = "s1", "job"


@dataclass(frozen=True)
class Life:
    """A worker of the simulation; the times are minutes."""

    start: int
    end: int
    slots: int = 1
    types: tuple[str, ...] = ()
    killed: bool = False


@dataclass(frozen=True)
class Plan:
    """What happens in a simulation; the times are minutes.

    Attributes:
        every: the interval of the schedule.
        delay: its delay in seconds.
        catchup: its setting ``catchup``.
        workers: the workers.
        others: other tasks: for each, the number of its worker, its start and its end.
        fails: how often the n-th occurrence of the day fails.
        takes: how long its last attempt takes.
        cancel: when the schedule is cancelled.
        change: when its interval is changed, and to what.
        until: the end of the simulation.
    """

    every: int = 10
    delay: int = 0
    catchup: str = "all"
    workers: tuple[Life, ...] = ()
    others: tuple[tuple[int, int, int], ...] = ()
    fails: dict[int, int] = field(default_factory=dict)
    takes: dict[int, int] = field(default_factory=dict)
    cancel: int | None = None
    change: tuple[int, int] | None = None
    created: int = 0
    until: int = 480


MOST_ATTEMPTS, RETRY_WAIT = 2, 2
"""The settings of the simulated schedule; the wait in minutes."""


class Simulation:
    """Runs a plan.

    Attributes:
        truth: for each scheduled time, the expected code.
        causes: for each scheduled time that ran late, how many minutes it waited for each cause.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.every = plan.every
        self.records: list[RunRecord] = []
        self.audits: list[AuditRecord] = []
        self.truth: dict[int, str] = {}
        self.causes: dict[int, Counter[str]] = {}
        self.status, self.attempt, self.fence = "waiting", 0, 0
        self.cursor = self.first(at(plan.created))
        self.due = self.cursor + plan.delay
        self.running: tuple[int, int, int] | None = None  # worker, start, end
        self.waited: Counter[str] = Counter()
        self.obstacles: list[str] = []
        for minute in range(plan.created, plan.until + 1):
            self.tick(minute)
        self.now = at(plan.until) + 0.5
        self.conclude()

    def first(self, instant: int) -> int:
        """The first occurrence at or after an instant."""
        step = self.every * MINUTE
        return -(-instant // step) * step

    def following(self, instant: int) -> int:
        return self.first(instant + 1)

    # --- one minute ----------------------------------------------------------------------

    def tick(self, minute: int) -> None:
        now = at(minute)
        if self.running and self.running[2] <= minute:
            self.settle(now)
        if not self.running:
            self.steer(minute, now)
        while self.status == "waiting" and not self.running and self.due <= now:
            why = self.obstacle(minute)
            if why is not None:
                self.waited[why] += 1
                self.obstacles.append(why)
                return
            if self.attempt == 0 and self.drop_missed(now):
                continue
            self.start(minute, now)

    def obstacle(self, minute: int) -> str | None:
        """Why no worker takes the occurrence in this minute; None if one does."""
        alive = [(n, w) for n, w in enumerate(self.plan.workers) if w.start <= minute < w.end]
        takers = [(n, w) for n, w in alive if not w.types or TYPE in w.types]
        free = [n for n, w in takers if self.load(n, minute) < w.slots]
        if not alive:
            return "no_worker"
        if not takers:
            return "no_worker_takes_type"
        return None if free else "all_slots_busy"

    def load(self, worker: int, minute: int) -> int:
        return sum(1 for w, start, end in self.plan.others if w == worker and start <= minute < end)

    def start(self, minute: int, now: int) -> None:
        worker = next(
            n
            for n, w in enumerate(self.plan.workers)
            if w.start <= minute < w.end
            and (not w.types or TYPE in w.types)
            and self.load(n, minute) < w.slots
        )
        if self.attempt == 0:
            self.causes[self.cursor] = self.waited
        self.waited = Counter()
        self.obstacles.clear()
        self.attempt += 1
        self.fence += 1
        takes = self.plan.takes.get(self.number, 1)
        end = minute + takes if self.attempt > self.plan.fails.get(self.number, 0) else minute + 1
        self.running = worker, now, end

    @property
    def number(self) -> int:
        return (self.cursor - BEGIN) // MINUTE // self.every

    def settle(self, now: int) -> None:
        worker, start, _ = self.running
        self.running = None
        failed = self.attempt <= self.plan.fails.get(self.number, 0)
        over = not failed or self.attempt == MOST_ATTEMPTS
        fate = None if not over else "gave_up" if failed else "finished"
        self.write(
            worker,
            now,
            started=start * 1000,
            due=self.due * 1000,
            attempt=self.attempt,
            outcome="failed" if failed else "finished",
            fate=fate,
            reason="exit status 1" if failed else None,
        )
        if not over:
            self.due = now + RETRY_WAIT * MINUTE
            return
        self.truth[self.cursor] = "gave_up" if failed else "ran"
        self.cursor, self.attempt = self.following(self.cursor), 0
        self.due = max(self.cursor + self.plan.delay, now)

    def drop_missed(self, now: int) -> bool:
        """Apply the catch-up policy; return whether occurrences were dropped."""
        ready = now - self.plan.delay
        missed = [self.cursor]
        while self.following(missed[-1]) <= ready:
            missed.append(self.following(missed[-1]))
        if self.plan.catchup == "all":
            return False
        kept = missed[-1]
        if self.plan.catchup == "skip" and ready - kept > 60:  # the default of catchup_grace
            kept = self.following(kept)
        dropped = [each for each in missed if each < kept]
        if self.plan.catchup == "skip" and ready - self.cursor <= 60:
            dropped, kept = [], self.cursor
        if not dropped:
            return False
        fates = dict.fromkeys(dropped, "coalesced")
        if self.plan.catchup == "skip":
            fates = {
                each: "skipped_overlap"
                if self.due > self.cursor + self.plan.delay and each <= self.due - self.plan.delay
                else "skipped_catchup"
                for each in dropped
            }
        for fate in dict.fromkeys(fates.values()):
            span = [each for each in dropped if fates[each] == fate]
            self.write(
                0,
                now,
                scheduled_time=span[0],
                until=span[-1] if len(span) > 1 else None,
                count=len(span),
                fate=fate,
                reason="missed",
            )
        self.truth |= fates
        self.cursor = kept
        self.due = max(kept + self.plan.delay, now)
        self.waited = Counter()
        return True

    def steer(self, minute: int, now: int) -> None:
        plan = self.plan
        if self.status != "waiting":
            return
        if plan.cancel is not None and minute >= plan.cancel:
            self.audit(now, "cancel", {"status": "waiting"}, {"status": "cancelled"})
            self.status = "cancelled"
        elif plan.change is not None and minute >= plan.change[0] and self.every != plan.change[1]:
            before, self.every = {"cron": self.cron}, plan.change[1]
            self.audit(now, "modify", before, {"cron": self.cron})
            instant = self.cursor
            while instant < now:  # what was due, but had not started
                tried = instant == self.cursor and self.attempt
                self.truth[instant] = "ran_failed" if tried else "before_trigger_change"
                instant += plan.every * MINUTE
            self.cursor, self.attempt = self.first(now), 0
            self.due = self.cursor + plan.delay
            self.waited = Counter()

    # --- what psched would have written --------------------------------------------------

    @property
    def cron(self) -> str:
        return f"*/{self.every} * * * *" if self.every < 60 else f"0 */{self.every // 60} * * *"

    def write(self, worker: int, now: int, **fields: object) -> None:
        values = {
            "scheduled_time": self.cursor,
            "owner": f"n{worker}.{len(self.records)}",
            "fence": self.fence,
            "ended": now * 1000,
            "host": "web1",
            "id": len(self.records) + 1,
        }
        self.records.append(RunRecord(key=KEY, type=TYPE, **{**values, **fields}))

    def audit(self, now: int, action: str, before: object, after: object) -> None:
        self.audits.append(
            AuditRecord(
                key=KEY,
                action=action,
                user="ann",
                host="desk",
                program="psched",
                before=json.dumps(before),
                after=json.dumps(after),
                time=now * 1000,
                id=len(self.audits) + 1,
            )
        )

    @property
    def row(self) -> Row:
        live = self.status == "waiting"
        run_at = self.due if live else None
        return Row(
            key=KEY,
            type=TYPE,
            cron=self.cron,
            timezone="UTC",
            delay=self.plan.delay,
            next_time=self.cursor,
            next_run_time=int(self.now) + 300 if self.running else run_at,
            owner=f"n{self.running[0]}.x" if self.running else None,
            fence=self.fence,
            attempt=self.attempt,
            status=self.status,
            created_at=at(self.plan.created),
            options=json.dumps({"catchup": self.plan.catchup}),
            claimed_at=self.running[1] if self.running else None,
        )

    @property
    def worker_records(self) -> list[WorkerRecord]:
        found = []
        for number, worker in enumerate(self.plan.workers):
            if worker.start > self.plan.until:
                continue
            alive = worker.end > self.plan.until
            end = None if alive or worker.killed else at(worker.end)
            seen = int(self.now) - 20 if alive else at(worker.end) - (35 if worker.killed else 0)
            found.append(
                WorkerRecord(
                    nonce=f"n{number}",
                    host="web1",
                    pid=number,
                    number=number,
                    generation=1,
                    slots=worker.slots,
                    busy=0,
                    types=json.dumps(worker.types) if worker.types else None,
                    started=at(worker.start),
                    seen=seen,
                    ended=end,
                )
            )
        return found

    @property
    def other_records(self) -> list[RunRecord]:
        """The records of the other tasks that have ended."""
        return [
            RunRecord(
                key=f"other{number}",
                type="other",
                scheduled_time=at(start),
                owner=f"n{worker}.o{number}",
                fence=1,
                started=at(start) * 1000,
                ended=at(end) * 1000,
                outcome="finished",
                fate="finished",
            )
            for number, (worker, start, end) in enumerate(self.plan.others)
            if end <= self.plan.until
        ]

    @property
    def other_rows(self) -> list[Row]:
        """The rows of the other tasks that run now."""
        return [
            Row(
                key=f"other{number}",
                owner=f"n{worker}.o{number}",
                claimed_at=at(start),
                next_run_time=at(end),
            )
            for number, (worker, start, end) in enumerate(self.plan.others)
            if start <= self.plan.until < end
        ]

    # --- the present ---------------------------------------------------------------------

    def conclude(self) -> None:
        """Note what is true now of the occurrences that have not been decided."""
        last = self.cursor
        if self.status == "cancelled":
            self.truth[self.cursor] = self.truth[self.following(self.cursor)] = "cancelled"
            return
        if self.running:
            self.truth[self.cursor] = "running"
            behind = "waiting"
        elif self.due > self.now:
            self.truth[self.cursor] = "retrying" if self.attempt else "will_run"
            behind = "waiting"
        else:
            # Nothing but an obstacle has kept it from being started.
            # One that has only just changed is not tested.
            behind = self.obstacles[-1] if len({*self.obstacles[-2:]}) == 1 else "?"
            self.truth[self.cursor] = behind
            self.causes[self.cursor] = self.waited
            self.conclude_dropped()
        while (last := self.following(last)) + self.plan.delay <= self.now:
            self.truth.setdefault(last, behind)
        self.truth[last] = self.truth.get(last, "will_run")

    def conclude_dropped(self) -> None:
        """Note which of the overdue occurrences the catch-up policy will drop."""
        if self.attempt or self.plan.catchup == "all":
            return
        ready = int(self.now) - self.plan.delay
        missed = [self.cursor]
        while self.following(missed[-1]) <= ready:
            missed.append(self.following(missed[-1]))
        if self.plan.catchup == "latest":
            self.truth |= dict.fromkeys(missed[:-1], "coalesced")
        elif ready - self.cursor > 60:
            late = missed if ready - missed[-1] > 60 else missed[:-1]
            self.truth |= dict.fromkeys(late, "skipped_catchup")


def at(minute: int) -> int:
    """A minute of the simulation, in Unix seconds."""
    return BEGIN + minute * MINUTE

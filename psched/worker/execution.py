"""How a worker executes tasks, step by step: claim, decide, start, settle, record.

One request claims several rows, and one ends several leases; apart from that, each step is for one
task. What keeps two workers from running one occurrence at the same time:

* A lease counts from before its claim was sent (`claim`), and no task starts when it is nearly over
  or lost (`start`).
* While the task runs, `StoreGateway` extends the lease before any other request, and `TaskGuard`
  kills the task if that does not succeed in time.
* The lease ends only when no process of the task is left (`has_ended`), and the store ends it only
  for the token of its claim (`settle`).

The three outcomes of a settlement (`_record`): it was applied; it was refused, because the lease
had ended or was taken over; or nobody knows, because the answer is lost. Then it is sent again
until it is answered. An unknown claim is asked for, see `psched.worker.claims`.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf

from psched.base.errors import StoreBusyError, TransientStoreError
from psched.config import Config
from psched.core.definition import history_setting
from psched.core.model import Decision, Release, Row, Settlement
from psched.core.operations.pauses import PauseReader
from psched.core.policy import Run, after_claim, after_run
from psched.core.settling import Ending, Settler
from psched.core.store_protocol import Claimed, ClaimUnknownError, Settled
from psched.triggers.trigger import is_custom
from psched.worker.claims import Claim, Claims, Pacing
from psched.worker.context import Context
from psched.worker.extra_runs import ExtraRun, ExtraRuns
from psched.worker.history_keeper import HistoryKeeper
from psched.worker.output_keeper import INTERVAL, OutputKeeper
from psched.worker.running_task import Lease, RunningTask
from psched.worker.store_gateway import StoreGateway
from psched.worker.task_table import TaskTable
from psched.worker.trigger_helpers import Question, TriggerHelpers
from psched.worker.unstarted import (
    LONGEST_UNGUARDED,
    UnstartedLeases,
    UnstartedRows,
    WaitingLease,
)

_log = logging.getLogger("psched.worker")

_LONGEST_JUDGEMENT = 0.5
"""Seconds for handling the rows of one claim: deciding what to do with each row, and starting its
task. The rows that are left after this time are given back."""


class Execution:
    """The tasks of one worker, from the claims of their rows to the ends of their leases.

    Attributes:
        given_back: whether rows were given back, which other workers can run, since the owner of
            this object has last set this to False.
        records_due: when to call `write_records`, seconds of the monotonic clock.
        records_wake: when to wake up for that, seconds of the monotonic clock; inf if never.
    """

    def __init__(self, context: Context, tasks: TaskTable) -> None:
        self._store = context.store
        self._settings = context.settings
        self._clock = context.clock
        self._recorder = context.recorder
        self.tasks = tasks
        self.unstarted = UnstartedLeases()
        self.gateway = StoreGateway(context, tasks, self.unstarted)
        self.triggers = TriggerHelpers(context, tasks)
        self.pacing = Pacing(context, self.gateway, self.unstarted, self.triggers)
        self.history = HistoryKeeper(context, self.gateway)
        self.claims = Claims(context, self.gateway, tasks, self.unstarted, self.pacing)
        self.output = OutputKeeper(context, self.gateway, tasks)
        self.extra_runs = ExtraRuns(context, self)
        self.rows = UnstartedRows(context, self)
        self._pauses = PauseReader(context.store)
        self._settler = Settler(
            context.settings, context.clock, self._conclude, self.gateway.request, context.recorder
        )
        self.given_back = False
        self.records_due, self.records_wake = 0.0, inf

    # --- Claim ---

    def claim(self) -> None:
        """Lease due rows and start their tasks, if it is time for a claim."""
        if self.claims.unknown:
            for found, asked_at in self.claims.resolve():
                self._begin(found, asked_at)
        if self._clock.monotonic() < self.pacing.next_poll:
            return
        if (claim := self.claims.prepare()) is not None:
            self.claims.send(claim)
            self._begin_claimed(claim)

    def _begin_claimed(self, claim: Claim) -> None:
        """Start the tasks of the rows that a claim has leased."""
        if (claimed := claim.answer) is None:
            return
        self.claims.note(claim, claimed)
        if claimed.rows:
            self._begin(claimed, claim.sent)
            self.pacing.prepare_next(len(claimed.rows))

    def _begin(self, claimed: Claimed, sent: float) -> None:
        """Decide what to do with each row of a claim, and start its task."""
        self.pacing.needed = self._clock.monotonic()
        # Older leases that are due are extended first, because this takes time, and the ages of the
        # new leases must be checked after it.
        self.gateway.keep_leases()
        for row in claimed.rows if claimed.expired else ():
            if row.key in claimed.expired:
                _log.warning("%s: taken over, its last lease ended without a settle", row.key)
                self.history.taken_over(row, claimed.expired[row.key])
                self.records_due = 0.0
        granted = self.gateway.fresh([self.claims.lease_of(row, sent) for row in claimed.rows])
        now = claimed.now or 0
        self._read_pauses([lease.row for lease in granted if lease.row.cron], now)
        until = (guarded := self._clock.monotonic()) + _LONGEST_JUDGEMENT
        extra: list[ExtraRun] = []
        for place, lease in enumerate(granted):
            row, mono = lease.row, self._clock.monotonic()
            if mono >= guarded + LONGEST_UNGUARDED:
                # Much time can have passed, for example in forks, so the running tasks are guarded
                # and due leases are extended.
                self.gateway.keep_leases()
                guarded = self._clock.monotonic()
                until += guarded - mono
            if mono >= until or (row.cron and self._pauses.is_unsure(row, now)):
                # The remaining rows are given back, because it can take long to decide what to do
                # with late occurrences. So is a row that a pause may have held, if the rules could
                # not be read.
                self.unstarted.releases[row.key] = row
                continue
            verdict = self._decide(row, now)
            following = len(granted) - place - 1
            if found := self._obey(lease, verdict, following=following, extra=len(extra)):
                extra.append(found)
        if extra:
            self.extra_runs.begin(extra, now)
        # Before the next runners are forked, which takes time.
        self.tasks.send_starts()

    def _read_pauses(self, rows: Sequence[Row], now: float) -> None:
        """Read the rules that pause types, if one may have held some of these rows."""
        if rows and self._pauses.is_outdated(rows, now):
            # A failure has been logged. Rows that a rule may have held are given back.
            with suppress(TransientStoreError):
                self.gateway.request(partial(self._pauses.read, now))

    # --- Decide ---

    def _decide(self, row: Row, now: float) -> Run | Settlement | Question:
        """Decide by the row alone what to do with it; its own trigger is called by a helper."""
        pauses = self._pauses.pauses(row, now) if row.cron else ()
        if row.cron and is_custom(row.cron):
            return self.triggers.open(row, now, pauses)
        return after_claim(row, self._settings, now, pauses)

    def _obey(
        self, lease: Lease, verdict: Run | Settlement | Question, *, following: int, extra: int
    ) -> ExtraRun | None:
        """Act on the decision about a row; return it if its schedule must be held, too."""
        row = lease.row
        if isinstance(verdict, Question):
            waiting = WaitingLease(row, lease.deadlines, question=verdict)
            self.unstarted.waiting[row.key] = waiting
        elif isinstance(verdict, Settlement):
            self.rows.settle(row, verdict)
        elif "!" in row.key and (found := self.extra_runs.needing_schedule(lease, verdict)):
            if isinstance(found, Settlement):
                self.rows.settle(row, found)
            elif not self.pacing.stopped and self.pacing.free > extra:
                return found
            else:
                # It is not prefetched, because another run of its schedule can be going on.
                self.unstarted.releases[row.key] = row
                self.pacing.back_off()
        elif self.pacing.free_slots > 0 or not self.rows.keep(lease, verdict):
            self.start(lease, verdict, following=following)
        return None

    # --- Start ---

    def start(self, lease: Lease, run: Run, *, following: int) -> None:
        """Start a task, or give its row back, and release its schedule if it is an extra run."""
        row = lease.row
        # ``concurrency`` tasks can be running already, because the row might belong to a claim
        # whose answer was lost.
        full = self.pacing.free_slots <= 0
        known = row.key in self.tasks.running
        if full:
            self.pacing.back_off()
        if (
            full
            or self.pacing.stopped
            or lease.is_lost
            or known
            or not self.pacing.prepare(1 + following)
        ):
            self.unstarted.releases[row.key] = row
        elif self._clock.boottime() >= lease.deadlines.last_start:
            self.gateway.slowness.gave_back(row.key, lease.deadlines.lease)
            self.unstarted.releases[row.key] = row
        else:
            self.tasks.start(lease, run)
            # What it prints may be read meanwhile.
            look_at = self._clock.monotonic() + INTERVAL
            self.records_due = min(self.records_due, look_at)
            self.records_wake = min(self.records_wake, look_at)
            return
        if lease.hold is not None:
            self.unstarted.end_hold(lease.hold)

    # --- Settle ---

    def has_ended(self, task: RunningTask) -> bool:
        """Whether a task has no process left, and its settlement needs no answer of a helper."""
        return task.empty and not (self.triggers.ends and self.triggers.awaits(task.row))

    def settle(self) -> None:
        """End the leases of tasks that have no process left, and of rows to be given back.

        If the store does not answer, the next tick sends the same again.
        """
        # Due leases are extended first, because the answer shows which leases are lost, and
        # `RunningTask.ending` depends on that.
        self.gateway.keep_leases()
        # Leases that count as lost are settled nevertheless: if an earlier settlement has ended
        # such a lease, and only its answer was lost, the store recognises the repetition.
        ended = [task for task in self.tasks.running.values() if self.has_ended(task)]
        endings = [task.ending_after(self.history.failures_before) for task in ended]
        # What is given back has no record, unless somebody has stopped or cancelled it meanwhile.
        endings += [
            Ending(row, Release(), history=history_setting(row, self._settings))
            for row in self.unstarted.releases.values()
        ]
        if not endings:
            return
        if self.history.waiting or self.history.handed_back:
            endings = self.history.with_unwritten(endings)
        asked = self._clock.monotonic()
        # A claim follows, whose rows can take the slots: with this request; or by itself, if what
        # is given back should come later, or if an extra run must find its schedule free.
        self.pacing.next_poll = 0.0
        unstarted = self.unstarted
        holds = unstarted.ending_holds or any(task.hold is not None for task in ended)
        apart = holds or unstarted.releases or self.claims.unknown
        claim = None if apart else self.claims.prepare(len(endings))
        write = None if claim is None else partial(self.claims.send_with, claim)
        try:
            results = self._settler.settle(self._store, endings, write)
        except StoreBusyError as busy:
            self._record(busy.answered)
            raise
        except ClaimUnknownError as error:
            if claim is not None:
                self.claims.failed(claim, error)
            raise
        self.gateway.debug("settled", results, asked)
        self.history.settled()
        self._record(results)
        if claim is not None:
            self._begin_claimed(claim)

    def _conclude(
        self, leased: Row, current: Row, decision: Decision, settings: Config, now: float
    ) -> Settlement | None:
        """The settlement of a lease after a run; None while a helper has not answered yet."""
        if any(row.cron and is_custom(row.cron) for row in (leased, current)):
            return self.triggers.conclude(leased, current, decision, settings, now)
        task = self.tasks.running.get(leased.key)
        known = task.definition if task is not None and task.row is current else None
        return after_run(leased, current, decision, settings, now, definition=known)

    # --- Record ---

    def _record(self, results: Mapping[str, Settled]) -> None:
        """Forget the leases that have ended or were lost; log and record how their tasks ended."""
        self.records_due = 0.0
        for key, result in results.items():
            if self.unstarted.releases.pop(key, None) is not None:
                self.given_back = True
                continue
            task = self.tasks.remove(key)
            if task.hold is not None:
                self.unstarted.end_hold(task.hold)
            self.output.add(task)
            self.triggers.forget(task.row)
            self.pacing.ended(task)
            unsure = self._settler.forget(task.ending)
            # If a settlement would remove its row, but the row is gone already, the store answers
            # DONE, whoever removed the row. If this worker had lost the lease, another worker or a
            # client might have removed it. So after a lost lease, DONE proves that the task's end
            # was recorded only if an earlier settlement might have been applied, because its answer
            # was lost (``unsure``).
            counts = result is Settled.DONE and (unsure or not task.lost)
            if self.tasks.reporter is not None and task.is_pinged:
                self.tasks.reporter.ended(task, counts=counts)
            if counts:
                task.log_end()
                self.history.wrote(key)
                continue
            self.history.preempted(task)
            task.log_preempted(unsure=unsure)

    def write_records(self) -> None:
        """Write what no settlement has written: records, and output. No failure delays a task."""
        self.history.work(len(self.tasks.running))
        self.output.work()
        self.records_due = min(self.history.due, self.output.due)
        self.records_wake = min(self.history.wakes, self.output.wakes)

"""Leasing occurrences without a worker: the caller runs each task itself."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace as changed
from functools import partial
from typing import Any

from typing_extensions import override

from psched.application.task import Holder, Task
from psched.base import lease_times
from psched.base.errors import (
    AlreadyFinishedError,
    InvalidError,
    PreemptedError,
    PschedError,
    TransientStoreError,
)
from psched.client.access import Access, LostAnswers
from psched.core.columns import encode, payload_text
from psched.core.definition import history_setting
from psched.core.history.changes import Gap
from psched.core.history.recording import Recorder, StoreClock
from psched.core.history.records import Attempt, Outcome, RunRecord
from psched.core.model import Decision, Finish, Quarantine, Release, Retry, Row, Settlement
from psched.core.operations.extra_runs import needed_schedule
from psched.core.operations.overlap import Turns, unsupported, without_hold
from psched.core.operations.pauses import PauseReader
from psched.core.policy import Run, after_claim, quarantine
from psched.core.schedule import Schedules
from psched.core.settling import Ending, Settler
from psched.core.store_protocol import Claimed, HoldsSchedules, Settled

Hold = Mapping[str, str]
"""One hold, as `HoldsSchedules.hold` gets it."""


class Poller:
    """Leases one occurrence at a time to this process, which runs the task itself."""

    def __init__(self, access: Access, schedules: Schedules) -> None:
        self.access = access
        self.store = access.store
        self.settings = access.settings
        self.clock = access.clock
        self.send = access.send
        self.schedules = schedules
        self.shortest = lease_times.shortest_alive_time(self.settings.driver_timeout)
        self._pauses = PauseReader(self.store)
        self._turns = Turns()
        self.recorder = Recorder(
            host=self.settings.this_host, generation=None, clock=StoreClock(self.clock)
        )

    def poll(self) -> Task | None:
        """Lease one due occurrence, if there is one; see `ScheduleCollection.poll`."""
        while True:
            claimed, sent = self._claim()
            if claimed.now is not None:
                self.recorder.clock.read(claimed.now, sent, self.clock.boottime())
            for row in claimed.rows:
                if row.key in claimed.expired:
                    lost = self.recorder.taken_over(row, claimed.expired[row.key])
                    self.record(row, lost)
            now = claimed.now or 0
            if self._pauses.is_outdated(claimed.rows, now):
                self.send(partial(self._pauses.read, now))
            for row in claimed.rows:
                if task := self._task_of(row, now, sent):
                    return task
            # If ``more`` is true although no row was leased, other workers have leased the due rows
            # first. The loop claims again, because further rows can be due.
            if not (claimed.rows or claimed.more):
                return None

    def lease_time(self, row: Row) -> int:
        """Return the length of a row's lease in seconds."""
        return lease_times.lease_time(row.alive_time, self.settings.alive_time, self.shortest)

    def record(self, row: Row, record: RunRecord | None) -> None:
        """Write a record that belongs to no settlement; a failure is ignored."""
        if record is None or (history := self.store.history) is None:
            return
        if history_setting(row, self.settings) == "none":
            return
        with suppress(PschedError):
            history.record([record])

    def write_records(self, nonce: str) -> None:
        """Write the records that the store has not written with their settlements.

        If this fails, too, it is noted that they may be lost, and the next call tries again.
        """
        history = self.store.history
        if history is None or not history.unwritten:
            return
        waiting = [*history.unwritten]
        try:
            history.record(waiting)
            history.unwritten.clear()
        except PschedError:
            first = min(record.scheduled_time for record in waiting)
            last = max(record.last for record in waiting)
            gap = Gap(nonce=nonce, first=first, last=last, lost=len(waiting))
            with suppress(PschedError):
                history.audit([gap.note(self.recorder.host)])

    def _task_of(self, leased: Row, now: float, sent: float) -> Task | None:
        """Return the task of a leased row; None if there is nothing to run, or the lease is over.

        If there is nothing to run, this method ends the lease.
        """
        row: Row | None = leased
        # The loop is repeated only if somebody has changed the schedule's definition since the row
        # was read. Then the row is read again, and the new definition is used.
        while row is not None and row.token == leased.token:
            verdict = after_claim(row, self.settings, now, self._pauses.pauses(row, now))
            if isinstance(verdict, Run):
                started = self._start(row, verdict, now, sent)
                if not isinstance(started, Settlement):
                    return started
                verdict = started
            verdict.records = self.recorder.records_of(
                verdict, row, None, history=history_setting(row, self.settings)
            )
            results = self.send(partial(self.store.settle, [verdict]))
            if results[row.key] is not Settled.REDEFINED:
                return None
            row = self.send(partial(self.store.get, row.key))
        return None

    def _start(self, row: Row, run: Run, now: float, sent: float) -> Task | Settlement | None:
        """Return the task of a leased row; the settlement of the row if it cannot run now.

        The result is None if the lease is over, because an answer came late: another may have it.
        """
        hold = self._hold_schedule(row, run, now)
        if isinstance(hold, Settlement):
            return hold
        holder = _CallersLease(self, row, sent + self.lease_time(row), hold)
        if holder.is_over:
            holder.release_schedule()
            return None
        values = run.definition.assignment(row, run.scheduled_time)
        try:
            text = payload_text(row.data, self.settings.data_limit)
            return Task({**values, "data": text}, holder)
        except InvalidError as error:
            holder.release_schedule()
            return quarantine(row, str(error))

    def _hold_schedule(self, row: Row, run: Run, now: float) -> Hold | Settlement | None:
        """Hold the schedule of an extra run; return its settlement if the run cannot start now.

        The result is None if the row needs no hold, see `psched.core.operations.extra_runs`.
        """
        try:
            needed = needed_schedule(row)
        except InvalidError as error:
            return quarantine(row, str(error))
        if needed is None:
            return None
        able, key = self.store.holds, needed[0]
        if able is None:
            return quarantine(row, unsupported(key))
        hold = {key: self.access.draw_nonce()}
        if self.send(partial(self.hold, able, hold, self.lease_time(row))):
            return hold
        found = self.send(partial(self.store.look, [key])).get(key)
        own = run.definition.settings
        return without_hold(row, own, needed, found, now=now, turns=self._turns)

    def hold(self, store: HoldsSchedules, hold: Hold, length: int) -> bool:
        """Hold a schedule, or extend its hold; return whether it is held. Repeating is harmless."""
        return bool(store.hold(hold, alive_time=self.settings.alive_time, shortest=length))

    def _claim(self) -> tuple[Claimed, float]:
        """Claim a row; the second result is when the claim that was applied was sent."""
        owner = self.access.draw_nonce()
        lost = LostAnswers[float]()
        claim = partial(
            self.store.claim,
            owner,
            limit=1,
            alive_time=self.settings.alive_time,
            shortest=self.shortest,
            horizon=0,
        )

        def request() -> tuple[Claimed, float]:
            if lost:
                # The answer to the first claim was lost. The claim is not repeated, because the
                # store may have applied it. Instead, the rows that it has leased are read.
                # It is not known when these rows fell due.
                rows = [changed(row, next_run_time=None) for row in self.store.held(owner, ())]
                return Claimed(rows=rows, now=self.store.now()), lost.last
            sent = self.clock.boottime()
            return lost.send(sent, claim), sent

        return self.send(request)


_OUTCOMES = {Finish: Outcome.FINISHED, Release: Outcome.RELEASED}
"""The outcomes of attempts that the program has ended with these decisions."""


class _CallersLease(Holder):
    """The lease of a task that a program got from `Poller.poll` and runs itself."""

    def __init__(self, poller: Poller, row: Row, deadline: float, hold: Hold | None = None) -> None:
        self._poller = poller
        self._row = row
        self._hold = hold
        self._deadline = deadline
        self._lost = False
        self._result: str | None = None
        self._settled = False
        self._started = poller.recorder.clock.milliseconds()
        self._settler = Settler(poller.settings, poller.clock, recorder=poller.recorder)

    @override
    def decide(self, decision: Decision) -> None:
        # A worker settles a lease only after the task's processes have exited. Here the lease is
        # settled at once, because psched has started no processes for the task.
        poller, row = self._poller, self._row
        attempt = Attempt(
            outcome=_OUTCOMES.get(type(decision), Outcome.FAILED),
            pid=os.getpid(),
            started=self._started,
            ended=poller.recorder.clock.milliseconds(),
            reason=decision.reason if isinstance(decision, Retry | Quarantine) else None,
            result=self._result,
        )
        self._refuse_if_over(attempt)
        ending = Ending(
            row,
            decision,
            0.0 if self._lost else self._deadline,
            attempt=attempt,
            history=history_setting(row, poller.settings),
        )
        results = poller.send(lambda: self._settler.settle(poller.store, [ending]))
        self.release_schedule()
        poller.write_records(row.owner or "")
        # If the lease was lost before, the result DONE is not trusted: the store answers DONE for
        # every row that does not exist, as if this settlement had removed the row.
        done = results[row.key] is Settled.DONE and not self._lost
        if not done:
            self._record_preempted(attempt)
        self._require(done=done)
        self._settled = True
        if row.cron is not None or not isinstance(decision, Finish):
            # The row may be due again: it was given back, or its schedule is behind.
            poller.access.wake()

    @override
    def extend(self) -> None:
        self._refuse_if_over()
        poller, leases = self._poller, {self._row.key: self._row.token}
        length = poller.lease_time(self._row)

        def request() -> bool:
            sent, hold, able = poller.clock.boottime(), self._hold, poller.store.holds
            # The hold is extended first, so that it lasts as long as the lease.
            if hold is not None and able is not None and not poller.hold(able, hold, length):
                return False
            held = poller.store.extend(
                leases, alive_time=poller.settings.alive_time, shortest=length
            )
            if held:
                self._deadline = sent + length
            return bool(held)

        self._require(done=poller.send(request))

    @override
    def update_data(self, data: Mapping[str, Any]) -> None:
        text = encode("data", data, most=self._poller.settings.data_limit)
        self._refuse_if_over()
        poller, row = self._poller, self._row
        self._require(done=poller.send(lambda: poller.store.update_data(row.key, row.token, text)))

    @override
    def progress(self, percent: float | None, text: str) -> None:
        pass  # nobody can ask this program for it

    @override
    def keep_result(self, result: str | None) -> None:
        if self._settled:
            raise AlreadyFinishedError(f"{self._row.key!r} has been settled already")
        self._result = result

    @property
    @override
    def schedules(self) -> Schedules:
        return self._poller.schedules

    def release_schedule(self) -> None:
        """End the hold of the schedule, because its extra run has ended or was not started."""
        poller, hold, able = self._poller, self._hold, self._poller.store.holds
        if hold is not None and able is not None:
            # Else the hold ends by itself; what the task has decided is stored already.
            with suppress(TransientStoreError):
                poller.send(lambda: able.release(hold))

    @property
    def is_over(self) -> bool:
        """Whether another worker may have the lease by now."""
        return self._poller.clock.boottime() >= self._deadline

    def _refuse_if_over(self, attempt: Attempt | None = None) -> None:
        """Refuse a request if the lease is over; record the attempt that has ended, if one has."""
        over = self.is_over
        if over and attempt is not None:
            self._record_preempted(attempt)
        self._require(done=not over)

    def _record_preempted(self, attempt: Attempt) -> None:
        ended = changed(attempt, outcome=Outcome.PREEMPTED, reason="its lease was lost")
        time = self._row.next_time or 0
        record = self._poller.recorder.record(self._row, ended, time)
        self._poller.record(self._row, record)

    def _require(self, *, done: bool) -> None:
        if not done:
            self._lost = True
            raise PreemptedError(f"the lease of {self._row.key!r} is over or another worker's")

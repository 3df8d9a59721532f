"""Claimed rows without a task: those that start later, and those that never start."""

import logging
from dataclasses import dataclass, field
from dataclasses import replace as changed
from functools import partial
from typing import TYPE_CHECKING

from psched.base.loader import loading_by
from psched.core import attempts
from psched.core.definition import history_setting, parse_row
from psched.core.history.records import Fate
from psched.core.model import QUARANTINED, WAITING, Retry, Row, Settlement
from psched.core.operations import pausing
from psched.core.policy import Run, postpone
from psched.core.store_protocol import Settled
from psched.triggers.custom import refuse_to_ask
from psched.worker.context import Context
from psched.worker.running_task import Hold, Lease
from psched.worker.task_table import FORK_PAUSE

if TYPE_CHECKING:
    from psched.worker.execution import Execution
    from psched.worker.trigger_helpers import Question

_log = logging.getLogger("psched.worker")

LONGEST_UNGUARDED = 0.2
"""For so many seconds, rows are handled one after the other before the running tasks are guarded
again. Starts can take long, for example if forks hang. Meanwhile no lease is extended."""


@dataclass(slots=True)
class WaitingLease(Lease):
    """The lease of a row for which a trigger must first compute whether there is something to run.

    Attributes:
        question: the question that a helper process answers by calling the trigger.
    """

    question: "Question" = field(kw_only=True)


@dataclass(slots=True)
class PrefetchedLease(Lease):
    """The lease of a row that starts as soon as a slot is free; see `psched.worker.claims`.

    Attributes:
        run: what to run.
        until: when the row is given back, seconds of the monotonic clock.
    """

    run: Run = field(kw_only=True)
    until: float = field(kw_only=True)


@dataclass(slots=True)
class EndingHold:
    """A hold of a schedule that is to end.

    Attributes:
        key: the key of the schedule.
        until: until when a request that was not answered can still make the hold, seconds of the
            monotonic clock. The hold is ended once more after this time.
        next: when to end it, seconds of the monotonic clock.
    """

    key: str
    until: float = 0.0
    next: float = 0.0


@dataclass(slots=True)
class UnstartedLeases:
    """The leases of claimed rows that have no task.

    Attributes:
        prefetched: the leases whose tasks start as soon as slots are free, by key, in the order of
            their starts.
        waiting: the leases that wait for a trigger's answer, by key.
        settlements: the settlements to be written for rows with nothing to run, by key.
        releases: the rows that are to be given back unchanged, by key.
        ending_holds: the holds of schedules that are to end, or that an unanswered request may have
            made, by what identifies them.
    """

    prefetched: dict[str, PrefetchedLease] = field(default_factory=dict)
    waiting: dict[str, WaitingLease] = field(default_factory=dict)
    settlements: dict[str, Settlement] = field(default_factory=dict)
    releases: dict[str, Row] = field(default_factory=dict)
    ending_holds: dict[str, EndingHold] = field(default_factory=dict)

    def __bool__(self) -> bool:
        waiting = self.prefetched or self.waiting
        return bool(waiting or self.settlements or self.releases or self.ending_holds)

    def __contains__(self, key: str) -> bool:
        ending = key in self.settlements or key in self.releases
        held = any(hold.key == key for hold in self.ending_holds.values())
        return ending or held or key in self.waiting or key in self.prefetched

    def end_hold(self, hold: Hold, until: float = 0.0) -> None:
        """Have a hold ended; see `EndingHold`."""
        self.ending_holds[hold.holder] = EndingHold(hold.key, until)

    def holds(self, row: Row) -> bool:
        """Whether the lease that the row's token identifies is one of these leases."""
        for leases in self.waiting, self.prefetched:
            if (lease := leases.get(row.key)) and lease.row.token == row.token:
                return True
        ending = self.settlements.get(row.key) or self.releases.get(row.key)
        return ending is not None and ending.token == row.token


class UnstartedRows:
    """Starts, settles or gives back the claimed rows that did not start at once."""

    def __init__(self, context: Context, execution: "Execution") -> None:
        self._store = context.store
        self._settings = context.settings
        self._clock = context.clock
        self._recorder = context.recorder
        self._execution = execution
        self._leases = execution.unstarted

    def keep(self, lease: Lease, run: Run) -> bool:
        """Keep a prefetched row until a slot is free; return whether it is kept."""
        pacing = self._execution.pacing
        if pacing.room_to_prefetch <= 0:
            return False
        if attempts.is_exhausted(lease.row, run.definition):
            # If this worker died, the last attempt would count without having been made.
            return False
        self._leases.prefetched[lease.row.key] = PrefetchedLease(
            lease.row, lease.deadlines, run=run, until=pacing.given_back_at
        )
        return True

    def resume(self) -> None:
        """Start, settle or give back each row that need not wait any more."""
        execution, triggers = self._execution, self._execution.triggers
        for key, waiting in [*self._leases.waiting.items()]:
            answer = waiting.question.answer
            if waiting.lost:
                _log.warning("%s: preempted while its trigger was asked", key)
            elif execution.pacing.stopped:
                self._leases.releases[key] = waiting.row
            elif isinstance(answer, Settlement):
                self.settle(waiting.row, answer)
            elif triggers.is_stuck(waiting.question):
                # The row is postponed, because another host might be able to fork a process in
                # which the trigger is called.
                self.settle(waiting.row, postpone(waiting.row, FORK_PAUSE))
            elif answer is not None and execution.pacing.free_slots > 0:
                execution.start(waiting, answer, following=0)
            else:
                continue  # the row keeps waiting: there is no answer, or no room for the task yet
            triggers.drop(waiting.question)
            del self._leases.waiting[key]
        if self._leases.prefetched:
            self._start_prefetched()

    def _start_prefetched(self) -> None:
        """Start the tasks of prefetched rows, or give back rows that have waited too long."""
        pacing, prefetched = self._execution.pacing, [*self._leases.prefetched.values()]
        begun = self._clock.monotonic()
        for lease in prefetched:
            now = self._clock.monotonic()
            in_time = now <= begun + LONGEST_UNGUARDED
            if lease.lost:
                _log.warning("%s: preempted before it was started", lease.row.key)
            elif not pacing.stopped and in_time and (free := pacing.free_slots) > 0:
                following = min(free, len(prefetched)) - 1
                self._execution.start(lease, lease.run, following=following)
            elif pacing.stopped or not in_time or now >= lease.until:
                self._leases.releases[lease.row.key] = lease.row
                pacing.back_off()
            else:
                continue
            del self._leases.prefetched[lease.row.key]

    def settle(self, row: Row, settlement: Settlement) -> None:
        """Have the lease of a row with nothing to run settled."""
        if settlement.fate is Fate.GAVE_UP and row.cron is not None and row.status == WAITING:
            # Its worker has died in the last attempt, which this claim has not counted. The row is
            # valid, because it was decided by its definition. A row of another status need not be.
            with loading_by(refuse_to_ask):
                definition = parse_row(row, self._settings)
            earlier = self._execution.history.failures_before(row, definition)
            settlement = pausing.after_failure(
                settlement,
                changed(row, attempt=row.attempt - 1),
                definition,
                Retry(reason=settlement.reason, earlier=earlier),
            )
        history = history_setting(row, self._settings)
        settlement.records = self._recorder.records_of(settlement, row, None, history=history)
        self._recorder.counts.decided(row.type, settlement)
        self._leases.settlements[row.key] = settlement

    def write_settlements(self) -> None:
        """Write the settlements of claimed rows for which there is nothing to run."""
        leases, history, gateway = self._leases, self._execution.history, self._execution.gateway
        asked = self._clock.monotonic()
        sent = [
            changed(each, records=(*earlier, *each.records))
            if (earlier := history.unwritten(each.key))
            else each
            for each in leases.settlements.values()
        ]
        results = gateway.request(partial(self._store.settle, sent))
        gateway.debug("settled", results, asked)
        for key, result in results.items():
            settlement = leases.settlements[key]
            if result is Settled.DONE and settlement.reason:
                aside = "quarantined: " if settlement.status == QUARANTINED else ""
                _log.warning("%s: %s%s", key, aside, settlement.reason)
            elif result is Settled.REDEFINED:
                # The row's definition has changed since the settlement was computed. The row is
                # given back, so that the next worker that claims it computes a new settlement.
                row = gateway.request(partial(self._store.get, key))
                if row is not None and row.token == settlement.token:
                    leases.releases[key] = row
            if result is Settled.DONE and settlement.records:
                history.wrote(key)
            del leases.settlements[key]
        history.settled()
        self._execution.records_due = 0.0
        self._execution.pacing.next_poll = 0.0

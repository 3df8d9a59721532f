"""The steps of a worker's tick: receive, settle, stop deleted tasks, recover, claim.

A tick never waits for a task to end. `StoreGateway` sends each request to the store. Before each
request, the gateway guards the tasks (it sends them the signals that are due), and extends the
leases that are due. If a request fails, no further request is sent until a pause has passed.
Meanwhile the ticks continue to guard the tasks, so that no task runs longer than its lease (see
`psched.base.lease_times`).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace as changed
from functools import partial
from math import inf

from psched.base.clock import Clock
from psched.base.errors import StoreBusyError, TransientStoreError
from psched.config import Config
from psched.core import attempts
from psched.core.definition import history_setting
from psched.core.history.recording import Recorder
from psched.core.model import AFTER_RUN, DELETING, QUARANTINED, Release, Retry
from psched.core.settling import Ending, Settler
from psched.core.store_protocol import HoldsSchedules, Settled, Store
from psched.master.reports.load import Load
from psched.runner.stop_flags import Reason
from psched.worker.chores.backlog_watch import BacklogWatch
from psched.worker.chores.history_keeper import HistoryKeeper
from psched.worker.chores.janitor import Janitor
from psched.worker.chores.output_keeper import OutputKeeper
from psched.worker.claimer import Claimer
from psched.worker.claims.unknown_claims import UNKNOWN_PAUSE
from psched.worker.running_task import RunningTask
from psched.worker.startup_steps import StartupSteps
from psched.worker.store_backoff import StoreBackoff
from psched.worker.store_gateway import StoreGateway, debug_requests
from psched.worker.task_guard import IMMEDIATE
from psched.worker.task_table import TaskTable
from psched.worker.trigger_helpers import TriggerHelpers
from psched.worker.unstarted_leases import UnstartedLeases

_log = logging.getLogger("psched.worker")


class LeaseLoop:
    """Leases due occurrences, and settles each lease when its task has ended.

    `psched.worker.composition.make_lease_loop` creates a lease loop with its parts.

    Args:
        store: where the schedules are.
        settings: contain the intervals between requests, and the time that recovered rows wait.
        tasks: owns the running tasks.
        unstarted: owns the leases whose tasks have not been started.
        backoff: records whether the store answers, and when to ask it again.
        gateway: sends the requests, and extends the leases.
        triggers: has triggers that users have written called in helper processes.
        claimer: claims due rows.
        startup: the work in the store that precedes the first claim.
        janitor: purges tasks that ended long ago.
        backlog: counts the due rows that wait while no slot is free.
        recorder: creates the records of the run history.
        history: writes what the run history contains besides the settlements' records.
        output: writes what tasks have printed.
        clock: measures what is due.
    """

    def __init__(
        self,
        store: Store,
        settings: Config,
        *,
        tasks: TaskTable,
        unstarted: UnstartedLeases,
        backoff: StoreBackoff,
        gateway: StoreGateway,
        triggers: TriggerHelpers,
        claimer: Claimer,
        startup: StartupSteps,
        janitor: Janitor,
        backlog: BacklogWatch,
        recorder: Recorder,
        history: HistoryKeeper,
        output: OutputKeeper,
        clock: Clock,
    ) -> None:
        self._store = store
        self._settings = settings
        self._counts = recorder.counts
        self._tasks = tasks
        self._unstarted = unstarted
        self._backoff = backoff
        self._gateway = gateway
        self._triggers = triggers
        self._claimer = claimer
        self._startup = startup
        self._janitor = janitor
        self._backlog = backlog
        self._history = history
        self._output = output
        self._clock = clock
        self._settler = Settler(settings, clock, triggers.conclude, gateway.request, recorder)
        self._dead: list[str] = []
        self._recovered: list[str] = []
        self._given_back = False
        self._next_marks = 0.0
        self._stop_at: float | None = None
        self._stop_limit: float | None = None

    def pause(self) -> None:
        """Send no claims from now on; running tasks continue."""
        self._claimer.stop()

    def stop(self, timeout: float | None, *, hurry: bool = False) -> None:
        """Send no claims from now on, and stop the running tasks after a timeout."""
        self.pause()
        self._triggers.dismiss()
        self._tasks.dismiss()
        if timeout is not None:
            at = self._clock.monotonic() + timeout
            self._stop_at = at if self._stop_at is None else min(at, self._stop_at)
            if hurry:
                self._stop_limit = IMMEDIATE

    def recover(self, nonces: Sequence[str]) -> None:
        """Have a later tick release the leases of the dead workers that have these nonces."""
        self._dead += nonces

    def pop_recovered(self) -> list[str]:
        """Return the nonces of dead workers whose leases were released since the last call."""
        recovered, self._recovered = self._recovered, []
        return recovered

    def look(self) -> None:
        """Have the next tick claim rows, because some may be due."""
        self._claimer.look()

    @property
    def is_full(self) -> bool:
        """Whether this worker claims no rows for the only reason that it has no free slot."""
        return self._claimer.is_full

    def pop_given_back(self) -> bool:
        """Whether rows were given back since the last call; other workers can run them."""
        given_back, self._given_back = self._given_back, False
        return given_back

    @property
    def idle(self) -> bool:
        """Whether no lease is held, no claim's outcome is unknown, and no recovery is pending."""
        held = self._tasks or self._unstarted or self._claimer.has_unknown
        return not (held or self._dead)

    @property
    def asks(self) -> bool:
        """Whether a trigger is computing the occurrence that follows the run of some task."""
        return any(self._triggers.awaits(task.row) for task in self._tasks)

    @property
    def has_polled(self) -> bool:
        """Whether the store has answered at least one claim of this worker."""
        return self._claimer.answered is not None

    @property
    def waited(self) -> float:
        """The seconds for which the oldest due row has waited for a slot of this worker."""
        return self._backlog.waited

    @property
    def claim_age(self) -> float | None:
        """Seconds since the store has last answered a claim; None if it has answered none."""
        answered = self._claimer.answered
        return None if answered is None else self._clock.monotonic() - answered

    @property
    def load(self) -> Load:
        """How busy this worker is."""
        waiting = self._backlog.backlog
        return Load(self._settings.concurrency, self._claimer.free, waiting.due, waiting.late)

    @property
    def lost_records(self) -> int:
        """How many records of the run history could not be written so far."""
        return self._history.lost_records

    @property
    def lost_outputs(self) -> int:
        """The number of attempts whose output could not be written so far."""
        return self._output.lost

    def leave(self) -> None:
        """Note in the store that this worker ends; call this when no lease is left.

        If the store has not answered the last request, this does nothing.
        """
        if self._backoff.ready and self._backoff.away is None:
            self._output.leave()
            self._history.leave()

    @property
    def away(self) -> str | None:
        """Why the store does not answer; None if it answers."""
        return self._backoff.away

    def tick(self) -> float:
        """Do everything that is due; return seconds until the next tick."""
        self._tasks.receive(self._gateway)
        self._triggers.receive()
        self._claimer.resume()
        if self._backoff.ready and self._clock.monotonic() >= self._claimer.gathers_until:
            try:
                self._end_leases()
                self._write_settlements()
                self._stop_marked()
                # Startup steps precede the recovery, because the first step can create the table
                # that the recovery needs.
                self._startup.step()
                self._recover()
                self._claimer.claim()
                # This follows the claim, which has filled the slots that have become free.
                self._backlog.count(full=self._claimer.is_full)
                self._janitor.purge()
                self._backoff.all_answered()
                if self.has_polled:
                    self._history.work(len(self._tasks))
                    self._output.work()
            except TransientStoreError:
                # The failure has been logged. A claim is sent as soon as the pause has passed,
                # because only the answer to a request can show that the outage has ended.
                self._claimer.poll_now()
        if self._stop_at is not None and self._clock.monotonic() >= self._stop_at:
            self._tasks.stop_all(Reason.SHUTDOWN, self._stop_limit)
        wakes = min(self._tasks.guard(), self._wakes(), self._triggers.wakes)
        return max(0.0, wakes - self._clock.monotonic())

    def _end_leases(self) -> None:
        """End the leases of tasks that have no process left, and of rows to be given back."""
        # Due leases are extended first, because the answer shows which leases are lost, and
        # `RunningTask.ending` depends on that.
        self._gateway.keep_leases()
        # Leases that count as lost are settled nevertheless: if an earlier settlement has ended
        # such a lease, and only its answer was lost, the store recognises the repetition.
        ended = [task for task in self._tasks if self._can_end(task)]
        endings = [self._ending(task) for task in ended]
        # What is given back has no record, unless somebody has stopped or cancelled it meanwhile.
        endings += [
            Ending(row, Release(), history=history_setting(row, self._settings))
            for row in self._unstarted.releases.values()
        ]
        if not endings:
            self._release_schedules()
            return
        endings = [
            changed(ending, earlier=earlier)
            if (earlier := self._history.unwritten(ending.leased.key))
            else ending
            for ending in endings
        ]
        try:
            asked = self._clock.monotonic()
            results = self._settler.settle(self._store, endings)
        except StoreBusyError as busy:
            self._remove(busy.answered)
            raise
        debug_requests("settled", results, self._clock.monotonic() - asked)
        self._history.settled()
        self._remove(results)
        self._claimer.poll_now()
        self._release_schedules()

    def _release_schedules(self) -> None:
        """End the holds of schedules whose extra runs have ended, or were not started."""
        mono, store = self._clock.monotonic(), self._store
        holds = {h: each for h, each in self._unstarted.ending_holds.items() if each.next <= mono}
        if not holds or not isinstance(store, HoldsSchedules):
            return
        # Of several holds of one schedule, at most one exists. The others end by the next calls.
        ends = {each.key: holder for holder, each in holds.items()}
        self._gateway.request(partial(store.release, ends))
        for holder in ends.values():
            if mono >= holds[holder].until:
                self._unstarted.ended_hold(holder)
            else:
                holds[holder].next = min(mono + UNKNOWN_PAUSE, holds[holder].until)
        self._claimer.poll_now()

    def _ending(self, task: RunningTask) -> Ending:
        """How the lease of a task ends, with the failures of earlier occurrences if they matter."""
        ending, definition = task.ending, task.definition
        decision = ending.decision
        counts = definition.settings.pause_after_failures and definition.trigger is not None
        if not counts or not isinstance(decision, Retry):
            return ending
        if not attempts.is_exhausted(task.row, definition):
            return ending
        earlier = self._history.failures_before(task.row, definition)
        return changed(ending, decision=changed(decision, earlier=earlier))

    def _can_end(self, task: RunningTask) -> bool:
        """Whether a task has no process left, and its settlement needs no answer of a helper."""
        return task.empty and not self._triggers.awaits(task.row)

    def _remove(self, results: Mapping[str, Settled]) -> None:
        """Forget the leases that have ended or were lost, and log how their tasks ended."""
        for key, result in results.items():
            if self._unstarted.released(key):
                self._given_back = True
                continue
            task = self._tasks.remove(key)
            if task.hold is not None:
                self._unstarted.end_hold(task.hold.key, task.hold.holder)
            self._output.add(task)
            self._triggers.forget(task.row)
            unsure = self._settler.forget(task.ending)
            # If a settlement would remove its row, but the row is gone already, the store answers
            # DONE, whoever removed the row. If this worker had lost the lease, another worker or a
            # client might have removed it. So after a lost lease, DONE proves that the task's end
            # was recorded only if an earlier settlement might have been applied, because its answer
            # was lost (``unsure``).
            self._claimer.ended(task)
            counts = result is Settled.DONE and (unsure or not task.lost)
            self._tasks.reporter.ended(task, counts=counts)
            if counts:
                task.log_end()
                self._history.wrote(key)
                continue
            self._history.preempted(task)
            if unsure:
                text = "the store did not confirm its end before its lease ended or was taken over"
                text += ": nobody knows whether what it did counts"
                task.log(text, level=logging.ERROR)
            else:
                task.log("preempted: what it did counts for nothing", level=logging.ERROR)

    def _write_settlements(self) -> None:
        """Write the settlements of claimed rows for which there is nothing to run."""
        settlements = self._unstarted.settlements
        if not settlements:
            return
        asked = self._clock.monotonic()
        sent = [
            changed(each, records=(*earlier, *each.records))
            if (earlier := self._history.unwritten(each.key))
            else each
            for each in settlements.values()
        ]
        results = self._gateway.request(partial(self._store.settle, sent))
        debug_requests("settled", results, self._clock.monotonic() - asked)
        for key, result in results.items():
            settlement = settlements[key]
            if result is Settled.DONE and settlement.reason:
                aside = "quarantined: " if settlement.status == QUARANTINED else ""
                _log.warning("%s: %s%s", key, aside, settlement.reason)
            elif result is Settled.REDEFINED:
                # The row's definition has changed since the settlement was computed. The row is
                # given back, so that the next worker that claims it computes a new settlement.
                row = self._gateway.request(partial(self._store.get, key))
                if row is not None and row.token == settlement.token:
                    self._unstarted.release(row)
            if result is Settled.DONE and settlement.records:
                self._history.wrote(key)
            self._unstarted.settled(key)
        self._history.settled()
        self._claimer.poll_now()

    def _stop_marked(self) -> None:
        """Stop the tasks whose schedules were deleted or cancelled, and extra runs of these."""
        mono = self._clock.monotonic()
        if not self._tasks or mono < self._next_marks:
            return
        keys = [*(task.row.key for task in self._tasks), *self._tasks.holding]
        marked = self._gateway.request(partial(self._store.marked, keys))
        for key, mark in marked.items():
            if mark in AFTER_RUN.values():
                continue  # the task itself has asked for it
            reason = Reason.DELETED if mark == DELETING else Reason.CANCELLED
            # Extra runs are stopped with their schedules.
            task = self._tasks[key] if key in self._tasks else self._tasks.holding.get(key)
            if task is not None:
                self._tasks.stop(task, reason)
        self._next_marks = mono + self._settings.poll_interval

    def _recover(self) -> None:
        """Release the leases of the dead workers that the method `recover` was given."""
        while self._dead:
            send = partial(
                self._store.recover,
                self._dead[0],
                alive_time=self._settings.alive_time,
                retry_wait=self._settings.retry_wait,
            )
            keys = [*self._gateway.request(send)]
            for key in keys:
                _log.warning("%s: released, its worker has died", key)
            if keys and self._settings.metrics:
                # Read the types, which `Store.recover` does not return.
                for row in self._gateway.request(partial(self._store.look, keys)).values():
                    self._counts.lost(row.type)
            self._recovered.append(self._dead.pop(0))
            self._claimer.poll_now()

    def _wakes(self) -> float:
        """When to send the next request or stop the tasks, seconds of the monotonic clock."""
        mono, boot = self._clock.monotonic(), self._clock.boottime()
        wakes = min(mono + self._gateway.next_extension - boot, self._claimer.wakes)
        wakes = min(wakes, self._backlog.wakes, self._history.wakes, self._output.wakes)
        if self._tasks:
            wakes = min(wakes, self._next_marks)
        for hold in self._unstarted.ending_holds.values():
            wakes = min(wakes, hold.next)
        if self._has_requests():
            wakes = mono
        if wakes == inf:
            wakes = mono + 1
        wakes = max(wakes, self._claimer.gathers_until)
        wakes = max(wakes, self._backoff.not_before)
        if self._stop_at is not None and self._stop_at > mono:
            wakes = min(wakes, self._stop_at)
        return wakes

    def _has_requests(self) -> bool:
        """Whether a settlement, a release, a recovery or a startup step is pending."""
        unstarted = self._unstarted
        return bool(
            unstarted.settlements
            or unstarted.releases
            or self._dead
            or self._startup.pending
            or any(map(self._can_end, self._tasks))
        )

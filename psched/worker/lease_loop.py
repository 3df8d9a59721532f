"""The order of a worker's work in one tick: receive, settle, stop deleted tasks, recover, claim.

`psched.worker.execution` shows what becomes of one task. A tick never waits for a task to end.
`StoreGateway` sends each request to the store. Before each request, the gateway guards the tasks
(it sends them the signals that are due), and extends the leases that are due. If a request fails,
no further request is sent until a pause has passed. Meanwhile the ticks continue to guard the
tasks, so that no task runs longer than its lease (see `psched.base.lease_times`).
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

from psched.base.errors import TransientStoreError
from psched.base.texts import brief
from psched.core.model import AFTER_RUN, DELETING
from psched.runner.shared_memory import Reason
from psched.worker.chores import BacklogWatch, HostRows, Janitor, StartupSteps
from psched.worker.context import Context
from psched.worker.execution import Execution
from psched.worker.task_table import IMMEDIATE, TaskTable

_log = logging.getLogger("psched.worker")


class LeaseLoop:
    """Leases due occurrences, and settles each lease when its task has ended.

    Attributes:
        execution: what becomes of each task.
        recovered: the nonces of the dead workers whose leases were released, since the owner of
            this object has last emptied the list.
    """

    def __init__(self, context: Context, tasks: TaskTable) -> None:
        self.execution = Execution(context, tasks)
        self.recovered: list[str] = []
        self._store = context.store
        self._settings = context.settings
        self._counts = context.recorder.counts
        self._clock = context.clock
        self._pool = context.pool
        self._tasks = tasks
        self._gateway = self.execution.gateway
        self._pacing = self.execution.pacing
        self._unstarted = self.execution.unstarted
        self._startup = StartupSteps(context.startup, self._gateway)
        self._janitor = Janitor(context, self._gateway)
        self._host_rows = HostRows(context, self._gateway)
        self._backlog = BacklogWatch(context, self._gateway)
        self._full_since = inf
        self._dead: list[str] = []
        self._next_marks = 0.0
        self._stop_at: float | None = None
        self._stop_limit: float | None = None

    # --- What the master orders ---

    def look(self) -> None:
        """Have the next tick claim rows, because some may be due."""
        self._pacing.look()

    def recover(self, nonces: Sequence[str]) -> None:
        """Have a later tick release the leases of the dead workers that have these nonces."""
        self._dead += nonces

    def pause(self) -> None:
        """Send no claims from now on; running tasks continue."""
        self._pacing.stopped = True

    def stop(self, timeout: float | None, *, hurry: bool = False) -> None:
        """Send no claims from now on, and stop the running tasks after a timeout."""
        self.pause()
        self.execution.triggers.dismiss()
        self._pool.dismiss()
        if timeout is not None:
            at = self._clock.monotonic() + timeout
            self._stop_at = at if self._stop_at is None else min(at, self._stop_at)
            if hurry:
                self._stop_limit = IMMEDIATE

    # --- What the master is told ---

    @property
    def is_full(self) -> bool:
        """Whether this worker claims no rows for the only reason that it has no free slot."""
        return self._pacing.is_full

    @property
    def idle(self) -> bool:
        """Whether no lease is held, no claim's outcome is unknown, and no recovery is pending."""
        held = self._tasks.running or self._unstarted or self.execution.claims.unknown
        return not (held or self._dead)

    @property
    def asks(self) -> bool:
        """Whether a trigger is computing the occurrence that follows the run of some task."""
        triggers = self.execution.triggers
        return any(triggers.awaits(task.row) for task in self._tasks.running.values())

    @property
    def claim_age(self) -> float | None:
        """Seconds since the store has last answered a claim; None if it has answered none."""
        answered = self._pacing.answered
        return None if answered is None else self._clock.monotonic() - answered

    def news(self) -> Mapping[str, Any]:
        """How busy this worker is, and what it cannot do at present, for a heartbeat."""
        backlog, away, no_fork = self._backlog, self._gateway.backoff.away, self._tasks.no_fork
        return {
            "tasks": len(self._tasks.running),
            "away": None if away is None else brief(away),
            "slots": self._settings.concurrency,
            "free": self._pacing.spare,
            "due": backlog.backlog.due,
            "late": backlog.backlog.late,
            "waited": backlog.waited,
            "no_fork": None if no_fork is None else brief(no_fork),
        }

    def losses(self) -> Mapping[str, int]:
        """How many records, and outputs of attempts, could not be written so far."""
        execution = self.execution
        return {
            "lost_records": execution.history.lost_records,
            "lost_outputs": execution.output.lost,
        }

    def leave(self) -> None:
        """Note in the store that this worker ends; call this when no lease is left.

        If the store has not answered the last request, this does nothing.
        """
        if self._gateway.backoff.ready and self._gateway.backoff.away is None:
            self.execution.output.leave()
            self.execution.history.leave()

    # --- One tick ---

    def tick(self) -> float:
        """Do everything that is due; return seconds until the next tick."""
        execution, pacing, unstarted = self.execution, self._pacing, self._unstarted
        self._tasks.receive(self._gateway)
        if execution.triggers.is_busy:
            execution.triggers.receive()
        if unstarted.waiting or unstarted.prefetched:
            execution.rows.resume()
        now = self._clock.monotonic()
        if now >= self._gateway.backoff.not_before and now >= pacing.gathers_until:
            try:
                self._send_requests()
            except TransientStoreError:
                # The failure has been logged. A claim is sent as soon as the pause has passed,
                # because only the answer to a request can show that the outage has ended.
                pacing.next_poll = 0.0
        if self._stop_at is not None and self._clock.monotonic() >= self._stop_at:
            self._tasks.stop_all(Reason.SHUTDOWN, self._stop_limit)
        wakes = min(self._tasks.guard(), self._wakes())
        return max(0.0, wakes - self._clock.monotonic())

    def _send_requests(self) -> None:
        """Send all requests that are due; those about leases come first."""
        execution, pacing, unstarted = self.execution, self._pacing, self._unstarted
        execution.settle()
        if unstarted.ending_holds:
            execution.extra_runs.release_schedules()
        if unstarted.settlements:
            execution.rows.write_settlements()
        if self._tasks.running and self._clock.monotonic() >= self._next_marks:
            self._stop_marked()
        # Startup steps precede the recovery, because the first step can create the table that the
        # recovery needs.
        if self._startup.pending:
            self._startup.step()
        if self._dead:
            self._recover()
        execution.claim()
        # This follows the claim, which has filled the slots that have become free.
        self._watch_backlog()
        now = self._clock.monotonic()
        if now >= self._janitor.due:
            self._janitor.purge()
        if now >= self._host_rows.due and not self._startup.pending and pacing.answered is not None:
            self._host_rows.step()
        if self._gateway.backoff.away is not None:
            self._gateway.backoff.all_answered()
        if now >= execution.records_due and pacing.answered is not None:
            execution.write_records()

    def _watch_backlog(self) -> None:
        """Count the due rows that wait, if no slot has been free for some seconds."""
        now, backlog = self._clock.monotonic(), self._backlog
        if self._pacing.is_full:
            self._full_since = min(self._full_since, now)
            if now >= self._backlog_wakes:
                backlog.count(self._full_since)
        else:
            self._full_since = inf
            if backlog.next:
                backlog.over()

    @property
    def _backlog_wakes(self) -> float:
        """When to count due rows, seconds of the monotonic clock; inf while a slot is free."""
        return max(self._full_since + self._backlog.patience, self._backlog.next)

    def _stop_marked(self) -> None:
        """Stop the tasks whose schedules were deleted or cancelled, and extra runs of these."""
        running, holding = self._tasks.running, self._tasks.holding
        mono = self._clock.monotonic()
        marked = self._gateway.request(partial(self._store.marked, [*running, *holding]))
        for key, mark in marked.items():
            if mark in AFTER_RUN.values():
                continue  # the task itself has asked for it
            reason = Reason.DELETED if mark == DELETING else Reason.CANCELLED
            # Extra runs are stopped with their schedules.
            task = running.get(key) or holding.get(key)
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
            self.recovered.append(self._dead.pop(0))
            self._pacing.next_poll = 0.0

    def _wakes(self) -> float:
        """When to send the next request or stop the tasks, seconds of the monotonic clock."""
        execution, unstarted = self.execution, self._unstarted
        mono, boot = self._clock.monotonic(), self._clock.boottime()
        wakes = min(mono + self._gateway.next_extension - boot, self._pacing.wakes)
        wakes = min(wakes, self._backlog_wakes, execution.records_wake)
        running = self._tasks.running.values()
        if running:
            wakes = min(wakes, self._next_marks)
        for hold in unstarted.ending_holds.values():
            wakes = min(wakes, hold.next)
        for claim in execution.claims.unknown:
            wakes = min(wakes, claim.next)
        if (
            unstarted.settlements
            or unstarted.releases
            or self._dead
            or self._startup.pending
            or self._host_rows.pending
            or any(map(execution.has_ended, running))
        ):
            wakes = mono
        if wakes == inf:
            wakes = mono + 1
        wakes = max(wakes, self._pacing.gathers_until, self._gateway.backoff.not_before)
        if self._stop_at is not None and self._stop_at > mono:
            wakes = min(wakes, self._stop_at)
        if execution.triggers.is_busy:
            wakes = min(wakes, execution.triggers.wakes)
        return wakes

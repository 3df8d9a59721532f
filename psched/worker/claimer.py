"""New leases: when to ask for due rows, how many to claim, and what to do with each."""

import logging
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf

from psched.base import lease_times
from psched.base.clock import Clock
from psched.base.errors import TransientStoreError
from psched.base.lease_times import Deadlines
from psched.config import Config
from psched.core.model import Row, Settlement
from psched.core.policy import Run, postpone
from psched.core.store_protocol import Claimed, ClaimUnknownError, Store
from psched.worker.lease import Lease
from psched.worker.store_backoff import Slowness
from psched.worker.store_gateway import StoreGateway
from psched.worker.task_table import TaskTable
from psched.worker.trigger_helpers import Question, TriggerHelpers
from psched.worker.unstarted_leases import UnstartedLeases

_log = logging.getLogger("psched.worker")

_LONGEST_JUDGEMENT = 0.5
"""Seconds for judging the rows of one claim and starting their tasks; rows that have not been
judged by then are given back."""

_LONGEST_UNGUARDED = 0.2
"""Seconds of judging rows and starting tasks after which the running tasks are guarded again."""

_FORK_PAUSE = 1
"""Seconds until the next claim, or until a postponed row is due, if no process could be forked."""

_LATE_CLAIM = 2.0
"""The most seconds that a claim takes on the server: one to wait for a lock, one for the rest."""

_UNKNOWN_PAUSE = 0.5
"""Seconds until the store is asked again which rows an unanswered claim has leased."""

_LOST_RACE_PAUSE = (0.002, 0.02)
"""The least and the most seconds until the next claim, if other workers have claimed all due
rows."""

_AHEAD = 0.006
"""Seconds by which an early claim precedes the time at which a row is due; see `_before`."""

_AHEAD_SHARE = 1 / 200
"""The share of a long sleep by which an early claim precedes the time at which a row is due. In a
niced process, a sleep may end late by this share."""


@dataclass(slots=True)
class _UnknownClaim:
    """A claim without an answer: the store may have applied it, or may still apply it.

    After the driver has given up, the request may still be on its way for as long as the driver
    would have waited, and the server may execute it then. Only after that time is it certain which
    rows the claim has leased.

    Attributes:
        error: the claim's owner, and the keys of the rows that the claim may have leased.
        sent: when the claim was sent, seconds of the boot-time clock.
        until: the store is asked for the last time at this time or later, seconds of the monotonic
            clock.
        next: when to ask the store again, seconds of the monotonic clock.
    """

    error: ClaimUnknownError
    sent: float
    until: float
    next: float = 0.0


class Claimer:
    """Leases due rows, as many as can be run, and starts their tasks.

    The claimer owns the time of the next claim, and the claims whose outcome is unknown.

    Args:
        store: where the rows are.
        gateway: sends the requests.
        settings: the lengths of leases, and how many tasks may run.
        nonce: a random text that identifies this worker in its leases.
        tasks: starts and keeps the tasks of the rows that can run now.
        unstarted: keeps every other claimed row: there is nothing to run, its trigger must be
            asked first, or the row is given back.
        triggers: asks triggers that users have written.
        slowness: records leases that were too old when their tasks could be started.
        clock: tells when to claim.
        rng: draws the jitter of polls.

    Attributes:
        has_polled: whether a claim has been answered.
    """

    def __init__(
        self,
        store: Store,
        gateway: StoreGateway,
        settings: Config,
        *,
        nonce: str,
        tasks: TaskTable,
        unstarted: UnstartedLeases,
        triggers: TriggerHelpers,
        slowness: Slowness,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._store = store
        self._gateway = gateway
        self._settings = settings
        self._nonce = nonce
        self._tasks = tasks
        self._unstarted = unstarted
        self._triggers = triggers
        self._slowness = slowness
        self._clock = clock
        self._rng = rng
        self._shortest = lease_times.shortest_alive_time(settings.driver_timeout)
        self._claims = 0
        self._unknown: list[_UnknownClaim] = []
        self._backlog = False
        self._next_poll = 0.0
        self._stopped = False
        self.has_polled = False

    def stop(self) -> None:
        """Send no further claims."""
        self._stopped = True

    def poll_now(self) -> None:
        """Claim at the next opportunity, because a task has ended or rows may have become due."""
        self._next_poll = 0.0

    @property
    def has_unknown(self) -> bool:
        """Whether there is a claim whose outcome is unknown."""
        return bool(self._unknown)

    @property
    def wakes(self) -> float:
        """When to call `claim` again, seconds of the monotonic clock."""
        moments = [unknown.next for unknown in self._unknown]
        if self._room > 0:
            moments.append(self._next_poll)
        return min(moments, default=inf)

    def claim(self) -> None:
        """Lease due rows and start their tasks, if it is time for a claim.

        Raises:
            TransientStoreError: the store did not answer.
        """
        if self._unknown:
            self._resolve()
        room = self._room
        if room <= 0 or self._clock.monotonic() < self._next_poll:
            return
        # Runners are forked before the claim, so that no lease grows old during a fork.
        if not self._prepare(room if self._backlog else 1):
            return
        self._claims += 1
        owner = f"{self._nonce}.{self._claims}"
        sent = asked = 0.0

        def send() -> Claimed:
            # The time is read here, because `request` may extend leases first, which takes time.
            nonlocal sent, asked
            sent, asked = self._clock.boottime(), self._clock.monotonic()
            return self._store.claim(
                owner,
                # While forks fail, only one row is claimed, because rows without a runner would
                # have to be given back.
                limit=1 if self._tasks.no_forks.ongoing else room,
                alive_time=self._settings.alive_time,
                shortest=self._shortest,
                horizon=self._settings.poll_interval,
            )

        try:
            claimed = self._gateway.request(send)
        except ClaimUnknownError as error:
            on_its_way = self._settings.driver_timeout + _LATE_CLAIM
            self._unknown.append(_UnknownClaim(error, sent, self._clock.monotonic() + on_its_way))
            raise
        self.has_polled = True
        self._backlog = claimed.more
        answered = self._clock.monotonic()
        # The store has read its clock between the request and the answer; the middle is assumed.
        read = answered if claimed.more else (asked + answered) / 2
        self._next_poll = read + self._pause(claimed)
        if not claimed.rows:
            return
        self._begin(claimed, sent)
        if self._room > 0 and not self._backlog:
            # Fork a runner now, so that the next task does not wait for a fork. Due leases are
            # extended first, because the fork may take long.
            self._gateway.keep_leases()
            self._prepare(1)

    def resume(self) -> None:
        """Start, settle or give back the rows that need not wait for their triggers any more."""
        for key, waiting in [*self._unstarted.waiting.items()]:
            answer = waiting.question.answer
            if waiting.lost:
                _log.warning("%s: preempted while its trigger was asked", key)
            elif self._stopped:
                self._unstarted.release(waiting.row)
            elif isinstance(answer, Settlement):
                self._unstarted.settle(answer)
            elif self._triggers.is_stuck(waiting.question):
                # The row is postponed, because another host may be able to fork a process for this
                # question.
                self._unstarted.settle(postpone(waiting.row, _FORK_PAUSE))
            elif answer is not None and self._free > 0:
                self._start(waiting, answer, following=0)
            else:
                continue  # no answer yet, or no room for the task yet
            self._triggers.drop(waiting.question)
            self._unstarted.waited(key)

    def _prepare(self, count: int) -> bool:
        """Have up to ``count`` runners forked; return whether at least one is waiting."""
        try:
            self._tasks.prepare(count)
        except OSError:
            # The next try asks for one runner only, because a fork of one may succeed.
            self._backlog = False
            self._next_poll = self._clock.monotonic() + _FORK_PAUSE
            return False
        return True

    def _resolve(self) -> None:
        """Ask the store which rows the unanswered claims have leased, and judge these rows."""
        for unknown in [*self._unknown]:
            mono = self._clock.monotonic()
            if mono < unknown.next:
                continue
            error = unknown.error
            rows = self._gateway.request(partial(self._store.held, error.owner, error.keys))
            rows = [row for row in rows if not self._holds(row)]
            now = self._gateway.request(self._store.now) if rows else None
            unknown.next = min(mono + _UNKNOWN_PAUSE, unknown.until)
            if mono >= unknown.until:
                self._unknown.remove(unknown)
            self._begin(Claimed(rows=rows, now=now), unknown.sent)

    def _holds(self, row: Row) -> bool:
        """Whether this worker already knows the lease of a row."""
        if row.key in self._tasks and self._tasks[row.key].row.token == row.token:
            return True
        return self._unstarted.holds(row)

    def _begin(self, claimed: Claimed, sent: float) -> None:
        """Judge the rows of a claim, and start their tasks."""
        # Due leases are extended before the ages of the new leases are checked, because extending
        # takes time.
        self._gateway.keep_leases()
        granted = self._fresh([self._granted(row, sent) for row in claimed.rows])
        until = (guarded := self._clock.monotonic()) + _LONGEST_JUDGEMENT
        for place, lease in enumerate(granted):
            row, mono = lease.row, self._clock.monotonic()
            if mono >= guarded + _LONGEST_UNGUARDED:
                # Forks may have taken long, so the tasks are guarded and due leases extended.
                self._gateway.keep_leases()
                guarded = self._clock.monotonic()
                until += guarded - mono
            if mono >= until:
                # The remaining rows are given back, because judging late occurrences may take long.
                self._unstarted.release(row)
                continue
            if row.key in claimed.expired:
                _log.warning("%s: taken over, its last lease ended without a settle", row.key)
            verdict = self._triggers.open(row, claimed.now or 0)
            if isinstance(verdict, Question):
                self._unstarted.wait(row, lease.deadlines, verdict)
            elif isinstance(verdict, Run):
                self._start(lease, verdict, following=len(granted) - place - 1)
            else:
                self._unstarted.settle(verdict)

    def _granted(self, row: Row, sent: float) -> Lease:
        length = lease_times.lease_time(row.alive_time, self._settings.alive_time, self._shortest)
        return Lease(row, Deadlines(sent, length, self._settings.driver_timeout))

    def _fresh(self, granted: Sequence[Lease]) -> Sequence[Lease]:
        """Extend the leases if one of them is due; return those that this worker still holds.

        Because of this, rows of a slow claim can be started: it costs one further request.
        """
        # A failure is ignored, because it has been logged. `_start` gives back the row of a lease
        # that is too old.
        with suppress(TransientStoreError):
            self._gateway.extend_due(granted)
        for lease in granted:
            if lease.lost:
                _log.warning("%s: preempted before it was started", lease.row.key)
        return [lease for lease in granted if not lease.lost]

    def _start(self, lease: Lease, run: Run, *, following: int) -> None:
        """Start a task, or give its row back.

        Args:
            lease: the lease of the row.
            run: what to run.
            following: how many rows of the same claim remain to be judged.
        """
        row, deadlines = lease.row, lease.deadlines
        # The worker can be full if the row belongs to a claim whose answer was lost.
        full = self._free <= 0
        unwanted = full or self._stopped or row.key in self._tasks
        if unwanted or not self._prepare(1 + following):
            self._unstarted.release(row)
        elif self._clock.boottime() >= deadlines.last_start:
            self._slowness.gave_back(row.key, deadlines.lease)
            self._unstarted.release(row)
        else:
            self._tasks.start(row, run, deadlines)

    @property
    def _room(self) -> int:
        """How many more rows to claim; zero or less if no row is to be claimed."""
        if self._stopped:
            return 0
        unstarted = self._unstarted
        reserved = sum(
            self._triggers.is_reserved(each.question) for each in unstarted.waiting.values()
        )
        return self._free - len(unstarted.settlements) - len(unstarted.releases) - reserved

    @property
    def _free(self) -> int:
        """How many more tasks may run."""
        # A task whose processes are gone is not counted, even while its trigger is asked about
        # the next run.
        over = sum(task.empty and self._triggers.awaits(task.row) for task in self._tasks)
        return self._settings.concurrency - len(self._tasks) + over

    def _pause(self, claimed: Claimed) -> float:
        """Seconds until the next claim."""
        if claimed.more:
            # If the store has returned no rows, other workers have claimed them first. A short
            # pause avoids another race with them.
            return 0.0 if claimed.rows else self._rng.uniform(*_LOST_RACE_PAUSE)
        # The pause is random, so that hosts do not poll in step, and never exceeds the interval.
        pause = self._settings.poll_interval * self._rng.uniform(0.9, 1.0)
        if claimed.next_due is None or claimed.now is None:
            return pause
        return min(pause, _before(max(claimed.next_due - claimed.now, 0.0)))


def _before(due: float) -> float:
    """Seconds until the next claim, given the seconds until a row is due.

    The first claim is sent a little early, and the next one when the row is due. The early claim
    makes the second one fast and punctual: it wakes this process, the connection and the server,
    and fills their caches. It also reads the store's clock anew, and only a short sleep remains,
    which does not end late.
    """
    return due if due <= 2 * _AHEAD else due - max(_AHEAD, _AHEAD_SHARE * due)

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
"""Seconds for judging the rows of one claim and starting their tasks; rows that are left after that
are given back."""

_LONGEST_UNGUARDED = 0.2
"""Seconds of judging and starting after which the running tasks are guarded."""

_FORK_PAUSE = 1
"""Seconds until the next try, of a claim or of one row, when no process could be forked."""

_LATE_CLAIM = 2.0
"""Seconds that a claim takes on the server at most: one to wait for a lock, one for the rest."""

_UNKNOWN_PAUSE = 0.5
"""Seconds until the store is asked again what an unanswered claim has leased."""

_LOST_RACE_PAUSE = (0.002, 0.02)
"""Seconds until the next claim, at least and at most, when others have claimed all that was due."""

_AHEAD = 0.006
"""Seconds before a row is due at which there is an early claim; see `_before`."""

_AHEAD_SHARE = 1 / 200
"""The same, as a share of a long sleep, which may end late by this share in a niced process."""


@dataclass(slots=True)
class _UnknownClaim:
    """A claim of which nobody knows whether it was applied, or will be.

    When the driver has given up, the request may still be on its way for as long as the driver
    would have waited, and be executed then. Only after that does the store know for good which
    rows the claim has taken.

    Attributes:
        error: the claim's owner, and the rows that it may have taken.
        sent: when it was sent, seconds of the boot-time clock.
        until: the last question is sent at this time or later, seconds of the monotonic clock.
        next: when to ask again, seconds of the monotonic clock.
    """

    error: ClaimUnknownError
    sent: float
    until: float
    next: float = 0.0


class Claimer:
    """Leases due rows, as many as can be run, and starts their tasks.

    It owns the time of the next claim, and the claims whose outcome is unknown.

    Args:
        store: where the rows are.
        gateway: sends the requests.
        settings: the lengths of leases, and how many tasks may run.
        nonce: drawn for this worker alone; its leases carry it.
        tasks: takes a row whose task is started.
        unstarted: takes a row with nothing to run, or with nothing to run yet, or not here.
        triggers: asks triggers of the users' own.
        slowness: is told of leases that were too old by the time their task could be started.
        clock: tells when to claim.
        rng: draws the jitter of polls.

    Attributes:
        has_polled: a claim has been answered.
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
        """Claim no more."""
        self._stopped = True

    def poll_now(self) -> None:
        """Claim at the next opportunity: there is room again, or there may be due rows."""
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
        """Lease and start what is due, if it is time to.

        Raises:
            TransientStoreError: the store did not answer.
        """
        if self._unknown:
            self._resolve()
        room = self._room
        if room <= 0 or self._clock.monotonic() < self._next_poll:
            return
        # Runners are made before the claim, so that no lease waits for a fork.
        if not self._prepare(room if self._backlog else 1):
            return
        self._claims += 1
        owner = f"{self._nonce}.{self._claims}"
        sent = asked = 0.0

        def send() -> Claimed:
            # The time is read only here, because extending leases first may have taken time.
            nonlocal sent, asked
            sent, asked = self._clock.boottime(), self._clock.monotonic()
            return self._store.claim(
                owner,
                # More rows than there are runners would have to be given back.
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
        # The store has read its clock somewhere between the request and the answer.
        read = answered if claimed.more else (asked + answered) / 2
        self._next_poll = read + self._pause(claimed)
        if not claimed.rows:
            return
        self._begin(claimed, sent)
        if self._room > 0 and not self._backlog:
            # Have a runner for the next task, so that it does not wait for a fork; leases are kept
            # first.
            self._gateway.keep_leases()
            self._prepare(1)

    def resume(self) -> None:
        """Start or settle the rows whose triggers have answered."""
        for key, waiting in [*self._unstarted.waiting.items()]:
            answer = waiting.question.answer
            if waiting.lost:
                _log.warning("%s: preempted while its trigger was asked", key)
            elif self._stopped:
                self._unstarted.release(waiting.row)
            elif isinstance(answer, Settlement):
                self._unstarted.settle(answer)
            elif self._triggers.is_stuck(waiting.question):
                # Another host may have a process for this question.
                self._unstarted.settle(postpone(waiting.row, _FORK_PAUSE))
            elif answer is not None and self._free > 0:
                self._start(waiting, answer, following=0)
            else:
                continue  # no answer yet, or no room for the task yet
            self._triggers.drop(waiting.question)
            self._unstarted.waited(key)

    def _prepare(self, count: int) -> bool:
        """Have runners made; return whether there are any."""
        try:
            self._tasks.prepare(count)
        except OSError:
            # The next try asks for one runner only: the system may have a process for one task.
            self._backlog = False
            self._next_poll = self._clock.monotonic() + _FORK_PAUSE
            return False
        return True

    def _resolve(self) -> None:
        """Find out which rows the claims have leased whose answers were lost."""
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
        """Whether this worker already knows the lease."""
        if row.key in self._tasks and self._tasks[row.key].row.token == row.token:
            return True
        return self._unstarted.holds(row)

    def _begin(self, claimed: Claimed, sent: float) -> None:
        """Judge the rows of a claim, and start their tasks."""
        # Leases are kept first, before the ages of the new ones are compared with the clock.
        self._gateway.keep_leases()
        granted = self._fresh([self._granted(row, sent) for row in claimed.rows])
        until = (guarded := self._clock.monotonic()) + _LONGEST_JUDGEMENT
        for place, lease in enumerate(granted):
            row, mono = lease.row, self._clock.monotonic()
            if mono >= guarded + _LONGEST_UNGUARDED:
                # The forks may have taken long.
                self._gateway.keep_leases()
                guarded = self._clock.monotonic()
                until += guarded - mono
            if mono >= until:
                # Backlogs of late occurrences take long to judge.
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
        """The leases that are still ours; first, they are extended if one of them is due.

        So a slow claim costs one more request, and not its rows.
        """
        # A failure has been logged; a lease that could not be extended may be too old to start.
        with suppress(TransientStoreError):
            self._gateway.extend_due(granted)
        for lease in granted:
            if lease.lost:
                _log.warning("%s: preempted before it was started", lease.row.key)
        return [lease for lease in granted if not lease.lost]

    def _start(self, lease: Lease, run: Run, *, following: int) -> None:
        """Start a task, or give its row back.

        Args:
            lease: the row's.
            run: what to run.
            following: how many tasks are to be started after it.
        """
        row, deadlines = lease.row, lease.deadlines
        full = self._free <= 0  # for a row that was found late
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
        """How many more rows to claim; zero or less: none."""
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
        # A task that is over leaves room, even while its trigger is asked about the next run.
        over = sum(task.empty and self._triggers.awaits(task.row) for task in self._tasks)
        return self._settings.concurrency - len(self._tasks) + over

    def _pause(self, claimed: Claimed) -> float:
        """Seconds until the next claim."""
        if claimed.more:
            # If there are none, other workers won the race: leave them alone for a moment.
            return 0.0 if claimed.rows else self._rng.uniform(*_LOST_RACE_PAUSE)
        # A little less than the interval, never more, so that hosts do not poll in step.
        pause = self._settings.poll_interval * self._rng.uniform(0.9, 1.0)
        if claimed.next_due is None or claimed.now is None:
            return pause
        return min(pause, _before(max(claimed.next_due - claimed.now, 0.0)))


def _before(due: float) -> float:
    """Seconds until the next claim, given the seconds until a row is due.

    The first claim comes a little early, and the next one at the instant. By then this process, its
    connection and the server's end of it are awake, and have in their caches what the claim needs.
    Besides, the store's clock has just been read, and no long sleep is left that might end late.
    """
    return due if due <= 2 * _AHEAD else due - max(_AHEAD, _AHEAD_SHARE * due)

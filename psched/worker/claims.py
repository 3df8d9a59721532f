"""The claims of a worker: when it claims rows and how many, and which rows a claim has leased.

A worker claims no more rows than it can start soon (`Pacing`). `Claims` sends the claims, and finds
out what those have leased that nobody answered.

**Prefetch.** With short tasks, a worker would spend most of its time waiting for the store, because
it ends the lease of one task and then claims the next row. So while tasks are short and more rows
are due than slots are free, a worker leases a further row per slot, and up to four if tasks are so
short that these start soon. Such a row starts as soon as a slot is free, before the lease of the
task before it has ended.

While all slots are busy with very short tasks, no task waits for a request. Then the ends of leases
wait for a moment, so that one request ends several of them, and the next claim leases several rows.

Another worker could have started a prefetched row. So a row that cannot start soon is given back:
no attempt is counted, and no record is written. The row is then due anew, after all rows that are
due already, so after such a mistake a worker prefetches nothing for a while, and after each further
one for longer.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from math import inf
from typing import TypedDict

from psched.base import lease_times
from psched.base.errors import TransientStoreError
from psched.base.lease_times import Deadlines
from psched.core.history.counts import CLAIMS
from psched.core.model import Row, Settlement
from psched.core.store_protocol import Claimed, ClaimUnknownError, Settled
from psched.worker.context import Context
from psched.worker.running_task import Lease, RunningTask
from psched.worker.store_gateway import StoreGateway
from psched.worker.task_table import FORK_PAUSE, TaskTable
from psched.worker.trigger_helpers import TriggerHelpers
from psched.worker.unstarted import UnstartedLeases

_LOST_RACE_PAUSE = (0.002, 0.02)
"""The shortest and the longest pause before the next claim, in seconds, if other workers have
claimed all due rows first. The pause is random."""

_AHEAD = 0.006
"""Seconds by which an early claim precedes the time at which a row is due; see `_before`."""

_AHEAD_SHARE = 1 / 200
"""The early claim precedes the time at which a row is due by this fraction of a long sleep, because
in a niced process a sleep can end late by this fraction of its length; see `_before`."""

_LASTING = 0.1
"""Rows are prefetched if more rows than slots have been due for at least this many seconds."""

_SHORT = 0.1
"""Tasks are short if their mean duration is at most this many seconds."""

_VERY_SHORT = 0.02
"""The ends of leases wait for one another if the mean duration of tasks is at most this many
seconds."""

_GATHERING = 0.02
"""The maximum number of seconds for which the end of a lease waits for others."""

_PATIENCE = 0.15
"""Seconds after which a prefetched row is given back."""

_STARTED_WITHIN = 0.03
"""A slot should have started the rows that are prefetched for it after this many seconds. It is far
less than `_PATIENCE`, because a task may take longer than those before it."""

_MOST_PER_SLOT = 4
"""The most rows that are prefetched for each slot. A claim of more costs hardly less per row."""

_FIRST_BACK_OFF, _LONGEST_BACK_OFF = 1.0, 60.0
"""Seconds without prefetch after prefetched rows had to be given back: at first, and at most. Each
time it is twice as long, until nothing had to be given back for the longest time."""

_WEIGHT = 1 / 8
"""The weight of the latest duration in the mean."""

_LATE = 2.0
"""The maximum time of a request on the server, in seconds: one second to wait for a lock, one
second for everything else."""

UNKNOWN_PAUSE = 0.5
"""Seconds until the store is asked again which rows an unanswered claim has leased."""


# --- When, and how many ---


def pause_after(claimed: Claimed, poll_interval: float, rng: random.Random) -> float:
    """Seconds from the answer to a claim until the next claim."""
    if claimed.more:
        # If rows are due, but the store has returned none, other workers have claimed them at the
        # same time. After a short random pause, the next claims hardly collide again.
        return 0.0 if claimed.rows else rng.uniform(*_LOST_RACE_PAUSE)
    # The pause is random, so that hosts do not poll at the same times. It never exceeds
    # ``poll_interval``.
    pause = poll_interval * rng.uniform(0.9, 1.0)
    if claimed.next_due is None or claimed.now is None:
        return pause
    return min(pause, _before(max(claimed.next_due - claimed.now, 0.0)))


def _before(due: float) -> float:
    """Seconds until the next claim, given the seconds until a row is due.

    One claim is sent a little before the row is due, and a second claim when the row is due. The
    early claim makes the second claim fast, because it wakes this process, the connection and the
    server, and fills their caches. It also makes the second claim punctual, because its answer
    contains a new reading of the store's clock, and only a short sleep remains until the row is
    due. A short sleep does not end late.
    """
    return due if due <= 2 * _AHEAD else due - max(_AHEAD, _AHEAD_SHARE * due)


class Pacing:
    """Decides when a worker claims rows, how many, and which of them wait for a slot.

    Attributes:
        answered: when the store has last answered a claim, in seconds of the monotonic clock; None
            if it has answered none.
        next_poll: when the next claim is due, in seconds of the monotonic clock.
        backlog: whether more rows were due than the last claim could lease.
        stopped: whether no claim is to be sent any more.
        needed: when runners were last needed, in seconds of the monotonic clock.
    """

    def __init__(
        self,
        context: Context,
        gateway: StoreGateway,
        unstarted: UnstartedLeases,
        triggers: TriggerHelpers,
    ) -> None:
        self._clock = context.clock
        self._rng = context.rng
        self._pool = context.pool
        self._slots = context.settings.concurrency
        self._poll_interval = context.settings.poll_interval
        # They are forked while others run: probably as many rows follow.
        self._orders = context.settings.max_tasks_per_child == 1
        self._gateway = gateway
        self._tasks = gateway.tasks
        self._unstarted = unstarted
        self._triggers = triggers
        self.answered: float | None = None
        self.next_poll = 0.0
        self.backlog = False
        self.stopped = False
        self._backlog_since = 0.0
        self.needed = self._clock.monotonic()
        self._mean = inf
        self._no_prefetch_before = -inf
        self._back_off = _FIRST_BACK_OFF

    def look(self) -> None:
        """Make the next claim due now, because rows might be due, unless forks fail at present."""
        if not self._tasks.no_forks.ongoing:
            self.next_poll = 0.0

    def claimed(self, claimed: Claimed, asked: float) -> None:
        """Decide when the next claim is sent, after the answer to the one that was sent then."""
        self.answered = answered = self._clock.monotonic()
        if claimed.more and not self.backlog:
            self._backlog_since = answered
        self.backlog = claimed.more
        # It is not known when, between the request and the answer, the store has read its clock for
        # ``claimed.now``. The middle is assumed.
        read = answered if claimed.more else (asked + answered) / 2
        self.next_poll = read + pause_after(claimed, self._poll_interval, self._rng)
        if not claimed.rows and not claimed.more:
            self._pool.trim(answered - self.needed)

    def ended(self, task: RunningTask) -> None:
        """Note that the lease of a task has ended, and how long the task has run."""
        self.needed = self._clock.monotonic()
        took = task.ended - task.started
        self._mean = took if self._mean == inf else self._mean + (took - self._mean) * _WEIGHT

    def prepare(self, count: int) -> bool:
        """Have up to ``count`` runners forked; return whether a runner waits for a task now."""
        try:
            self._tasks.prepare(count)
        except OSError:
            # The next try asks for only one runner, because a single fork might succeed.
            self.backlog = False
            self.next_poll = self._clock.monotonic() + FORK_PAUSE
            return False
        return True

    def prepare_next(self, started: int) -> None:
        """Have runners forked for the tasks that follow those of a claim."""
        if self._clock.monotonic() < self._tasks.scarce_until:
            return
        if self.room > 0 and not self.backlog:
            # Fork a runner now, so that the next task does not wait for a fork. Due leases are
            # extended first, because the fork can take long.
            self._gateway.keep_leases()
            self.prepare(1)
        elif self.backlog and self._orders and self.tasks_are_short:
            self._pool.order(min(started, self._slots))

    # --- How many rows ---

    @property
    def free_slots(self) -> int:
        """How many slots have no process; tasks can be started in these now.

        The lease of a task that has ended can be held still.
        """
        return self._slots - sum(not task.empty for task in self._tasks.running.values())

    @property
    def free(self) -> int:
        """How many more tasks can be started when the leases of ended ones have ended."""
        tasks, ends = self._tasks.running.values(), self._triggers.ends
        # A task that has no process left is not counted as running while its trigger is computing
        # the next run.
        over = sum(task.empty and self._triggers.awaits(task.row) for task in tasks) if ends else 0
        return self._slots - len(tasks) + over

    @property
    def room(self) -> int:
        """How many more rows to claim that start at once; zero or less if there are none."""
        if self.stopped:
            return 0
        unstarted = self._unstarted
        reserved = sum(
            self._triggers.is_reserved(each.question) for each in unstarted.waiting.values()
        )
        return self.free - len(unstarted.settlements) - len(unstarted.releases) - reserved

    @property
    def most_rows(self) -> int:
        """How many rows to claim, including those that are prefetched; zero or less if none."""
        # Other workers with free slots get a moment to claim the rows.
        lasts = self.backlog and self._clock.monotonic() >= self._backlog_since + _LASTING
        # Nothing is prefetched until half of the prefetched rows have been started, because a claim
        # of several rows costs hardly more than a claim of one.
        waits = len(self._unstarted.prefetched) > self._slots * self._per_slot // 2
        waits = waits or self.stopped
        return self.room + (self.room_to_prefetch if lasts and not waits else 0)

    @property
    def spare(self) -> int:
        """How many more rows this worker would claim if they were due; 0 if it claims no more.

        A slot for which no process can be forked is not free.
        """
        return 0 if self._tasks.no_fork else max(0, self.room)

    @property
    def is_full(self) -> bool:
        """Whether this worker does not claim rows for the only reason that it has no free slot."""
        return not self.stopped and self.spare == 0

    # --- Rows that wait for a slot ---

    @property
    def tasks_are_short(self) -> bool:
        """Whether the tasks of this worker are known to be short."""
        return self._mean <= _SHORT

    @property
    def room_to_prefetch(self) -> int:
        """How many more rows may be prefetched."""
        now = self._clock.monotonic()
        if not self.tasks_are_short or now < self._no_prefetch_before:
            return 0
        # The slot of a task that turns out to be long will not be free soon.
        running = self._tasks.running.values()
        long = sum(not task.empty and task.started < now - _SHORT for task in running)
        unstarted = len(self._unstarted.prefetched) + len(self._unstarted.waiting)
        return max(0, (self._slots - long) * self._per_slot - unstarted)

    @property
    def _per_slot(self) -> int:
        """How many rows may be prefetched for each slot."""
        return max(1, min(_MOST_PER_SLOT, int(_STARTED_WITHIN / max(self._mean, 0.001))))

    @property
    def given_back_at(self) -> float:
        """When to give back a row that is prefetched now, seconds of the monotonic clock."""
        return self._clock.monotonic() + _PATIENCE

    def back_off(self) -> None:
        """Prefetch nothing for a while, because a row had to be given back."""
        now = self._clock.monotonic()
        if now >= self._no_prefetch_before:  # else it is the same mistake
            calm = now >= self._no_prefetch_before + _LONGEST_BACK_OFF
            again = min(2 * self._back_off, _LONGEST_BACK_OFF)
            self._back_off = _FIRST_BACK_OFF if calm else again
        self._no_prefetch_before = now + self._back_off

    @property
    def gathers_until(self) -> float:
        """Until when the ends of leases wait for others, seconds of the monotonic clock.

        0 if they do not wait.
        """
        if self.stopped or self._mean > _VERY_SHORT or self.free_slots > 0:
            return 0.0
        ended = (task.ended for task in self._tasks.running.values() if task.empty)
        return min(ended, default=-inf) + _GATHERING

    @property
    def wakes(self) -> float:
        """When the next claim is due, or a prefetched row is to be given back; inf if never.

        In seconds of the monotonic clock.
        """
        poll = self.next_poll if self.most_rows > 0 else inf
        return min(poll, *(lease.until for lease in self._unstarted.prefetched.values()), inf)


# --- Claims ---


class _Terms(TypedDict):
    """The arguments of `Store.claim` besides the owner."""

    limit: int
    alive_time: int
    shortest: int
    horizon: float


@dataclass(slots=True)
class Claim:
    """A claim that is sent by itself, or together with settlements.

    Attributes:
        owner: the owner of the leases.
        limit: the most rows to lease.
        sent: when it was sent, seconds of the boot-time clock.
        asked: the same in seconds of the monotonic clock.
        answered: when it was answered, seconds of the boot-time clock.
        answer: the answer; None if there is none.
    """

    owner: str
    limit: int
    sent: float = 0.0
    asked: float = 0.0
    answered: float = 0.0
    answer: Claimed | None = None


@dataclass(slots=True, eq=False)
class _UnknownClaim:
    """A claim that was not answered: the store might have applied it, or might still apply it.

    After the driver has given up, the request can reach the server for up to one more driver
    timeout, and the server can then still execute it. Only when that time has passed is it certain
    which rows the claim has leased. Until then the store is asked several times.

    Attributes:
        error: contains the owner that the claim writes, and the keys of the rows that the claim
            might have leased.
        sent: when the claim was sent, seconds of the boot-time clock.
        until: when it is certain which rows the claim has leased, seconds of the monotonic clock.
            After this time the store is asked once more, for the last time.
        next: when to ask the store again, seconds of the monotonic clock.
    """

    error: ClaimUnknownError
    sent: float
    until: float
    next: float = 0.0


class Claims:
    """Sends the claims of one worker.

    Attributes:
        unknown: the claims that were not answered, whose rows are not all known yet; read only.
    """

    def __init__(
        self,
        context: Context,
        gateway: StoreGateway,
        tasks: TaskTable,
        unstarted: UnstartedLeases,
        pacing: Pacing,
    ) -> None:
        self._store = context.store
        self._settings = context.settings
        self._driver_timeout = context.settings.driver_timeout
        self._shortest = lease_times.shortest_alive_time(self._driver_timeout)
        self._clock = context.clock
        self._recorder = context.recorder
        self._nonce = context.place.nonce
        self._gateway = gateway
        self._tasks = tasks
        self._unstarted = unstarted
        self._pacing = pacing
        self._owners = 0
        self.unknown: list[_UnknownClaim] = []

    def new_owner(self) -> str:
        """A text that this worker has never used as the owner of a lease."""
        self._owners += 1
        return f"{self._nonce}.{self._owners}"

    # --- Send ---

    def prepare(self, ending: int = 0) -> Claim | None:
        """What to claim, given how many leases end before; None if nothing can be claimed."""
        pacing = self._pacing
        room, most = pacing.room + ending, pacing.most_rows + ending
        if pacing.stopped or most <= 0:
            return None
        # Runners are forked before the claim, so that no lease grows old during a fork.
        if room > 0 and not pacing.prepare(room if pacing.backlog else 1):
            return None
        # While forks fail, only one row is claimed, because rows without a runner would have to be
        # given back.
        return Claim(self.new_owner(), 1 if self._tasks.no_forks.ongoing else most)

    def send(self, claim: Claim) -> None:
        """Send a claim by itself; its answer is in the claim afterwards."""
        try:
            self._gateway.request(partial(self._send, claim))
        except TransientStoreError as error:
            self.failed(claim, error)
            raise

    def _send(self, claim: Claim) -> None:
        claim.answer = self._store.claim(claim.owner, **self._terms_of(claim))
        claim.answered = self._clock.boottime()

    def send_with(self, claim: Claim, settlements: Sequence[Settlement]) -> Mapping[str, Settled]:
        """Send settlements and a claim in one request; return the answer to the settlements."""
        results, claim.answer = self._store.settle_and_claim(
            settlements, claim.owner, **self._terms_of(claim)
        )
        claim.answered = self._clock.boottime()
        return results

    def _terms_of(self, claim: Claim) -> _Terms:
        """The arguments of a claim, just before it is sent.

        The clocks are read here and not earlier, because `request` can first extend leases, which
        takes time.
        """
        claim.sent, claim.asked = self._clock.boottime(), self._clock.monotonic()
        return {
            "limit": claim.limit,
            "alive_time": self._settings.alive_time,
            "shortest": self._shortest,
            "horizon": self._settings.poll_interval,
        }

    def failed(self, claim: Claim, error: TransientStoreError) -> None:
        """Note that a claim was not answered."""
        self._recorder.counts.add(CLAIMS, "failed")
        if isinstance(error, ClaimUnknownError):
            self.unknown.append(_UnknownClaim(error, claim.sent, self.certain_at))

    def note(self, claim: Claim, claimed: Claimed) -> None:
        """Note what the answer to a claim tells, besides its rows."""
        self._recorder.counts.add(CLAIMS, "rows" if claimed.rows else "empty")
        if claimed.now is not None:
            self._recorder.clock.read(claimed.now, claim.sent, claim.answered)
        self._pacing.claimed(claimed, claim.asked)
        if claimed.rows:
            self._gateway.debug("claimed", [row.key for row in claimed.rows], claim.asked)

    def lease_of(self, row: Row, sent: float) -> Lease:
        """The lease of a row by a claim that was sent then, seconds of the boot-time clock."""
        length = lease_times.lease_time(row.alive_time, self._settings.alive_time, self._shortest)
        return Lease(row, Deadlines(sent, length, self._driver_timeout))

    # --- Unknown claims ---

    @property
    def certain_at(self) -> float:
        """When no request that has failed now can be applied any more.

        In seconds of the monotonic clock, see `_UnknownClaim`.
        """
        return self._clock.monotonic() + self._driver_timeout + _LATE

    def resolve(self) -> Iterator[tuple[Claimed, float]]:
        """Ask the store which rows unknown claims have leased, if it is time for that."""
        for claim in [*self.unknown]:
            mono = self._clock.monotonic()
            if mono < claim.next:
                continue
            error = claim.error
            rows = self._gateway.request(partial(self._store.held, error.owner, error.keys))
            # The rows contain the end of their leases. It is not known when they fell due.
            rows = [changed(row, next_run_time=None) for row in rows if not self._knows(row)]
            now = self._gateway.request(self._read_clock) if rows else None
            claim.next = min(mono + UNKNOWN_PAUSE, claim.until)
            if mono >= claim.until:
                self.unknown.remove(claim)
            yield Claimed(rows=rows, now=now), claim.sent

    def _read_clock(self) -> float:
        """Ask for the time of the store's clock, which no answer to a claim may have told yet."""
        sent = self._clock.boottime()
        now = self._store.now()
        self._recorder.clock.read(now, sent, self._clock.boottime())
        return now

    def _knows(self, row: Row) -> bool:
        """Whether this worker knows already that it holds the lease of a row."""
        task = self._tasks.running.get(row.key)
        if task is not None and task.row.token == row.token:
            return True
        return self._unstarted.holds(row)

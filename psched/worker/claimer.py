"""New leases: when to look for due rows, how many to take, and what to do with each."""

import logging
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf

from psched.base import lease_times
from psched.base.clock import Clock
from psched.base.errors import StoreUnavailableError
from psched.base.lease_times import Deadlines
from psched.config import Config
from psched.core.model import Row, Settlement
from psched.core.policy import Run, postpone
from psched.core.store_protocol import Claimed, ClaimUnknownError, Store
from psched.worker.lease_extender import LeaseExtender
from psched.worker.store_backoff import StoreBackoff
from psched.worker.task_table import TaskTable
from psched.worker.trigger_helpers import Question, TriggerHelpers

_log = logging.getLogger("psched.worker")

_LONGEST_JUDGEMENT = 0.5
"""Seconds that it may take to judge the rows of one claim, and to start them; those that are left
are given back."""

_LONGEST_START = 0.2
"""Seconds of the same after which running tasks are looked after."""

_FORK_PAUSE = 1
"""Seconds before the next claim when the system had no process to give, of any row or of one."""

_WAY_OF_A_LATE_CLAIM = 2.0
"""Seconds that a claim takes on the server: at most one for somebody's lock, one for the rest."""

_QUESTION_PAUSE = 0.5
"""Seconds until it is asked again what a claim without an answer has done."""

_AFTER_A_LOST_RACE = (0.002, 0.02)
"""Seconds before the next claim when all that was due was taken by others."""

_AHEAD = 0.006
"""Seconds before a row is due at which it is looked for in advance; see `_before`."""

_EARLIER = 1 / 200
"""The part of a longer time that is left: so late may its end come, if the process is nice."""


@dataclass(slots=True)
class _Granted:
    """A lease on which nothing runs yet; see `psched.worker.lease_extender.Lease`."""

    row: Row
    deadlines: Deadlines
    lost: bool = False


@dataclass(slots=True)
class _Unsure:
    """A claim of which nobody knows whether it was applied, or will be.

    When its sender has given up, it may still be on its way, for as long as the driver would have
    waited for it, and then be executed: only then does it tell for good what its owner holds.

    Attributes:
        claim: its owner, and the rows it may have taken.
        sent: when, seconds of the boot-time clock.
        until: ask for the last time at this moment or later, seconds of the monotonic clock.
        next: when to ask again, seconds of the monotonic clock.
    """

    claim: ClaimUnknownError
    sent: float
    until: float
    next: float = 0.0


@dataclass(slots=True)
class Waiting(_Granted):
    """A leased row whose trigger is being asked whether there is something to run.

    Attributes:
        question: what is asked.
    """

    question: Question = field(kw_only=True)


class Claimer:
    """Leases due rows, as many as can be run, and starts their tasks.

    Args:
        store: where the schedules are.
        asker: the pace of requests to it.
        extender: extends leases that are due before their tasks have been started.
        settings: the installation's.
        nonce: drawn for this worker alone; its leases carry it.
        tasks: runs what is leased.
        clock: this host's clocks.
        rng: draws the jitter of polls.

    Attributes:
        triggers: asks triggers of the users' own.
        waiting: leased rows whose triggers are being asked.
        moves: leased rows of which there is nothing to run, and how to settle them.
        returns: leased rows that are to be given back.
        next_poll: when to look again, seconds of the monotonic clock; 0: now.
        stopped: no more claims.
        looked: due rows have been looked for, with success.
    """

    def __init__(
        self,
        store: Store,
        asker: StoreBackoff,
        extender: LeaseExtender,
        settings: Config,
        *,
        nonce: str,
        tasks: TaskTable,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._store = store
        self._asker = asker
        self._extender = extender
        self._settings = settings
        self._nonce = nonce
        self._tasks = tasks
        self._clock = clock
        self._rng = rng
        self._shortest = lease_times.shortest_alive_time(settings.driver_timeout)
        self._claims = 0
        self._unsure: list[_Unsure] = []
        self._backlog = False
        self.triggers = TriggerHelpers(tasks, settings, clock)
        self.waiting: dict[str, Waiting] = {}
        self.moves: dict[str, Settlement] = {}
        self.returns: dict[str, Row] = {}
        self.next_poll = 0.0
        self.stopped = False
        self.looked = False

    @property
    def owes(self) -> bool:
        """Whether there are leases, or perhaps are, on which nothing runs."""
        return bool(self.moves or self.returns or self.waiting or self._unsure)

    @property
    def next(self) -> float:
        """When there is something to ask again, seconds of the monotonic clock."""
        if self.moves or self.returns:
            return 0.0
        moments = [unsure.next for unsure in self._unsure]
        if self._room > 0:
            moments.append(self.next_poll)
        return min(moments, default=inf)

    def claim(self) -> None:
        """Lease and start what is due, if it is time to look.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        if self._unsure:
            self._resolve()
        room = self._room
        if room <= 0 or self._clock.monotonic() < self.next_poll:
            return
        # Before the claim: a lease is not to wait for a fork.
        if not self._prepare(room if self._backlog else 1):
            return
        self._claims += 1
        owner = f"{self._nonce}.{self._claims}"
        sent = asked = 0.0

        def request() -> Claimed:
            # Not before: leases may have been extended first, and that takes its time.
            nonlocal sent, asked
            sent, asked = self._clock.boottime(), self._clock.monotonic()
            return self._store.claim(
                owner,
                # What is claimed beyond the runner that there is would have to be given back.
                limit=1 if self._tasks.no_forks.ongoing else room,
                alive_time=self._settings.alive_time,
                shortest=self._shortest,
                horizon=self._settings.poll_interval,
            )

        try:
            claimed = self._asker.ask(request)
        except ClaimUnknownError as unknown:
            on_its_way = self._settings.driver_timeout + _WAY_OF_A_LATE_CLAIM
            self._unsure.append(_Unsure(unknown, sent, self._clock.monotonic() + on_its_way))
            raise
        self.looked = True
        self._backlog = claimed.more
        answered = self._clock.monotonic()
        # The store has looked at its clock somewhere between the question and the answer.
        looked = answered if claimed.more else (asked + answered) / 2
        self.next_poll = looked + self._pause(claimed)
        if not claimed.rows:
            return
        self._begin(claimed, sent)
        if self._room > 0 and not self._backlog:
            # For the next one: who is due then does not wait for a fork either. Nor do leases.
            self._asker.before()
            self._prepare(1)

    def _prepare(self, count: int) -> bool:
        """Have runners; whether there are any."""
        try:
            self._tasks.prepare(count)
        except OSError:
            # There may be enough for one.
            self._backlog = False
            self.next_poll = self._clock.monotonic() + _FORK_PAUSE
            return False
        return True

    def _resolve(self) -> None:
        """Find out what claims have done whose answers were lost."""
        for unsure in [*self._unsure]:
            mono = self._clock.monotonic()
            if mono < unsure.next:
                continue
            claim = unsure.claim
            rows = self._asker.ask(partial(self._store.held, claim.owner, claim.keys))
            rows = [row for row in rows if not self._knows(row)]
            now = self._asker.ask(self._store.now) if rows else None
            unsure.next = min(mono + _QUESTION_PAUSE, unsure.until)
            if mono >= unsure.until:
                self._unsure.remove(unsure)
            self._begin(Claimed(rows=rows, now=now), unsure.sent)

    def _knows(self, row: Row) -> bool:
        """Whether this lease was found before."""
        slot = self._tasks.slots.get(row.key)
        if waiting := self.waiting.get(row.key):
            return waiting.row.token == row.token
        leased = slot.row if slot else self.returns.get(row.key) or self.moves.get(row.key)
        return leased is not None and leased.token == row.token

    def _begin(self, claimed: Claimed, sent: float) -> None:
        # Before anybody asks how old these leases are.
        self._asker.before()
        granted = self._fresh([self._granted(row, sent) for row in claimed.rows])
        until = (watched := self._clock.monotonic()) + _LONGEST_JUDGEMENT
        for place, lease in enumerate(granted):
            row, mono = lease.row, self._clock.monotonic()
            if mono >= watched + _LONGEST_START:
                # To fork has taken its time. What runs wants to be watched, and extended.
                self._asker.before()
                watched = self._clock.monotonic()
                until += watched - mono
            if mono >= until:
                # Long backlogs take their time.
                self.returns[row.key] = row
                continue
            if row.key in claimed.expired:
                _log.warning("%s: taken over, its last lease ended without a settle", row.key)
            verdict = self.triggers.open(row, claimed.now or 0)
            if isinstance(verdict, Question):
                self.waiting[row.key] = Waiting(row, lease.deadlines, question=verdict)
            elif isinstance(verdict, Run):
                self._start(lease, verdict, following=len(granted) - place - 1)
            else:
                self.moves[row.key] = verdict

    def go_on(self) -> None:
        """See to the rows whose triggers have answered."""
        for key, waiting in [*self.waiting.items()]:
            answer = waiting.question.answer
            if waiting.lost:
                _log.warning("%s: preempted while its trigger was asked", key)
            elif self.stopped:
                self.returns[key] = waiting.row
            elif isinstance(answer, Settlement):
                self.moves[key] = answer
            elif self.triggers.is_stuck(waiting.question):
                # There may be a process for it on another host.
                self.moves[key] = postpone(waiting.row, _FORK_PAUSE)
            elif answer is not None and self._free > 0:
                self._start(waiting, answer, following=0)
            else:
                continue  # it is not known yet, or the next slot that is free is this one's
            self.triggers.drop(waiting.question)
            del self.waiting[key]

    def _granted(self, row: Row, sent: float) -> _Granted:
        lease = lease_times.lease_time(row.alive_time, self._settings.alive_time, self._shortest)
        return _Granted(row, Deadlines(sent, lease, self._settings.driver_timeout))

    def _fresh(self, granted: Sequence[_Granted]) -> Sequence[_Granted]:
        """Those that are still ours; extended first, if their claim took so long that one is due.

        So a slow claim costs one more request, and not its rows.
        """
        # Reported where it is asked; those that could not be extended may be too old then.
        with suppress(StoreUnavailableError):
            self._extender.extend_due(granted)
        for lease in granted:
            if lease.lost:
                _log.warning("%s: preempted before it was started", lease.row.key)
        return [lease for lease in granted if not lease.lost]

    def _start(self, lease: _Granted, run: Run, *, following: int) -> None:
        row, deadlines = lease.row, lease.deadlines
        full = self._free <= 0  # if it was found late
        unwanted = full or self.stopped or row.key in self._tasks.slots
        if unwanted or not self._prepare(1 + following):
            self.returns[row.key] = row
        elif self._clock.boottime() >= deadlines.last_start:
            self._asker.slowness.gave_back(row.key, deadlines.lease)
            self.returns[row.key] = row
        else:
            self._tasks.start(row, run, deadlines)

    @property
    def _room(self) -> int:
        """How many tasks more are wanted; below 0 if some were found late."""
        if self.stopped:
            return 0
        waiting = [
            each for each in self.waiting.values() if self.triggers.is_reserved(each.question)
        ]
        return self._free - len(self.moves) - len(self.returns) - len(waiting)

    @property
    def _free(self) -> int:
        """How many slots have no task."""
        # A trigger that is asked what comes next keeps no other schedule from its slot.
        slots = self._tasks.slots.values()
        over = sum(slot.empty and self.triggers.awaits(slot.row) for slot in slots)
        return self._settings.concurrency - len(slots) + over

    def _pause(self, claimed: Claimed) -> float:
        """Seconds until the next look."""
        if claimed.more:
            # Others were faster: out of their way for a moment.
            return 0.0 if claimed.rows else self._rng.uniform(*_AFTER_A_LOST_RACE)
        # A little less than the interval, never more, so that hosts do not look in step.
        pause = self._settings.poll_interval * self._rng.uniform(0.9, 1.0)
        if claimed.next_due is None or claimed.now is None:
            return pause
        return min(pause, _before(max(claimed.next_due - claimed.now, 0.0)))


def _before(due: float) -> float:
    """In how many seconds to look, if a row is due in so many.

    A little before, and then at the instant: by then this process, its connection and what is at
    the other end of it are awake, and have in their caches what the claim needs. The store's
    clock has just been read, too, and no long sleep is left that might end late.
    """
    return due if due <= 2 * _AHEAD else due - max(_AHEAD, _EARLIER * due)

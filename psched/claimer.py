"""New leases: when to look for due rows, how many to take, and what to do with each."""

import logging
import random
from dataclasses import dataclass
from functools import partial
from math import ceil, inf

from psched import timing
from psched.asking import Asker
from psched.backend import Backend, Claimed, ClaimUnknownError
from psched.called import DEADLINE
from psched.clock import Clock
from psched.config import Config
from psched.model import Row, Settlement
from psched.policy import Run, put_off
from psched.tasks import Tasks
from psched.timing import Deadlines
from psched.trigger import is_called
from psched.trigger_helpers import Question, TriggerHelpers

_log = logging.getLogger("psched.worker")

_LONGEST_JUDGEMENT = 0.5
"""Seconds that the rows of one claim may take; those that are left are given back."""

_FORK_PAUSE = 1.0
"""Seconds before the next claim when the system had no process to give."""

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


@dataclass(slots=True, eq=False)
class Waiting:
    """A leased row whose trigger is being asked whether there is something to run.

    Attributes:
        row: as it was claimed.
        deadlines: of the lease.
        question: what is asked.
        lost: the lease is another worker's, or nobody's.
    """

    row: Row
    deadlines: Deadlines
    question: Question
    lost: bool = False


class Claimer:
    """Leases due rows, as many as can be run, and starts their tasks.

    Args:
        store: where the schedules are.
        asker: the pace of requests to it.
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
        store: Backend,
        asker: Asker,
        settings: Config,
        *,
        nonce: str,
        tasks: Tasks,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._store = store
        self._asker = asker
        self._settings = settings
        self._nonce = nonce
        self._tasks = tasks
        self._clock = clock
        self._rng = rng
        self._shortest = timing.shortest_alive_time(settings.driver_timeout)
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
        request = partial(
            self._store.claim,
            f"{self._nonce}.{self._claims}",
            limit=room,
            alive_time=self._settings.alive_time,
            shortest=self._shortest,
            horizon=self._settings.poll_interval,
        )
        sent, asked = self._clock.boottime(), self._clock.monotonic()
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
            # For the next one: who is due then does not wait for a fork either.
            self._prepare(1)

    def _prepare(self, count: int) -> bool:
        """Have runners; whether there are any."""
        try:
            self._tasks.prepare(count)
        except OSError as error:
            self._cannot_fork(error)
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
        until = self._clock.monotonic() + _LONGEST_JUDGEMENT
        for place, row in enumerate(claimed.rows):
            if self._clock.monotonic() >= until:
                # Long backlogs take their time. What runs meanwhile wants to be watched.
                self.returns[row.key] = row
                continue
            if row.key in claimed.expired:
                _log.warning("%s: taken over, its last lease ended without a settle", row.key)
            verdict = self._opened(row, claimed.now or 0)
            lease = timing.lease_time(row.alive_time, self._settings.alive_time, self._shortest)
            deadlines = Deadlines(sent, lease, self._settings.driver_timeout)
            if isinstance(verdict, Question):
                self.waiting[row.key] = Waiting(row, deadlines, verdict)
            elif isinstance(verdict, Run):
                self._start(row, verdict, deadlines, following=len(claimed.rows) - place - 1)
            else:
                self.moves[row.key] = verdict

    def _opened(self, row: Row, now: float) -> Run | Settlement | Question:
        if row.cron and is_called(row.cron) and self.triggers.is_full(row):
            return put_off(row, ceil(DEADLINE))
        return self.triggers.open(row, now)

    def go_on(self) -> None:
        """See to the rows whose triggers have answered."""
        for key, waiting in [*self.waiting.items()]:
            row, answer = waiting.row, waiting.question.answer
            if waiting.lost:
                _log.warning("%s: preempted while its trigger was asked", key)
            elif self.stopped:
                self.returns[key] = row
            elif isinstance(answer, Settlement):
                self.moves[key] = answer
            elif answer is not None and self._free > 0:
                self._start(row, answer, waiting.deadlines, following=0)
            else:
                continue  # it is not known yet, or the next slot that is free is this one's
            self.triggers.drop(waiting.question)
            del self.waiting[key]

    def _start(self, row: Row, run: Run, deadlines: Deadlines, *, following: int) -> None:
        full = self._free <= 0  # if it was found late
        if full or self.stopped or row.key in self._tasks.slots:
            self.returns[row.key] = row
            return
        if self._prepare(1 + following) and self._clock.boottime() < deadlines.last_start:
            self._tasks.start(row, run, deadlines)
        else:
            self.returns[row.key] = row

    def _cannot_fork(self, error: OSError) -> None:
        _log.error("cannot fork: %s", error)
        # There may be enough for one.
        self._backlog = False
        self.next_poll = self._clock.monotonic() + _FORK_PAUSE

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

"""New leases: when to look for due rows, how many to take, and what to do with each."""

import logging
import random
from functools import partial

from psched import timing
from psched.asking import Asker
from psched.backend import Backend, Claimed, ClaimUnknownError
from psched.clock import Clock
from psched.config import Config
from psched.model import Row, Settlement
from psched.policy import Run, opening
from psched.tasks import Tasks
from psched.timing import Deadlines

_log = logging.getLogger("psched.worker")

_LONGEST_JUDGEMENT = 0.5
"""Seconds that the rows of one claim may take; those that are left are given back."""

_FORK_PAUSE = 1.0
"""Seconds before the next claim when the system had no process to give."""

_AFTER_A_LOST_RACE = (0.002, 0.02)
"""Seconds before the next claim when all that was due was taken by others."""


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
        # Claims, and when they were sent, of which nobody knows yet whether they were applied.
        self._unsure: list[tuple[ClaimUnknownError, float]] = []
        self.moves: dict[str, Settlement] = {}
        self.returns: dict[str, Row] = {}
        self.next_poll = 0.0
        self.stopped = False
        self.looked = False

    @property
    def owes(self) -> bool:
        """Whether there are leases, or perhaps are, on which nothing runs."""
        return bool(self.moves or self.returns or self._unsure)

    @property
    def wants(self) -> bool:
        """Whether there is room for another task."""
        return not self.stopped and self._room > 0

    def claim(self) -> None:
        """Lease and start what is due, if it is time to look.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        self._resolve()
        if not self.wants or self._clock.monotonic() < self.next_poll:
            return
        try:
            # Before the claim: a lease is not to wait for a fork.
            self._tasks.prepare()
        except OSError as error:
            self._cannot_fork(error)
            return
        self._claims += 1
        request = partial(
            self._store.claim,
            f"{self._nonce}.{self._claims}",
            limit=self._room,
            alive_time=self._settings.alive_time,
            shortest=self._shortest,
            horizon=self._settings.poll_interval,
        )
        sent = self._clock.boottime()
        try:
            claimed = self._asker.ask(request)
        except ClaimUnknownError as unknown:
            self._unsure.append((unknown, sent))
            raise
        self.looked = True
        self.next_poll = self._clock.monotonic() + self._pause(claimed)
        self._begin(claimed, sent)

    def _resolve(self) -> None:
        """Find out what claims have done whose answers were lost."""
        while self._unsure:
            unknown, sent = self._unsure[0]
            rows = self._asker.ask(partial(self._store.held, unknown.owner, unknown.keys))
            now = self._asker.ask(self._store.now) if rows else None
            del self._unsure[0]
            self._begin(Claimed(rows=rows, now=now), sent)

    def _begin(self, claimed: Claimed, sent: float) -> None:
        until = self._clock.monotonic() + _LONGEST_JUDGEMENT
        for row in claimed.rows:
            if self._clock.monotonic() >= until:
                # Long backlogs take their time. What runs meanwhile wants to be watched.
                self.returns[row.key] = row
                continue
            if row.key in claimed.expired:
                _log.warning("%s: taken over, its last lease ended without a settle", row.key)
            verdict = opening(row, self._settings, claimed.now or 0)
            if isinstance(verdict, Run):
                self._start(row, verdict, sent)
            else:
                self.moves[row.key] = verdict

    def _start(self, row: Row, run: Run, sent: float) -> None:
        lease = timing.lease_time(row.alive_time, self._settings.alive_time, self._shortest)
        deadlines = Deadlines(sent, lease, self._settings.driver_timeout)
        late = self._clock.boottime() >= deadlines.last_start
        if late or self.stopped or row.key in self._tasks.slots:
            self.returns[row.key] = row
            return
        try:
            self._tasks.start(row, run, deadlines)
        except OSError as error:
            self._cannot_fork(error)
            self.returns[row.key] = row

    def _cannot_fork(self, error: OSError) -> None:
        _log.error("cannot fork: %s", error)
        self.next_poll = self._clock.monotonic() + _FORK_PAUSE

    @property
    def _room(self) -> int:
        held = len(self._tasks) + len(self.moves) + len(self.returns)
        return self._settings.concurrency - held

    def _pause(self, claimed: Claimed) -> float:
        """Seconds until the next look."""
        if claimed.more:
            # Others were faster: out of their way for a moment.
            return 0.0 if claimed.rows else self._rng.uniform(*_AFTER_A_LOST_RACE)
        # A little less than the interval, never more, so that hosts do not look in step.
        pause = self._settings.poll_interval * self._rng.uniform(0.9, 1.0)
        if claimed.next_due is None or claimed.now is None:
            return pause
        return min(pause, max(claimed.next_due - claimed.now, 0.0))

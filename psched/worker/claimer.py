"""Claims due rows: decides when to claim, how many rows to claim, and what to do with each row."""

import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace as changed
from functools import partial
from math import inf

from psched.base import lease_times
from psched.base.clock import Clock
from psched.base.errors import TransientStoreError
from psched.base.lease_times import Deadlines
from psched.config import Config
from psched.core import attempts
from psched.core.definition import history_setting, parse_row
from psched.core.history.counts import CLAIMS
from psched.core.history.recording import Recorder
from psched.core.history.records import Fate
from psched.core.model import Retry, Row, Settlement
from psched.core.operations import pausing
from psched.core.operations.pauses import PauseReader
from psched.core.policy import Run, postpone
from psched.core.store_protocol import Claimed, ClaimUnknownError, Store
from psched.triggers.custom import loading_by, refuse_to_ask
from psched.worker.chores.history_keeper import HistoryKeeper
from psched.worker.claims.extra_runs import ExtraRun, ExtraRuns
from psched.worker.claims.prefetch import Prefetch
from psched.worker.claims.unknown_claims import UnknownClaims
from psched.worker.running_task import Lease, RunningTask
from psched.worker.store_backoff import Slowness
from psched.worker.store_gateway import StoreGateway, debug_requests
from psched.worker.task_table import TaskTable
from psched.worker.trigger_helpers import Question, TriggerHelpers
from psched.worker.unstarted_leases import PrefetchedLease, UnstartedLeases

_LOST_RACE_PAUSE = (0.002, 0.02)
"""The shortest and the longest pause before the next claim, in seconds, if other workers have
claimed all due rows first. The pause is random."""

_AHEAD = 0.006
"""Seconds by which an early claim precedes the time at which a row is due; see `_before`."""

_AHEAD_SHARE = 1 / 200
"""The early claim precedes the time at which a row is due by this fraction of a long sleep, because
in a niced process a sleep can end late by this fraction of its length; see `_before`."""


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


_log = logging.getLogger("psched.worker")

_LONGEST_JUDGEMENT = 0.5
"""Seconds for handling the rows of one claim: deciding what to do with each row, and starting its
task. The rows that are left after this time are given back."""

_LONGEST_UNGUARDED = 0.2
"""While the rows of a claim are handled, the running tasks are guarded (see `TaskGuard`) whenever
this many seconds have passed."""

_LASTING = 0.1
"""Rows are prefetched if more rows than slots have been due for at least this many seconds."""

_FORK_PAUSE = 1
"""If no process could be forked: seconds until the next claim, or until a postponed row is due."""


class Claimer:
    """Leases due rows, no more than this worker can run, and starts their tasks.

    The claimer owns the time of the next claim, and the claims whose outcome is unknown.

    Args:
        store: where the rows are.
        gateway: sends the requests.
        settings: contain the length of leases, and how many tasks can run at the same time.
        nonce: a random text that identifies this worker in its leases.
        tasks: starts and owns the tasks of the rows that can run now.
        unstarted: owns the leases of all other claimed rows: there is nothing to run, a trigger
            must first be called in a helper process, or the row is given back.
        triggers: has triggers that users have written called in helper processes.
        unknown: the claims whose outcome is unknown.
        extra_runs: decides which extra runs can start.
        prefetch: decides how many rows to lease before a slot is free.
        slowness: records leases that were too old when their tasks could be started.
        clock: measures when to claim.
        rng: the source of the random pauses between claims.
        recorder: creates the records of rows for which there is nothing to run.
        history: records the attempts whose leases have ended without a settle.

    Attributes:
        answered: when the store has last answered a claim, in seconds of the monotonic clock; None
            if it has answered none.
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
        unknown: UnknownClaims,
        extra_runs: ExtraRuns,
        prefetch: Prefetch,
        slowness: Slowness,
        clock: Clock,
        rng: random.Random,
        recorder: Recorder,
        history: HistoryKeeper,
    ) -> None:
        self._store = store
        self._gateway = gateway
        self._settings = settings
        self._nonce = nonce
        self._tasks = tasks
        self._unstarted = unstarted
        self._triggers = triggers
        self._unknown = unknown
        self._extra_runs = extra_runs
        self._prefetch = prefetch
        self._slowness = slowness
        self._clock = clock
        self._rng = rng
        self._recorder = recorder
        self._history = history
        self._pauses = PauseReader(store)
        self._shortest = lease_times.shortest_alive_time(settings.driver_timeout)
        self._claims = 0
        self._backlog = False
        self._next_poll = self._backlog_since = 0.0
        self._needed = clock.monotonic()  # when runners were last needed
        self._stopped = False
        self.answered: float | None = None

    def stop(self) -> None:
        """Send no claims from now on."""
        self._stopped = True

    def look(self) -> None:
        """Make the next claim due now, because rows might be due, unless forks fail at present."""
        if not self._tasks.no_forks.ongoing:
            self.poll_now()

    def poll_now(self) -> None:
        """Make the next claim due now; call this if rows might be due or a task has ended."""
        self._next_poll = 0.0

    def ended(self, task: RunningTask) -> None:
        """Note that the lease of a task has ended."""
        self._needed = self._clock.monotonic()
        self._prefetch.ended(task)

    @property
    def gathers_until(self) -> float:
        """Until when requests wait for other tasks to end; see `Prefetch.gathers_until`."""
        return 0.0 if self._stopped else self._prefetch.gathers_until

    @property
    def has_unknown(self) -> bool:
        """Whether there is an unanswered claim whose outcome is still unknown."""
        return bool(self._unknown)

    @property
    def free(self) -> int:
        """How many more rows this worker would claim if they were due; 0 if it claims no more."""
        return 0 if self._tasks.no_fork else max(0, self._room)

    @property
    def is_full(self) -> bool:
        """Whether this worker does not claim rows for the only reason that it has no free slot.

        A slot for which no process can be forked is not free.
        """
        return not self._stopped and self.free == 0

    @property
    def wakes(self) -> float:
        """When to call `claim` again, seconds of the monotonic clock; inf if no call is needed."""
        poll = self._next_poll if self._most_rows > 0 else inf
        return min(self._unknown.wakes, self._prefetch.wakes, poll)

    def claim(self) -> None:
        """Lease due rows and start their tasks, if it is time for a claim."""
        if self._unknown:
            for found, asked_at in self._unknown.resolve():
                self._begin(found, asked_at)
        room, most = self._room, self._most_rows
        if most <= 0 or self._clock.monotonic() < self._next_poll:
            return
        # Runners are forked before the claim, so that no lease grows old during a fork.
        if room > 0 and not self._prepare(room if self._backlog else 1):
            return
        owner = self.new_owner()
        sent = asked = 0.0

        def send() -> Claimed:
            # The clocks are read here and not earlier, because `request` can first extend leases,
            # which takes time.
            nonlocal sent, asked
            sent, asked = self._clock.boottime(), self._clock.monotonic()
            return self._store.claim(
                owner,
                # While forks fail, only one row is claimed, because rows without a runner would
                # have to be given back.
                limit=1 if self._tasks.no_forks.ongoing else most,
                alive_time=self._settings.alive_time,
                shortest=self._shortest,
                horizon=self._settings.poll_interval,
            )

        try:
            claimed = self._ask(send)
        except ClaimUnknownError as error:
            self._unknown.note(error, sent)
            raise
        self.answered = answered = self._clock.monotonic()
        self._note_backlog(more=claimed.more)
        if claimed.now is not None:
            self._recorder.clock.read(claimed.now, sent, self._clock.boottime())
        # It is not known when, between the request and the answer, the store has read its clock for
        # ``claimed.now``. The middle is assumed.
        read = answered if claimed.more else (asked + answered) / 2
        self._next_poll = read + pause_after(claimed, self._settings.poll_interval, self._rng)
        if not claimed.rows:
            if not claimed.more:
                self._tasks.trim(answered - self._needed)
            return
        debug_requests("claimed", [row.key for row in claimed.rows], answered - asked)
        self._begin(claimed, sent)
        self._prepare_next(len(claimed.rows))

    def _note_backlog(self, *, more: bool) -> None:
        """Note whether more rows were due than a claim could lease."""
        if more and not self._backlog:
            self._backlog_since = self._clock.monotonic()
        self._backlog = more

    def _prepare_next(self, started: int) -> None:
        """Have runners forked for the tasks that follow those of a claim."""
        if self._room > 0 and not self._backlog:
            # Fork a runner now, so that the next task does not wait for a fork. Due leases are
            # extended first, because the fork can take long.
            self._gateway.keep_leases()
            self._prepare(1)
        elif (
            self._backlog
            and self._prefetch.tasks_are_short
            and self._settings.max_tasks_per_child == 1
        ):
            # They are forked while these tasks run. Probably as many rows follow.
            self._tasks.order(min(started, self._settings.concurrency))

    def _ask(self, send: Callable[[], Claimed]) -> Claimed:
        """Send a claim, and count what comes of it."""
        counts = self._recorder.counts
        try:
            claimed = self._gateway.request(send)
        except TransientStoreError:
            counts.add(CLAIMS, "failed")
            raise
        counts.add(CLAIMS, "rows" if claimed.rows else "empty")
        return claimed

    def resume(self) -> None:
        """Start, settle or give back each row that need not wait any more."""
        for key, waiting in [*self._unstarted.waiting.items()]:
            answer = waiting.question.answer
            if waiting.lost:
                _log.warning("%s: preempted while its trigger was asked", key)
            elif self._stopped:
                self._unstarted.release(waiting.row)
            elif isinstance(answer, Settlement):
                self.settle(waiting.row, answer)
            elif self._triggers.is_stuck(waiting.question):
                # The row is postponed, because another host might be able to fork a process in
                # which the trigger is called.
                self.settle(waiting.row, postpone(waiting.row, _FORK_PAUSE))
            elif answer is not None and self._prefetch.free_slots > 0:
                self.start(waiting, answer, following=0)
            else:
                continue  # the row keeps waiting: there is no answer, or no room for the task yet
            self._triggers.drop(waiting.question)
            self._unstarted.waited(key)
        if self._unstarted.prefetched:
            self._start_prefetched()

    def _start_prefetched(self) -> None:
        """Start the tasks of prefetched rows, or give back rows that have waited too long."""
        prefetched = [*self._unstarted.prefetched.values()]
        begun = self._clock.monotonic()
        for lease in prefetched:
            now = self._clock.monotonic()
            # Starts can take long, for example if forks hang. Meanwhile no lease is extended.
            in_time = now <= begun + _LONGEST_UNGUARDED
            if lease.lost:
                _log.warning("%s: preempted before it was started", lease.row.key)
            elif not self._stopped and in_time and (free := self._prefetch.free_slots) > 0:
                self.start(lease, lease.run, following=min(free, len(prefetched)) - 1)
            elif self._stopped or not in_time or now >= lease.until:
                self._unstarted.release(lease.row)
                self._prefetch.back_off()
            else:
                continue
            self._unstarted.remove_prefetched(lease.row.key)

    def _prepare(self, count: int) -> bool:
        """Have up to ``count`` runners forked; return whether a runner waits for a task now."""
        try:
            self._tasks.prepare(count)
        except OSError:
            # The next try asks for only one runner, because a single fork might succeed.
            self._backlog = False
            self._next_poll = self._clock.monotonic() + _FORK_PAUSE
            return False
        return True

    def _begin(self, claimed: Claimed, sent: float) -> None:
        """Handle the rows of a claim: decide what to do with each row, and start its task."""
        self._needed = self._clock.monotonic()
        # Older leases that are due are extended first, because this takes time, and the ages of the
        # new leases must be checked after it.
        self._gateway.keep_leases()
        for row in claimed.rows:
            if row.key in claimed.expired:
                _log.warning("%s: taken over, its last lease ended without a settle", row.key)
                self._history.taken_over(row, claimed.expired[row.key])
        granted = self.fresh([self._granted(row, sent) for row in claimed.rows])
        now = claimed.now or 0
        self._read_pauses([lease.row for lease in granted], now)
        until = (guarded := self._clock.monotonic()) + _LONGEST_JUDGEMENT
        extra: list[ExtraRun] = []
        for place, lease in enumerate(granted):
            row, mono = lease.row, self._clock.monotonic()
            if mono >= guarded + _LONGEST_UNGUARDED:
                # Much time can have passed, for example in forks, so the running tasks are guarded
                # and due leases are extended.
                self._gateway.keep_leases()
                guarded = self._clock.monotonic()
                until += guarded - mono
            if mono >= until or self._pauses.is_unsure(row, now):
                # The remaining rows are given back, because it can take long to decide what to do
                # with late occurrences. So is a row that a pause may have held, if the rules could
                # not be read.
                self._unstarted.release(row)
                continue
            verdict = self._triggers.open(row, now, self._pauses.pauses(row, now))
            following = len(granted) - place - 1
            if found := self._handle(lease, verdict, following=following, extra=len(extra)):
                extra.append(found)
        if extra:
            self._extra_runs.begin(extra, now, self)

    def _read_pauses(self, rows: Sequence[Row], now: float) -> None:
        """Read the rules that pause types, if one may have held some of these rows."""
        if self._pauses.is_outdated(rows, now):
            # A failure has been logged. Rows that a rule may have held are given back.
            with suppress(TransientStoreError):
                self._gateway.request(partial(self._pauses.read, now))

    def _handle(
        self, lease: Lease, verdict: Run | Settlement | Question, *, following: int, extra: int
    ) -> ExtraRun | None:
        """Act on the decision about a row; return it if its schedule must be leased, too."""
        row = lease.row
        if isinstance(verdict, Question):
            self._unstarted.wait(row, lease.deadlines, verdict)
        elif not isinstance(verdict, Run):
            self.settle(row, verdict)
        elif (found := self._extra_runs.needing_schedule(lease, verdict)) is None:
            if not self._keeps(lease, verdict):
                self.start(lease, verdict, following=following)
        elif isinstance(found, Settlement):
            self.settle(row, found)
        elif self._stopped or self._free <= extra:
            # It is not prefetched, because another run of its schedule can be going on.
            self._unstarted.release(row)
            self._prefetch.back_off()
        else:
            return found
        return None

    def _keeps(self, lease: Lease, run: Run) -> bool:
        """Keep a prefetched row until a slot is free; return whether it is kept."""
        if self._prefetch.free_slots > 0 or self._prefetch.room <= 0:
            return False
        if attempts.is_exhausted(lease.row, run.definition):
            # If this worker died, the last attempt would count without having been made.
            return False
        until = self._prefetch.until
        self._unstarted.prefetch(PrefetchedLease(lease.row, lease.deadlines, run=run, until=until))
        return True

    def new_owner(self) -> str:
        """A text that this worker has never used as the owner of a lease."""
        self._claims += 1
        return f"{self._nonce}.{self._claims}"

    def settle(self, row: Row, settlement: Settlement) -> None:
        """Have the lease of a row with nothing to run settled."""
        if settlement.fate is Fate.GAVE_UP and row.cron is not None:
            # Its worker has died in the last attempt, which this claim has not counted.
            with loading_by(refuse_to_ask):
                definition = parse_row(row, self._settings)
            earlier = self._history.failures_before(row, definition)
            settlement = pausing.after_failure(
                settlement,
                changed(row, attempt=row.attempt - 1),
                definition,
                Retry(reason=settlement.reason, earlier=earlier),
            )
        history = history_setting(row, self._settings)
        settlement.records = self._recorder.records_of(settlement, row, None, history=history)
        self._recorder.counts.decided(row.type, settlement)
        self._unstarted.settle(settlement)

    def _granted(self, row: Row, sent: float) -> Lease:
        length = lease_times.lease_time(row.alive_time, self._settings.alive_time, self._shortest)
        return Lease(row, Deadlines(sent, length, self._settings.driver_timeout))

    def fresh(self, granted: Sequence[Lease]) -> Sequence[Lease]:
        """Extend new leases if one of them is due; return those that this worker still holds.

        Without this, the leases of a slow claim would be too old for their tasks to be started.
        """
        # A failure has been logged, and is ignored here, because `start` gives back each row whose
        # lease is too old.
        with suppress(TransientStoreError):
            self._gateway.extend_due(granted)
        for lease in granted:
            if lease.lost:
                _log.warning("%s: preempted before it was started", lease.row.key)
        return [lease for lease in granted if not lease.lost]

    def start(self, lease: Lease, run: Run, *, following: int) -> None:
        """Start a task, or give its row back, and release its schedule if it is an extra run."""
        row, deadlines = lease.row, lease.deadlines
        # ``concurrency`` tasks can be running already, because the row might belong to a claim
        # whose answer was lost.
        full = self._prefetch.free_slots <= 0
        known = row.key in self._tasks
        if full:
            self._prefetch.back_off()
        if full or self._stopped or lease.is_lost or known or not self._prepare(1 + following):
            self._unstarted.release(row)
        elif self._clock.boottime() >= deadlines.last_start:
            self._slowness.gave_back(row.key, deadlines.lease)
            self._unstarted.release(row)
        else:
            self._tasks.start(lease, run)
            return
        if lease.hold is not None:
            self._unstarted.end_hold(lease.hold.key, lease.hold.holder)

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
    def _most_rows(self) -> int:
        """How many rows to claim, including those that are prefetched; zero or less if none."""
        # Other workers with free slots get a moment to claim the rows.
        lasts = self._clock.monotonic() >= self._backlog_since + _LASTING
        prefetches = self._backlog and lasts and not self._stopped
        return self._room + (self._prefetch.most if prefetches else 0)

    @property
    def _free(self) -> int:
        """How many more tasks can be started now."""
        # A task that has no process left is not counted as running while its trigger is computing
        # the next run.
        over = sum(task.empty and self._triggers.awaits(task.row) for task in self._tasks)
        return self._settings.concurrency - len(self._tasks) + over

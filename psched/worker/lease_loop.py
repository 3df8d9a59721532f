"""A worker's tick: hear, settle, look, recover, claim. It waits for no task.

Leases are extended whenever one is due, before each of these and before each single request.

A request that fails ends the tick's dealings with the store; the loop comes back before any
deadline (see `psched.base.lease_times`), and asks again after a pause.
"""

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf, isfinite

from psched.base.clock import Clock
from psched.base.errors import StoreBusyError, StoreUnavailableError
from psched.config import Config
from psched.core.model import DELETING, QUARANTINED, Release
from psched.core.settling import Ending, Settler
from psched.core.store_protocol import Settled, Store
from psched.runner.stop_flags import Reason
from psched.worker.claimer import Claimer, Waiting
from psched.worker.janitor import Janitor
from psched.worker.lease_extender import LeaseExtender
from psched.worker.running_task import RunningTask, tell, tell_end
from psched.worker.startup_steps import StartupSteps
from psched.worker.store_backoff import Slowness, StoreBackoff
from psched.worker.task_guard import IMMEDIATE
from psched.worker.task_table import TaskTable

_log = logging.getLogger("psched.worker")


class LeaseLoop:
    """Leases due occurrences and sees each through to its settle.

    Args:
        store: where the schedules are.
        settings: the installation's.
        nonce: drawn for this worker alone; its leases carry it.
        tasks: runs what is leased.
        clock: this host's clocks.
        rng: draws the jitter of polls.
        prepare: see `StartupSteps`.

    Attributes:
        recovered: nonces of dead workers of which nothing is held any more.
    """

    def __init__(
        self,
        store: Store,
        settings: Config,
        *,
        nonce: str,
        tasks: TaskTable,
        clock: Clock,
        rng: random.Random,
        prepare: Callable[[], Iterator[None]] | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._tasks = tasks
        self._clock = clock
        self._asker = StoreBackoff(
            clock=clock,
            rng=rng,
            longest_pause=min(5.0, settings.alive_time / 20),
            before=self._brace,
            slowness=Slowness(settings, clock),
        )
        self._extender = LeaseExtender(
            store,
            self._asker,
            settings,
            clock=clock,
            held=lambda: self._held,
        )
        self._claimer = Claimer(
            store,
            self._asker,
            self._extender,
            settings,
            nonce=nonce,
            tasks=tasks,
            clock=clock,
            rng=rng,
        )
        self._preparation = StartupSteps(prepare, self._asker)
        self._janitor = Janitor(store, self._asker, clock=clock, rng=rng)
        self._triggers = self._claimer.triggers
        self._settler = Settler(settings, clock, self._triggers.conclude, self._asker.ask)
        self._dead: list[str] = []
        self.recovered: list[str] = []
        self._next_look = 0.0
        self._stop_at: float | None = None
        self._hurry = False
        self._quiet = False

    def pause(self) -> None:
        """Claim no more; what runs goes on."""
        self._claimer.stopped = True
        self._quiet = False

    def stop(self, timeout: float | None, *, hurry: bool = False) -> None:
        """Claim no more, and end.

        Args:
            timeout: seconds that running tasks are given; None: as long as they take.
            hurry: when they are taken down, they are not given their time to clean up.
        """
        self.pause()
        self._triggers.dismiss()
        self._tasks.dismiss()
        if timeout is not None:
            at = self._clock.monotonic() + timeout
            self._stop_at = at if self._stop_at is None else min(at, self._stop_at)
            self._hurry = self._hurry or hurry

    def recover(self, nonces: Sequence[str]) -> None:
        """Release what these dead workers still hold."""
        self._dead += nonces
        self._quiet = False

    @property
    def idle(self) -> bool:
        """Whether nothing is held and nothing is owed."""
        return not (self._tasks or self._claimer.owes or self._dead)

    @property
    def asks(self) -> bool:
        """Whether a trigger is being asked what comes after a task that is over."""
        return any(self._triggers.awaits(slot.row) for slot in self._tasks)

    @property
    def looked(self) -> bool:
        """Whether due rows have been looked for, with success."""
        return self._claimer.looked

    @property
    def away(self) -> str | None:
        """Why the store does not answer, if that is so."""
        return self._asker.away

    def tick(self) -> float:
        """Do what is due.

        Returns:
            Seconds until something is due again.
        """
        self._tasks.hear(self)
        self._triggers.hear()
        self._claimer.go_on()
        if self._asker.ready:
            try:
                self._settle()
                self._move()
                self._look()
                # Its first step may create the table, without which no lease can be released.
                self._preparation.go_on()
                self._recover()
                self._claimer.claim()
                self._janitor.sweep()
                self._asker.all_answered()
            except StoreUnavailableError:
                # Reported where it is asked. The store is back when a claim is answered, too.
                self._claimer.next_poll = 0.0
        if self._stop_at is not None and self._clock.monotonic() >= self._stop_at:
            for slot in self._tasks:
                self._tasks.stop(slot, Reason.SHUTDOWN, IMMEDIATE if self._hurry else None)
        guarded = self._tasks.watch()
        self._quiet = guarded == inf and self._has_only_to_look
        wakes = min(guarded, self._wakes(), self._triggers.wakes)
        return max(0.0, wakes - self._clock.monotonic())

    def look(self, now: float) -> float | None:
        """Do the one thing that a worker does all the time that has nothing to do.

        The same as a tick then, but short: a process that wakes once a second finds its caches
        cold, and waits for each line of code that it comes through. To be called after a tick
        since when nobody has said anything, no runner has either, and none has ended.

        Args:
            now: seconds of the monotonic clock.

        Returns:
            Seconds until the next look; None: there is more to do, which is a tick's.
        """
        if not self._quiet or now >= self._janitor.next:
            return None
        try:
            self._claimer.claim()
        except StoreUnavailableError:
            # It is reported where it is asked.
            self._quiet = False
        else:
            self._quiet = self.idle
        return self._claimer.next_poll - self._clock.monotonic() if self._quiet else None

    @property
    def _has_only_to_look(self) -> bool:
        # It has looked: the first time is news to the master, which a tick brings.
        settled = self.looked and not self._asker.away and not self._preparation.pending
        return self.idle and settled and not self._claimer.stopped

    def extend_now(self, slot: RunningTask) -> bool:
        """See `Lessor.extend_now`."""
        self._extender.extend([slot])
        return not slot.lost

    def update_data(self, slot: RunningTask, data: str) -> bool:
        """See `Lessor.update_data`."""
        return self._asker.ask(partial(self._store.update_data, slot.row.key, slot.row.token, data))

    def _brace(self) -> None:
        """Something may hold us up now: stop what must be stopped, extend what is due."""
        self._tasks.brace()
        if self._extender.keep():
            # The kernel's timer is to know of it.
            self._tasks.brace()

    @property
    def _held(self) -> Sequence[RunningTask | Waiting]:
        """The leases that are extended."""
        return [*self._tasks, *self._claimer.waiting.values()]

    def _settle(self) -> None:
        """End the leases whose tasks have ended with all they had started."""
        # First what may change what is known of these leases.
        self._asker.before()
        # Also those that seem to be lost: their end may have been written, and never answered.
        endings = [_ending(slot) for slot in self._tasks if self._is_over(slot)]
        endings += [Ending(row, Release()) for row in self._claimer.returns.values()]
        if not endings:
            return
        try:
            results = self._settler.settle(self._store, endings)
        except StoreBusyError as busy:
            self._close(busy.answered)
            raise
        self._close(results)
        self._claimer.next_poll = 0.0

    def _is_over(self, slot: RunningTask) -> bool:
        """Whether it can be settled; its trigger may still be asked what comes next."""
        return slot.empty and not self._triggers.awaits(slot.row)

    def _close(self, results: Mapping[str, Settled]) -> None:
        """These leases have ended, or are another's."""
        for key, result in results.items():
            if self._claimer.returns.pop(key, None) is not None:
                continue
            slot = self._tasks.slots.pop(key)
            self._triggers.forget(slot.row)
            unsure = self._settler.forget(_ending(slot))
            # A row that is gone counts as removed by us, unless its lease was lost before.
            if result is Settled.DONE and (unsure or not slot.lost):
                tell_end(slot)
            elif unsure:
                text = "its end was not answered, and by now its lease is over or another's"
                text += ": nobody knows whether what it did counts"
                tell(slot, text, level=logging.ERROR)
            else:
                tell(slot, "preempted: what it did counts for nothing", level=logging.ERROR)

    def _move(self) -> None:
        """Settle the rows of which there is nothing to run."""
        moves = self._claimer.moves
        if not moves:
            return
        results = self._asker.ask(partial(self._store.settle, [*moves.values()]))
        for key, result in results.items():
            move = moves[key]
            if result is Settled.DONE and move.reason:
                aside = "quarantined: " if move.status == QUARANTINED else ""
                _log.warning("%s: %s%s", key, aside, move.reason)
            elif result is Settled.REDEFINED:
                # Judged by a definition that has changed: whoever claims it next judges again.
                row = self._asker.ask(partial(self._store.get, key))
                if row is not None and row.token == move.token:
                    self._claimer.returns[key] = row
            del moves[key]
        self._claimer.next_poll = 0.0

    def _look(self) -> None:
        """See whether a schedule was deleted or cancelled while its task runs."""
        mono = self._clock.monotonic()
        if not self._tasks or mono < self._next_look:
            return
        marked = self._asker.ask(partial(self._store.marked, [*self._tasks.slots]))
        for key, mark in marked.items():
            reason = Reason.DELETED if mark == DELETING else Reason.CANCELLED
            self._tasks.stop(self._tasks.slots[key], reason)
        self._next_look = mono + self._settings.poll_interval

    def _recover(self) -> None:
        """Release what dead workers hold."""
        while self._dead:
            request = partial(
                self._store.recover,
                self._dead[0],
                alive_time=self._settings.alive_time,
                retry_wait=self._settings.retry_wait,
            )
            for key in self._asker.ask(request):
                _log.warning("%s: released, its worker has died", key)
            self.recovered.append(self._dead.pop(0))
            self._claimer.next_poll = 0.0

    def _wakes(self) -> float:
        """When the store is to be asked again, seconds of the monotonic clock."""
        mono, boot = self._clock.monotonic(), self._clock.boottime()
        moments = [mono + slot.deadlines.extend - boot for slot in self._held if not slot.lost]
        if self._tasks:
            moments.append(self._next_look)
        if isfinite(self._claimer.next):
            moments.append(self._claimer.next)
        if self._dead or self._preparation.pending or any(map(self._is_over, self._tasks)):
            moments.append(mono)
        wakes = max(min(moments, default=mono + 1), self._asker.not_before)
        if self._stop_at is not None and self._stop_at > mono:
            wakes = min(wakes, self._stop_at)
        return wakes


def _ending(slot: RunningTask) -> Ending:
    return Ending(slot.row, slot.conclusion, 0.0 if slot.lost else slot.deadlines.end)

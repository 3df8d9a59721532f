"""A worker: the process that leases rows and watches over the tasks it runs on them."""

import gc
import logging
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from psched.base.clock import Clock
from psched.base.errors import StoreError
from psched.base.log import Log, log_uncaught
from psched.base.texts import brief
from psched.config import Config
from psched.core.store_protocol import Store
from psched.master.generation_spec import BAD_HANDLERS, DRAINED, Place
from psched.process import kernel
from psched.process.deadman import DeadMan
from psched.process.link import Link
from psched.process.message_shapes import FROM_MASTER
from psched.process.signals import SIGNALS, SignalInbox
from psched.process.titles import set_title
from psched.runner.forking_pool import RunnerPool
from psched.runner.stop_flags import Reason
from psched.worker.lease_loop import LeaseLoop
from psched.worker.recycling import Recycling
from psched.worker.running_task import account
from psched.worker.task_guard import TaskGuard
from psched.worker.task_table import TaskTable

_log = logging.getLogger("psched.worker")

LEFT_BEHIND = 69
"""Exit status: the store was away, leases are left to run out (sysexits.h: EX_UNAVAILABLE)."""

_BEAT = 1.0
"""Seconds between two signs of life to the master at most, while there is something to tell."""

_LONGEST_SILENCE = 10.0
"""Seconds between two of them while there is not."""

_PATIENCE = 10.0
"""Seconds that a leaving worker, its tasks gone, goes on trying to settle them."""


class Worker:
    """One worker's life, from the moment when its handlers are loaded.

    Args:
        link: to the master.
        place: where it stands.
        settings: the installation's.
        runners: where tasks run.
        store: where the schedules are.
        inbox: this process's signals.
        log: this process's log.
        clock: this host's clocks.
        prepare: what is to be done in the store first, in steps beside everything else.
    """

    def __init__(
        self,
        link: Link,
        place: Place,
        *,
        settings: Config,
        runners: RunnerPool,
        store: Store,
        inbox: SignalInbox,
        log: Log,
        clock: Clock,
        prepare: Callable[[], Iterator[None]] | None = None,
    ) -> None:
        self._link = link
        link.expects = FROM_MASTER
        self._place = place
        self._store = store
        self._inbox = inbox
        self._log = log
        self._clock = clock
        self._leaving = False
        self._give_up_at = 0.0
        self._orphaned = False
        self._looked = False
        self._next_beat = 0.0
        self._beaten = 0.0
        self._told: Mapping[str, Any] = {}
        # It may be held up for two driver timeouts, and must not seem to hang.
        spare = settings.child_heartbeat_limit - 2 * settings.driver_timeout
        self._silence = min(_LONGEST_SILENCE, max(_BEAT, spare / 4))
        self._rng = random.Random()  # noqa: S311  # jitter; made after the fork, so it is its own
        self._enough = Recycling(settings, self._rng, clock.monotonic())

        # Nobody is to inherit a connection. Of SQLite a child would inherit the list of open files
        # and locks, but not the locks, and would believe that it holds them:
        # https://sqlite.org/howtocorrupt.html#_carrying_an_open_database_connection_across_a_fork
        runners.quiet = store.disconnect
        guard = TaskGuard(settings, runners=runners, clock=clock, deadman=DeadMan(place.deadline))
        self._tasks = TaskTable(runners, guard, clock)
        self._leaser = LeaseLoop(
            store,
            settings,
            nonce=place.nonce,
            tasks=self._tasks,
            clock=clock,
            rng=self._rng,
            prepare=prepare,
        )

    def run(self, reported: Mapping[str, Any] | None = None) -> int:
        """Work until told to go.

        Args:
            reported: settings that only this process could read, for the master.

        Returns:
            The exit status.
        """
        # What is here now stays, and need not be searched for garbage again and again.
        gc.freeze()
        try:
            self._tasks.prepare()
        except RuntimeError as error:
            _log.error("%s", error)
            return BAD_HANDLERS
        except OSError:
            pass  # it has been logged, and is tried again before each claim
        self._link.send({"ready": reported})
        if not self._admitted():
            return DRAINED
        # Other messages may have come with that one: nothing wakes us for them any more.
        self._attend()
        while (status := self._turn()) is None:
            pass
        self._store.disconnect()
        return status

    def _admitted(self) -> bool:
        """Wait for the master's leave to begin.

        It may have to refuse what was reported; and what it has said meanwhile, such as that
        there is a newer generation by now, is to be obeyed before the first claim.
        """
        while (message := self._link.wait()) is not None:
            if "go" in message:
                return bool(message["go"])
            self._obey(message)
        return False

    def _turn(self) -> int | None:
        """One turn of the loop; the exit status at its end."""
        timeout = self._leaser.tick()
        now = self._clock.monotonic()
        self._report(now)
        if self._leaving:
            if self._leaser.idle:
                return DRAINED
            if self._tasks.running or self._leaser.asks:
                self._give_up_at = now + _PATIENCE
            elif now >= self._give_up_at:
                _log.error("going without having settled everything: the store is away")
                return LEFT_BEHIND
        if self._rest(now, timeout):
            self._attend()
        return None

    def _attend(self) -> None:
        """See what has happened."""
        arrived = self._inbox.take()
        if signal.SIGUSR2 in arrived:
            self._log.reopen()
        if not arrived.isdisjoint((signal.SIGTERM, signal.SIGQUIT)):
            self._leave(None)
        self._link.flush()
        # Until there is none: its end is seen then.
        while messages := self._link.receive():
            for message in messages:
                self._obey(message)
        if self._link.closed and not self._orphaned:
            self._orphaned = True
            fault = self._link.fault
            how = "has died" if fault is None else f"has sent {fault}"
            _log.error("the master %s: killing all tasks, releasing their leases", how)
            self._leave(0)
            for slot in self._tasks:
                self._tasks.stop(slot, Reason.SHUTDOWN, 0)

    def _rest(self, now: float, timeout: float) -> bool:
        """Sleep until something happens or is due, and look for due rows meanwhile.

        A worker with nothing to do comes hardly further than this; see `LeaseLoop.look`.

        Returns:
            Whether something has happened.
        """
        # A runner that is forked for a look has nothing to say before it is given a task.
        self._inbox.watch([self._link, *self._tasks.links])
        while not self._inbox.sleep(min(timeout, self._next_beat - now)):
            now = self._clock.monotonic()
            looked = self._leaser.look(now) if now < self._next_beat else None
            if looked is None:
                return False
            timeout = looked
        return True

    def _obey(self, message: Mapping[str, Any]) -> None:
        if "stop" in message:
            self._leave(message["stop"], hurry=message["hurry"])
        if "recover" in message:
            self._leaser.recover(message["recover"])
        if "pause" in message:
            self._leaser.pause()
        if "reopen" in message:
            self._log.reopen()
        if "report" in message:
            self._link.send({"report": self._account()})

    def _leave(self, timeout: float | None, *, hurry: bool = False) -> None:
        if not self._leaving:
            self._leaving = True
            self._next_beat = 0.0
            self._give_up_at = self._clock.monotonic() + _PATIENCE
        self._leaser.stop(timeout, hurry=hurry)

    def _report(self, now: float) -> None:
        if self._leaser.recovered:
            self._link.send({"recovered": self._leaser.recovered})
            self._leaser.recovered = []
        if self._leaser.looked and not self._looked:
            self._looked = True
            self._link.send({"looked": True})
        if self._enough.reached(self._tasks.started - len(self._tasks), now):
            self._next_beat = now
        tasks, enough = len(self._tasks), self._enough.why
        away = None if self._leaser.away is None else brief(self._leaser.away)
        news = {"tasks": tasks, "away": away, "enough": enough}
        if news != self._told or (enough and not self._leaving):
            self._next_beat = min(self._next_beat, self._beaten + _BEAT)
        if now >= self._next_beat:
            self._beaten, self._next_beat, self._told = now, now + self._silence, news
            self._link.send(news)
            leaving = ", leaving" if self._leaving else ""
            set_title(f"{self._place}: {tasks} tasks{leaving}")

    def _account(self) -> dict[str, Any]:
        """What runs here, for ``psched status``."""
        mono, boot = self._clock.monotonic(), self._clock.boottime()
        tasks = [account(slot, mono, boot) for slot in self._tasks]
        return {"tasks": tasks, "errors": [*self._log.recent]}


def prepare_process(log: Log, place: Place) -> SignalInbox:
    """Make a freshly forked process a worker: its log, its title, its signals."""
    log.process = place.name
    log.recent.clear()
    log_uncaught()
    with suppress(AttributeError, ValueError):
        # What handlers print is to be seen when it happens; set here, it is for all runners.
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    set_title(f"{place}: starting")
    # A worker that hangs is sent ABRT first, and says where it hangs.
    log.dump_crashes()
    kernel.handle_signals_on_the_stack()
    # Orders come over the link from the master; of the signals only TERM and QUIT (both: finish
    # and go) and USR2 (reopen the log) mean something here. The others are what a terminal or a
    # careless pkill sends to everybody.
    return SignalInbox(SIGNALS)


def clean_up(store: Store, settings: Config, nonces: Sequence[str]) -> int:
    """Release what dead workers still hold; the life of a process that is forked for that."""
    wait = settings.retry_wait
    try:
        for nonce in nonces:
            for key in store.recover(nonce, alive_time=settings.alive_time, retry_wait=wait):
                _log.warning("%s: released, its worker has died", key)
    except StoreError as error:
        _log.error("leases of dead workers are left to run out: %s", error)
        return LEFT_BEHIND
    store.disconnect()
    return DRAINED

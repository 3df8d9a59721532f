"""A worker: the process that leases rows, and starts and watches their tasks."""

import gc
import logging
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from psched.base.clock import Clock
from psched.base.errors import StoreError
from psched.base.log import Log, log_uncaught
from psched.base.texts import brief
from psched.config import Config
from psched.core.store_protocol import Store
from psched.master.generation_spec import BAD_HANDLERS, DRAINED, WorkerIdentity
from psched.master.messages import FROM_MASTER
from psched.process import kernel
from psched.process.link import Link
from psched.process.signals import SIGNALS, SignalInbox, Waitable
from psched.process.titles import set_title
from psched.runner.stop_flags import Reason
from psched.worker.lease_loop import LeaseLoop
from psched.worker.recycling import Recycling
from psched.worker.task_table import TaskTable

_log = logging.getLogger("psched.worker")

LEFT_BEHIND = 69
"""Exit status: the store did not answer, so leases are left to expire (sysexits.h:
EX_UNAVAILABLE)."""

_HEARTBEAT = 1.0
"""The least seconds between two heartbeats to the master, if their content has changed."""

_LONGEST_SILENCE = 10.0
"""The most seconds between two heartbeats to the master, if their content has not changed."""

_LONGEST_SETTLING = 10.0
"""Seconds after the end of its last task for which a stopping worker tries to settle leases."""


class Inbox(Protocol):
    """Where a worker's signals arrive; see `psched.process.signals.SignalInbox`."""

    def take(self) -> Collection[int]:
        """Return the signals that have arrived since the last call."""
        ...

    def watch(self, links: Iterable[Waitable]) -> None:
        """Have the next sleep end when one of these links is ready."""
        ...

    def sleep(self, timeout: float) -> bool:
        """Sleep until a signal arrives, a watched link is ready, or ``timeout`` seconds pass."""
        ...


class Worker:
    """One worker's life after its handlers have been loaded.

    `psched.worker.composition.make_worker` creates a worker with its parts.

    Args:
        link: the connection to the master.
        place: the worker's number, generation and nonce.
        settings: tell how long the worker may go without a heartbeat.
        store: the store that is disconnected when the worker ends.
        tasks: owns the running tasks.
        lease_loop: owns the leases.
        recycling: tells when the worker is to be replaced.
        inbox: where the signals to this process arrive.
        log: the log of this process.
        clock: tells when a heartbeat is due.
        show_title: shows in the list of processes what the worker does.

    Attributes:
        exit_status: the worker's exit status; None while the worker is to continue.
    """

    def __init__(
        self,
        link: Link,
        place: WorkerIdentity,
        settings: Config,
        *,
        store: Store,
        tasks: TaskTable,
        lease_loop: LeaseLoop,
        recycling: Recycling,
        inbox: Inbox,
        log: Log,
        clock: Clock,
        show_title: Callable[[str], object],
    ) -> None:
        self.exit_status: int | None = None
        self._link = link
        link.expects = FROM_MASTER
        self._place = place
        self._store = store
        self._tasks = tasks
        self._lease_loop = lease_loop
        self._recycling = recycling
        self._inbox = inbox
        self._log = log
        self._clock = clock
        self._show_title = show_title
        self._admitted = False
        self._stopping = False
        self._give_up_at = 0.0
        self._orphaned = False
        self._told_poll = False
        self._next_heartbeat = 0.0
        self._last_heartbeat = 0.0
        self._last_news: Mapping[str, Any] = {}
        # Heartbeats are sent so often that the worker does not seem to hang, even if a request
        # blocks it for two driver timeouts.
        spare = settings.child_heartbeat_limit - 2 * settings.driver_timeout
        self._silence = min(_LONGEST_SILENCE, max(_HEARTBEAT, spare / 4))

    def run(self, reported: Mapping[str, Any] | None = None) -> int:
        """Work until the exit status is set.

        Args:
            reported: settings for the master, which only this process could read; None if there
                are none.

        Returns:
            The exit status.
        """
        # Garbage collection skips the objects that exist now, because they live until the end.
        gc.freeze()
        self.begin(reported)
        while self.exit_status is None:
            timeout = self.tick()
            if self.exit_status is None:
                # Runners are not watched before the admission, because `tick` does not read their
                # messages until then.
                runners = self._tasks.links if self._admitted else ()
                self._inbox.watch([self._link, *runners])
                self._inbox.sleep(timeout)
        self._store.disconnect()
        return self.exit_status

    def begin(self, reported: Mapping[str, Any] | None = None) -> None:
        """Prepare a first runner, and tell the master that this worker is ready; see `run`."""
        try:
            self._tasks.prepare()
        except RuntimeError as error:
            _log.error("%s", error)
            self.exit_status = BAD_HANDLERS
            return
        except OSError:
            pass  # the failure has been logged, and `prepare` is called again before each claim
        self._link.send({"ready": reported})

    def tick(self) -> float:
        """Obey the signals and orders that have arrived, and do everything that is due.

        Returns:
            Seconds until the next tick, unless `exit_status` has been set.
        """
        self._receive()
        if not self._admitted or self.exit_status is not None:
            # No claim precedes the master's admission, because the master may refuse the reported
            # settings, or may order this worker to stop.
            return _LONGEST_SILENCE
        timeout = self._lease_loop.tick()
        now = self._clock.monotonic()
        self._report(now)
        if self._stopping:
            self._see_whether_it_is_done(now)
        return max(0.0, min(timeout, self._next_heartbeat - now))

    def _receive(self) -> None:
        """Receive signals and the master's orders, and obey them."""
        arrived = self._inbox.take()
        if signal.SIGUSR2 in arrived:
            self._log.reopen()
        if signal.SIGTERM in arrived or signal.SIGQUIT in arrived:
            self._stop(None)
        self._link.flush()
        # All messages are read, because the end of the stream is only seen after the last one.
        while messages := self._link.receive():
            for message in messages:
                self._obey(message)
        if self._link.closed and not self._orphaned:
            self._orphaned = True
            self._kill_all()

    def _kill_all(self) -> None:
        """Kill the tasks at once, then exit, because the master has died or sent invalid data."""
        if not self._admitted:
            self.exit_status = DRAINED
            return
        fault = self._link.fault
        how = "has died" if fault is None else f"has sent {fault}"
        _log.error("the master %s: killing all tasks, releasing their leases", how)
        self._stop(0)
        self._tasks.stop_all(Reason.SHUTDOWN, 0)

    def _obey(self, message: Mapping[str, Any]) -> None:
        if "go" in message:
            if message["go"]:
                self._admitted = True
            else:
                self.exit_status = DRAINED
        if "stop" in message:
            self._stop(message["stop"], hurry=message["hurry"])
        if "recover" in message:
            self._lease_loop.recover(message["recover"])
        if "pause" in message:
            self._lease_loop.pause()
        if "reopen" in message:
            self._log.reopen()
        if "report" in message:
            self._link.send({"report": self._status()})

    def _stop(self, timeout: float | None, *, hurry: bool = False) -> None:
        if not self._stopping:
            self._stopping = True
            self._next_heartbeat = 0.0
            self._give_up_at = self._clock.monotonic() + _LONGEST_SETTLING
        self._lease_loop.stop(timeout, hurry=hurry)

    def _see_whether_it_is_done(self, now: float) -> None:
        """Set the exit status if no lease is left, or the store has not answered for too long."""
        if self._lease_loop.idle:
            self.exit_status = DRAINED
        elif self._tasks.alive or self._lease_loop.asks:
            self._give_up_at = now + _LONGEST_SETTLING
        elif now >= self._give_up_at:
            _log.error("exiting with leases that are not settled: the store is away")
            self.exit_status = LEFT_BEHIND

    def _report(self, now: float) -> None:
        """Report changes to the master, and send a heartbeat if one is due."""
        if recovered := self._lease_loop.pop_recovered():
            self._link.send({"recovered": recovered})
        if self._lease_loop.has_polled and not self._told_poll:
            self._told_poll = True
            self._link.send({"looked": True})
        if self._recycling.reached(self._tasks.started - len(self._tasks), now):
            self._next_heartbeat = now
        tasks, why = len(self._tasks), self._recycling.why
        away = None if self._lease_loop.away is None else brief(self._lease_loop.away)
        news = {"tasks": tasks, "away": away, "enough": why}
        if news != self._last_news or (why and not self._stopping):
            self._next_heartbeat = min(self._next_heartbeat, self._last_heartbeat + _HEARTBEAT)
        if now >= self._next_heartbeat:
            self._last_heartbeat, self._next_heartbeat = now, now + self._silence
            self._last_news = news
            self._link.send(news)
            stopping = ", leaving" if self._stopping else ""
            self._show_title(f"{self._place}: {tasks} tasks{stopping}")

    def _status(self) -> dict[str, Any]:
        """This worker's tasks and recent errors, for ``psched status``."""
        mono, boot = self._clock.monotonic(), self._clock.boottime()
        tasks = [task.report(mono, boot) for task in self._tasks]
        return {"tasks": tasks, "errors": [*self._log.recent]}


def prepare_process(log: Log, place: WorkerIdentity) -> SignalInbox:
    """Set up the log, the title and the signals of a new worker process; return its inbox."""
    log.process = place.name
    log.recent.clear()
    log_uncaught()
    with suppress(AttributeError, ValueError):
        # Output is written after each line, so that handlers' output is seen at once. The runners
        # inherit this setting.
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    set_title(f"{place}: starting")
    # The master sends ABRT first to a worker that hangs. This makes ABRT log where it hangs.
    log.dump_crashes()
    kernel.handle_signals_on_the_stack()
    # Orders arrive over the link from the master. A worker obeys only three signals: TERM and QUIT
    # (finish the tasks and exit), and USR2 (reopen the log). It receives the other signals to
    # ignore them, because a terminal or pkill may send them to every process.
    return SignalInbox(SIGNALS)


def clean_up(store: Store, settings: Config, nonces: Sequence[str]) -> int:
    """Release the leases of dead workers: the only work of a cleaner process.

    Returns:
        The exit status.
    """
    wait = settings.retry_wait
    try:
        for nonce in nonces:
            for key in store.recover(nonce, alive_time=settings.alive_time, retry_wait=wait):
                _log.warning("%s: released, its worker has died", key)
    except StoreError as error:
        _log.error("leases of dead workers are left to expire: %s", error)
        return LEFT_BEHIND
    store.disconnect()
    return DRAINED

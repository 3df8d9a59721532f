"""A worker: the process that leases rows, and starts and watches their tasks."""

import gc
import logging
import random
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from psched.base.errors import StoreError
from psched.base.log import Log
from psched.config import Config
from psched.core.store_protocol import Store
from psched.master.generation_spec import BAD_HANDLERS, DRAINED, WorkerIdentity
from psched.master.messages import FROM_MASTER
from psched.process.kernel import set_title
from psched.process.signals import SignalInbox, Waitable
from psched.process.spawn import run_users_code
from psched.runner.shared_memory import Reason
from psched.worker.context import Context
from psched.worker.lease_loop import LeaseLoop
from psched.worker.task_table import TaskTable

_JITTER = 0.1
"""Each worker's limits are raised or lowered at random by up to this fraction, so that the workers
are not all replaced at the same time."""


class Recycling:
    """One worker's limits, after which it is replaced: ``worker_max_tasks``, ``worker_max_age``.

    Attributes:
        why: why the worker is to be replaced, as a phrase for the log; empty while no limit has
            been reached.
    """

    def __init__(self, settings: Config, rng: random.Random, now: float) -> None:
        tasks, age = settings.worker_max_tasks, settings.worker_max_age
        factor = rng.uniform(1 - _JITTER, 1 + _JITTER)
        self._tasks = max(1, round(tasks * factor)) if tasks else None
        self._until = now + age * factor if age else None
        self.why = ""

    def reached(self, tasks: int, now: float) -> bool:
        """Whether a limit has been reached after so many tasks; later calls return False."""
        if self.why:
            return False
        if self._tasks is not None and tasks >= self._tasks:
            self.why = f"has run {tasks} tasks"
        elif self._until is not None and now >= self._until:
            self.why = "has reached worker_max_age"
        return bool(self.why)


_log = logging.getLogger("psched.worker")

LEFT_BEHIND = 69
"""Exit status: some leases could not be ended, because the store did not answer; other workers can
claim their rows when the leases have expired (sysexits.h: EX_UNAVAILABLE)."""

_HEARTBEAT = 1.0
"""A heartbeat with new content is sent at least this many seconds after the last heartbeat."""

_LONGEST_SILENCE = 10.0
"""A heartbeat without new content is sent at most this many seconds after the last heartbeat."""

_LONGEST_SETTLING = 10.0
"""Seconds for which a stopping worker still tries to settle leases, after its tasks have ended."""


class Inbox(Protocol):
    """Receives the signals to a worker; see `psched.process.signals.SignalInbox`."""

    def take(self) -> Collection[int]:
        """Return the signals that have arrived since the last call."""
        ...

    def watch(self, links: Iterable[Waitable]) -> None:
        """Make the next `sleep` end early if one of these links is ready."""
        ...

    def sleep(self, timeout: float) -> bool:
        """Sleep until a signal arrives or a watched link is ready; False: the time is over."""
        ...


class Worker:
    """The main loop of a worker process, after the handlers have been loaded.

    Attributes:
        exit_status: the worker's exit status; None while the worker is to continue.
    """

    def __init__(
        self,
        context: Context,
        *,
        inbox: Inbox,
        log: Log,
        show_title: Callable[[str], object] = set_title,
    ) -> None:
        settings = context.settings
        self.exit_status: int | None = None
        self._link = context.link
        self._link.expects = FROM_MASTER
        self._title = str(context.place)
        self._store = context.store
        self._pool = context.pool
        self._tasks = TaskTable(context, flush_log=log.flush)
        self._lease_loop = LeaseLoop(context, self._tasks)
        self._clock = context.clock
        self._recycling = Recycling(settings, context.rng, self._clock.monotonic())
        self._inbox = inbox
        self._log = log
        self._show_title = show_title
        self._counts = context.recorder.counts if settings.metrics else None
        self._admitted = False
        self._stopping = False
        self._give_up_at = 0.0
        self._orphaned = False
        self._told_poll = False
        self._has_to_look = False
        self._next_heartbeat = 0.0
        self._last_heartbeat = 0.0
        self._last_news: Mapping[str, Any] = {}
        # A request can block the worker for two driver timeouts. Heartbeats are sent so often that
        # the master does not take a worker that is blocked for so long for a worker that hangs.
        spare = settings.child_heartbeat_limit - 2 * settings.driver_timeout
        self._silence = min(_LONGEST_SILENCE, max(_HEARTBEAT, spare / 4))

    def run(self, reported: Mapping[str, Any] | None = None) -> int:
        """Work until the exit status is set; return the exit status."""
        # Garbage collection skips the objects that exist now, because they live as long as this
        # process.
        gc.freeze()
        self.begin(reported)
        with self._log.gathering():
            while self.exit_status is None:
                timeout = self.tick()
                if self.exit_status is None:
                    # Runners are not watched before the master has admitted this worker. Until then
                    # `tick` reads no message of theirs, so one would end every sleep at once.
                    runners = self._tasks.links if self._admitted else ()
                    self._inbox.watch([self._link, *runners])
                    self._log.flush()
                    self._inbox.sleep(timeout)
        if counted := self._counted():
            self._link.send(counted)
        self._store.disconnect()
        self._tasks.close()
        return self.exit_status

    def begin(self, reported: Mapping[str, Any] | None = None) -> None:
        """Prepare a first runner, and tell the master that this worker is ready.

        If this process has a second thread, it cannot fork; then set the exit status instead. `run`
        describes the argument.
        """
        try:
            self._tasks.prepare()
        except RuntimeError as error:
            _log.error("%s", error)
            self.exit_status = BAD_HANDLERS
            return
        except OSError:
            # Ignored, because the failure has been logged, and each claim calls `prepare` again.
            pass
        self._link.send({"ready": reported})

    def tick(self) -> float:
        """Obey the signals and orders that have arrived, and do everything that is due.

        Return the seconds until the next tick, unless `exit_status` has been set.
        """
        self._receive()
        if not self._admitted or self.exit_status is not None:
            # Nothing is claimed until the master admits this worker, because the master can still
            # refuse the reported settings, or order this worker to exit.
            return _LONGEST_SILENCE
        looks, self._has_to_look = self._has_to_look, False
        if looks:
            self._lease_loop.look()
        timeout = self._lease_loop.tick()
        if looks and self._lease_loop.is_full:
            self._link.send({"full": True})  # there may be more due rows, so another is to look
        if self._lease_loop.execution.given_back:
            self._lease_loop.execution.given_back = False
            self._link.send({"gave_back": True})
        now = self._clock.monotonic()
        self._report(now)
        if self._tasks.reporter is not None and self._tasks.reporter.has_news:
            self._tasks.reporter.flush()
        if self._tasks.is_read:
            self._relay_output()
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
        # The loop reads all messages, because `closed` is set only after the last message.
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
        self._has_to_look |= "look" in message
        if "reopen" in message:
            self._log.reopen()
        if "report" in message:
            self._link.send({"report": self._status(), "claim_age": self._lease_loop.claim_age})
        if "follow" in message:
            self._follow(message["follow"], message["reader"])
        if "unfollow" in message:
            self._tasks.unfollow(message["unfollow"])

    def _follow(self, key: str, reader: int) -> None:
        """Begin to send the output of a running task to a reader, if this worker runs it."""
        task = self._tasks.follow(key, reader)
        if task is None:
            self._link.send({"absent": reader})
            return
        self._link.send(
            {
                "follows": reader,
                "scheduled_time": task.occurrence.scheduled_time,
                "attempt": task.row.attempt,
                "owner": task.row.owner or "",
                "collected": task.is_collected,
            }
        )

    def _relay_output(self) -> None:
        """Send the master what tasks have printed, for readers who have asked for it."""
        live, ended = self._tasks.live_output()
        for reader, output, dropped, waiting in live:
            if output:
                fields = {"output": reader, "dropped": dropped, "waiting": waiting}
                self._link.send(fields, output)
            else:
                self._link.send({"nothing": reader})
        for reader in ended:
            self._link.send({"ended": reader})
        if not self._link.unsent:
            # Otherwise the master reads slowly. The collector then sends no more, so that nothing
            # accumulates here.
            self._tasks.go_on()

    def _stop(self, timeout: float | None, *, hurry: bool = False) -> None:
        if not self._stopping:
            self._stopping = True
            self._next_heartbeat = 0.0
            self._give_up_at = self._clock.monotonic() + _LONGEST_SETTLING
        self._lease_loop.stop(timeout, hurry=hurry)

    def _see_whether_it_is_done(self, now: float) -> None:
        """Set the exit status if no lease is left, or the store has not answered for too long."""
        # The exit functions of runners need time. Runners limit it themselves.
        if self._lease_loop.idle and (now >= self._give_up_at or not self._pool.dismiss()):
            self._lease_loop.leave()
            self.exit_status = DRAINED
        elif self._tasks.alive or self._lease_loop.asks:
            self._give_up_at = now + _LONGEST_SETTLING
        elif now >= self._give_up_at:
            _log.error("exiting with leases that are not settled: the store is away")
            self.exit_status = LEFT_BEHIND

    def _report(self, now: float) -> None:
        """Report changes to the master, and send a heartbeat if one is due."""
        if self._lease_loop.recovered:
            self._link.send({"recovered": self._lease_loop.recovered})
            self._lease_loop.recovered = []
        tasks = len(self._tasks.running)
        if self._recycling.reached(self._tasks.started - tasks, now):
            self._next_heartbeat = now
        why = self._recycling.why
        news = {**self._lease_loop.news(), "enough": why}
        is_new = news != self._last_news or (self._counts is not None and self._counts.has_news)
        if is_new or (why and not self._stopping):
            self._next_heartbeat = min(self._next_heartbeat, self._last_heartbeat + _HEARTBEAT)
        if now >= self._next_heartbeat:
            self._last_heartbeat, self._next_heartbeat = now, now + self._silence
            self._last_news = news
            # The age of a claim changes all the time, so it is no news that is worth a heartbeat.
            age = self._lease_loop.claim_age
            self._link.send({**news, "claim_age": age, **self._counted()})
            stopping = ", leaving" if self._stopping else ""
            self._show_title(f"{self._title}: {tasks} tasks{stopping}")
        if not self._told_poll and self._lease_loop.claim_age is not None:
            # This follows the first heartbeat, so that the master knows the slots of this worker
            # when it tells the service manager that it is ready.
            self._told_poll = True
            self._link.send({"looked": True})

    def _counted(self) -> Mapping[str, Any]:
        """What was counted since the last message, as a part of a message; empty if nothing was."""
        counted = () if self._counts is None else self._counts.take()
        return {"counted": counted} if counted else {}

    def _status(self) -> dict[str, Any]:
        """This worker's tasks, recent errors and losses, for ``psched status``."""
        mono, boot = self._clock.monotonic(), self._clock.boottime()
        tasks = [task.report(mono, boot) for task in self._tasks.running.values()]
        return {"tasks": tasks, "errors": [*self._log.recent], **self._lease_loop.losses()}


def prepare_process(log: Log, place: WorkerIdentity) -> SignalInbox:
    """Set up the log, the title and the signals of a new worker process; return its inbox."""
    log.process = place.name
    log.recent.clear()
    # A worker obeys only three signals: TERM and QUIT (finish the tasks and exit), and USR2 (reopen
    # the log). It receives all other signals and ignores them, because a terminal or pkill can send
    # them to all processes of psched, and the master sends its orders over the link.
    return run_users_code(log, f"{place}: starting")


def clean_up(store: Store, settings: Config, nonces: Sequence[str]) -> int:
    """Release the leases of the dead workers that have these nonces.

    A cleaner process, which the master forks for this purpose, does nothing else.
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

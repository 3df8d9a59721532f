"""Publishes a master's state: as process title, to the service manager and to ``psched status``."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from psched.base.clock import Clock
from psched.base.texts import brief
from psched.master.kept_socket import CHECK_INTERVAL
from psched.master.monitor_child import MonitorKeeper
from psched.master.reports.health import Load, MasterState, total
from psched.master.reports.output_relay import OutputRelay
from psched.master.reports.sd_notify import Notifier, microseconds
from psched.master.reports.status_socket import StatusSocket
from psched.master.worker_child import WorkerChild
from psched.master.workers import Workers
from psched.process.signals import Waitable

_log = logging.getLogger("psched.master")

_REPORT_TIMEOUT = 1.0
"""Seconds for which the master waits for its workers' reports before it answers ``psched status``.
For a worker that has not reported by then, the answer contains the worker's previous report."""

_EXTENSION = (5.0, 30.0)
"""Two times in seconds. During a start or a stop, the master regularly asks the service manager to
extend its timeout: the time between two such requests, and the extension that each asks for."""

_STATUS_INTERVAL = 1.0
"""The least seconds between two status lines to the service manager. If the `MasterState` changes,
a status line is sent at once."""

_ERRORS = 10  # the most errors in the answer to ``psched status``; older errors are left out

_LONGEST_TEXT = 500
"""The most characters of a status line. A longer line is cut, because service managers do not
accept it."""


class Announcement(Protocol):
    """Tells other users of this host which database is served."""

    def publish(self, about: Mapping[str, str]) -> None:
        """Announce these values; see `psched.master.generation_spec.GenerationSpec.about`."""
        ...

    def check(self) -> None:
        """Announce the values again if the announcement was lost."""
        ...

    def close(self) -> None:
        """Withdraw the announcement."""
        ...


class LoadLog:
    """Logs when due rows begin to wait for a slot, and when this ends."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: float | None = None
        self._latest = 0.0

    def note(self, load: Load, unable: Sequence[str] = ()) -> None:
        """Note the load of all workers; log the beginning or the end of an episode."""
        now = self._clock.monotonic()
        if load.due and self._since is None and not load.free:
            self._since, self._latest = now, 0.0
            why = "raise concurrency or processors"
            why = f"no process can be forked: {unable[0]}" if unable else why
            _log.warning("%s, no free slot: %s", load.waiting, why)
        elif not load.due and self._since is not None:
            text = "no due row waits for a slot any more, after %.0f s; the oldest was %d s late"
            _log.info(text, now - self._since, self._latest)
            self._since = None
        self._latest = max(self._latest, load.late)


class Status:
    """Publishes a master's state: as process title, and to systemd and ``psched status``."""

    def __init__(
        self,
        *,
        notifier: Notifier,
        socket: StatusSocket,
        set_title: Callable[[str], None],
        recent: Sequence[str],
        clock: Clock,
        # Tells other users of this host which database is served; None if no file is written.
        service_file: Announcement | None = None,
        # Keeps the monitor, which is described to ``psched status``; None if there is none.
        monitor: MonitorKeeper | None = None,
    ) -> None:
        self._monitor = monitor
        self._service_file = service_file
        self._notifier = notifier
        self._socket = socket
        self._set_title = set_title
        self._recent = recent
        self._clock = clock
        self._started = clock.monotonic()
        self._state = MasterState.STARTING
        self._shown = ""
        self._next_line = 0.0
        self._next_extension = 0.0
        self._next_beat = 0.0
        self._next_check = 0.0
        self._requested: float | None = None
        self._load_log = LoadLog(clock)
        self._output = OutputRelay(clock)
        # Why the last restart failed. None if it succeeded, or if there was no restart.
        self.problem: str | None = None
        # Why the master cannot start and stops. None if it has not given up.
        self.failure: str | None = None

    @property
    def links(self) -> list[Waitable]:
        """The sockets that the master waits for. When one of them is ready, `show` handles it."""
        return self._socket.links

    def show(
        self,
        state: MasterState,
        generation: int,  # the number of the present generation
        workers: Workers,
        *,
        # The time until which the service manager is asked to wait for the end of a start or a
        # stop, in seconds of the monotonic clock.
        until: float,
        about: Mapping[str, str],
    ) -> float:
        """Publish the master's state if it has changed, and answer clients of ``psched status``.

        Returns when to call again; all times are of the monotonic clock.
        """
        now = self._clock.monotonic()
        # Send the sign of life first. If a fault in a later step prevented it, the service manager
        # would kill the service.
        wakes = self._feed_watchdog(now)
        load = _load_of(workers)
        if state is MasterState.SERVING:
            # In another state, free slots do not show that due rows are claimed.
            self._load_log.note(load, [worker.no_fork for worker in workers if worker.no_fork])
        self._set_title(self._text(state, generation, workers, load))
        # The process title does not name the causes, because every user of the host can read it.
        text = self._text(state, generation, workers, load, causes=True)
        if self._service_file is not None:
            self._service_file.publish(about)
            if now >= self._next_check:
                self._next_check = now + CHECK_INTERVAL
                self._service_file.check()
        describe = partial(self._describe, state, generation, workers, about)
        return min(
            wakes, self._notify(state, text, now, until), self._answer(workers, now, describe)
        )

    def relay(self, message: Mapping[str, Any], worker: WorkerChild) -> None:
        """Pass on a worker's message about the output of a running task, if it is one."""
        self._output.take(message, worker.pid)

    def close(self) -> None:
        """Remove the socket of ``psched status`` and the service file."""
        self._socket.close()
        if self._service_file is not None:
            self._service_file.close()

    def _text(
        self,
        state: MasterState,
        generation: int,
        workers: Workers,
        load: Load,
        *,
        causes: bool = False,
    ) -> str:
        if self.failure and causes:
            # This is the last line, which the service manager still shows when the service has
            # ended.
            return brief(f"cannot start: {self.failure}")[:_LONGEST_TEXT]
        tasks = sum(worker.tasks for worker in workers)
        text = f"generation {generation}, {len(workers)} workers, {tasks} tasks"
        if load.slots:
            text += f", {load.capacity}"
        if state is not MasterState.SERVING:
            text += f", {state.value}"
        if load.due:
            text += f"; {load.waiting}"
        if faults := [worker.store_fault for worker in workers if worker.store_fault]:
            text += "; the database cannot be used" + (f": {faults[0]}" if causes else "")
        if unable := [worker.no_fork for worker in workers if worker.no_fork]:
            text += "; no process can be forked" + (f": {unable[0]}" if causes else "")
        if self.problem:
            text += f"; restart failed: {self.problem}"
        return brief(text)[:_LONGEST_TEXT]

    def _feed_watchdog(self, now: float) -> float:
        """Send the service manager a sign of life if it is due; return when to call again."""
        if self._notifier.watchdog is None:
            return float("inf")
        if now >= self._next_beat:
            self._next_beat = now + self._notifier.watchdog / 3
            self._notifier.send(WATCHDOG=1)
        return self._next_beat

    def _notify(self, state: MasterState, text: str, now: float, until: float) -> float:
        """Send the service manager what has changed; return when to call again."""
        fields = self._change(state, now)
        if fields or (text != self._shown and now >= self._next_line):
            self._shown, self._next_line = text, now + _STATUS_INTERVAL
            fields["STATUS"] = text
        wakes = float("inf") if text == self._shown else self._next_line
        if state in (MasterState.STARTING, MasterState.STOPPING) and now < until:
            every, extension = _EXTENSION
            if now >= self._next_extension:
                self._next_extension = now + every
                fields["EXTEND_TIMEOUT_USEC"] = microseconds(extension)
            wakes = min(wakes, self._next_extension)
        if fields:
            self._notifier.send(**fields)
        return wakes

    def _change(self, state: MasterState, now: float) -> dict[str, object]:
        """Note the state; return the fields that announce its change to systemd, if any."""
        before, self._state = self._state, state
        if state is before:
            return {}
        match state:
            case MasterState.STOPPING:
                self._next_extension = now
                return {"STOPPING": 1}
            case MasterState.RELOADING if before is not MasterState.STARTING:
                return {"RELOADING": 1, "MONOTONIC_USEC": microseconds(now)}
            case _ if before in (MasterState.STARTING, MasterState.RELOADING):
                return {"READY": 1}
        return {}

    def _answer(
        self, workers: Workers, now: float, describe: Callable[[], Mapping[str, Any]]
    ) -> float:
        """Request reports for clients of ``psched status``, and answer when all have arrived.

        `_REPORT_TIMEOUT` seconds after the request, answer without the missing reports. Returns
        when to call again.
        """
        self._socket.advance()
        self._output.begin(self._socket.asking, workers)
        relayed = self._output.look(workers)
        if not self._socket.waiting:
            self._requested = None
            return relayed
        if self._requested is None:
            self._requested = now
            for worker in workers:
                worker.tell(report=True)
        over = self._requested + _REPORT_TIMEOUT
        if now < over and any(w.reported < self._requested for w in workers if w.ready):
            return min(over, relayed)
        self._socket.answer(describe())
        self._requested = None
        return relayed

    def _describe(
        self, state: MasterState, generation: int, workers: Workers, about: Mapping[str, str]
    ) -> Mapping[str, Any]:
        now = self._clock.monotonic()
        errors = [*self._recent]
        for worker in workers:
            errors += worker.report.get("errors", ())
        return {
            **about,
            "pid": os.getpid(),
            "phase": state.value,
            "generation": generation,
            "uptime": now - self._started,
            "problem": self.problem and brief(self.problem),
            "worker_deaths": workers.deaths,
            **_load_of(workers)._asdict(),
            "workers": [_described(worker, now) for worker in workers],
            "monitor": None if self._monitor is None else self._monitor.describe(),
            # Each line begins with the time at which it was logged, so sort the lines as texts.
            "errors": sorted(errors)[-_ERRORS:],
        }


def _load_of(workers: Workers) -> Load:
    """The load of the workers that claim rows; a worker that leaves claims no more rows."""
    return total(worker.load for worker in workers if not worker.draining)


def _losses(worker: WorkerChild) -> Mapping[str, int]:
    """How many records, and outputs of attempts, it could not write, unless the number is 0."""
    lost = {name: worker.report.get(name, 0) for name in ("lost_records", "lost_outputs")}
    return {name: number for name, number in lost.items() if number}


def _readiness(worker: WorkerChild, now: float) -> Mapping[str, float | str | None]:
    """The fields that say whether a worker could claim rows lately, as far as it tells them."""
    told: dict[str, float | str | None] = {}
    if worker.claimed is not None:
        told["claim_age"] = worker.claim_age(now)
    if worker.waited is not None:
        told["waited"] = worker.waited
    if worker.no_fork is not None:
        told["no_fork"] = worker.no_fork
    return told


def _described(worker: WorkerChild, now: float) -> Mapping[str, Any]:
    state = "leaving" if worker.draining else "ready" if worker.ready else "starting"
    age = now - worker.reported
    return {
        "pid": worker.pid,
        "number": worker.identity.number,
        "generation": worker.identity.generation,
        "state": state,
        "uptime": now - worker.started,
        "silent_for": now - worker.heard,
        "store_away": worker.store_fault,
        **worker.load._asdict(),
        **_readiness(worker, now),
        **_losses(worker),
        "tasks": [
            {
                **task,
                "running_for": task["running_for"] + age,
                "lease_left": task["lease_left"] - age,
            }
            for task in worker.report.get("tasks", ())
        ],
    }

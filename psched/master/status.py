"""Shows a master's state: in its title, to the service manager, and to ``psched status``."""

import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

from psched.base.clock import Clock
from psched.base.texts import brief
from psched.master.sd_notify import Notifier, microseconds
from psched.master.status_socket import StatusSocket
from psched.master.worker_child import WorkerChild
from psched.master.workers import Workers
from psched.process.signals import Waitable

_REPORT_TIMEOUT = 1.0
"""Seconds for which the master waits for reports. If a worker hangs, its last report is shown."""

_EXTENSION = (5.0, 30.0)
"""Seconds between two requests to the service manager to extend its timeout, and the extension in
seconds."""

_STATUS_INTERVAL = 1.0
"""Seconds between two status lines to the service manager, unless the state changes."""

_ERRORS = 10
"""The most errors that ``psched status`` shows; older errors are left out."""

_LONGEST_TEXT = 500
"""The most characters of a status line, because service managers do not accept long lines."""


class MasterState(Enum):
    """What a master is doing."""

    STARTING = "starting"
    """No worker has polled for due rows yet: handlers are being loaded, or the database is
    unavailable."""
    SERVING = "serving"
    RELOADING = "reloading"
    PAUSED = "paused"
    STOPPING = "stopping"


class Status:
    """Publishes the master's state: as a title, to the service manager and to ``psched status``.

    Args:
        notifier: sends notifications to the service manager.
        socket: accepts the connections of ``psched status``.
        set_title: shows a text as the process's title.
        recent: the last warnings and errors of this process.
        clock: the time of the intervals.

    Attributes:
        problem: why the last restart failed; None: the last restart succeeded, or there was none.
    """

    def __init__(
        self,
        *,
        notifier: Notifier,
        socket: StatusSocket,
        set_title: Callable[[str], None],
        recent: Sequence[str],
        clock: Clock,
    ) -> None:
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
        self._requested: float | None = None
        self.problem: str | None = None

    @property
    def links(self) -> list[Waitable]:
        """The sockets that must wake the master when they are ready."""
        return self._socket.links

    def show(
        self,
        state: MasterState,
        generation: int,
        workers: Workers,
        *,
        until: float,
        about: Mapping[str, str],
    ) -> float:
        """Publish the master's state, if it has changed or somebody has asked for it.

        Args:
            state: what the master is doing.
            generation: the number of the present generation.
            workers: all workers that are alive.
            until: the time until which the service manager is asked to wait for a start or a stop,
                in seconds of the monotonic clock.
            about: see `GenerationSpec.about`.

        Returns:
            When to call again, seconds of the monotonic clock.
        """
        now = self._clock.monotonic()
        # Send the sign of life first: if a later step fails, the manager must not end the service.
        wakes = self._feed_watchdog(now)
        text = self._text(state, generation, workers)
        self._set_title(text)
        describe = partial(self._describe, state, generation, workers, about)
        return min(
            wakes, self._notify(state, text, now, until), self._answer(workers, now, describe)
        )

    def close(self) -> None:
        """Remove the socket."""
        self._socket.close()

    def _text(self, state: MasterState, generation: int, workers: Workers) -> str:
        tasks = sum(worker.tasks for worker in workers)
        text = f"generation {generation}, {len(workers)} workers, {tasks} tasks"
        if state is not MasterState.SERVING:
            text += f", {state.value}"
        if any(worker.store_fault for worker in workers):
            text += "; the database does not answer"
        if self.problem:
            text += f"; restart failed: {self.problem}"
        return brief(text)[:_LONGEST_TEXT]

    def _feed_watchdog(self, now: float) -> float:
        """Tell the service manager that the master is alive; return when to call again."""
        if self._notifier.watchdog is None:
            return float("inf")
        if now >= self._next_beat:
            self._next_beat = now + self._notifier.watchdog / 3
            self._notifier.send(WATCHDOG=1)
        return self._next_beat

    def _notify(self, state: MasterState, text: str, now: float, until: float) -> float:
        """Send the service manager all changes; return when to call again."""
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
        """The fields that announce a new state to the service manager; empty: it need not know."""
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
        """Answer ``psched status`` once the workers have reported; return when to call again."""
        self._socket.advance()
        if not self._socket.waiting:
            self._requested = None
            return float("inf")
        if self._requested is None:
            self._requested = now
            for worker in workers:
                worker.tell(report=True)
        over = self._requested + _REPORT_TIMEOUT
        if now < over and any(w.reported < self._requested for w in workers if w.ready):
            return over
        self._socket.answer(describe())
        self._requested = None
        return float("inf")

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
            "workers": [_described(worker, now) for worker in workers],
            # Each line begins with its time, so sorting orders the lines by time.
            "errors": sorted(errors)[-_ERRORS:],
        }


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
        "tasks": [
            {
                **task,
                "running_for": task["running_for"] + age,
                "lease_left": task["lease_left"] - age,
            }
            for task in worker.report.get("tasks", ())
        ],
    }

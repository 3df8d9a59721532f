"""How a master stands, for everybody outside: its title, the service manager, psched status."""

import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from psched.base.clock import Clock
from psched.base.texts import brief
from psched.master.sd_notify import Notifier, microseconds
from psched.master.status_socket import StatusSocket
from psched.master.worker_child import WorkerChild
from psched.master.workers import Workers
from psched.process.signals import Waitable

_REPORT_TIMEOUT = 1.0
"""Seconds that workers have to report; of one that hangs the last report is shown."""

_EXTENSION = (5.0, 30.0)
"""Every so many seconds the service manager is asked to be patient for so many more."""

_STATUS_INTERVAL = 1.0
"""Seconds between two status lines to the service manager."""

_ERRORS = 10

_LONGEST_TEXT = 500
"""Characters."""


class Phase(Enum):
    """What a master is about."""

    STARTING = "starting"
    """No worker has looked for due rows yet: handlers are loaded, or the database is away."""
    SERVING = "serving"
    RELOADING = "reloading"
    PAUSED = "paused"
    STOPPING = "stopping"


class Status:
    """Shows how the master stands, and tells the service manager of every step.

    Args:
        notifier: to the service manager.
        control: where ``psched status`` asks.
        set_title: shows a text as the process's title.
        recent: the last warnings and errors of this process.
        clock: this host's clocks.

    Attributes:
        problem: why the last restart failed, if it did.
    """

    def __init__(
        self,
        *,
        notifier: Notifier,
        control: StatusSocket,
        set_title: Callable[[str], None],
        recent: Sequence[str],
        clock: Clock,
    ) -> None:
        self._notifier = notifier
        self._control = control
        self._set_title = set_title
        self._recent = recent
        self._clock = clock
        self._started = clock.monotonic()
        self._phase = Phase.STARTING
        self._shown = ""
        self._next_line = 0.0
        self._next_extension = 0.0
        self._next_beat = 0.0
        self._asked: float | None = None
        self.problem: str | None = None

    @property
    def links(self) -> list[Waitable]:
        """What to wait on."""
        return self._control.links

    def show(
        self,
        phase: Phase,
        generation: int,
        workers: Workers,
        *,
        patience: float,
        about: Mapping[str, str],
    ) -> float:
        """Tell everybody.

        Args:
            phase: what the master is about.
            generation: the present one.
            workers: all that are alive.
            patience: until when the service manager is asked to bear with a start or a stop,
                seconds of the monotonic clock.
            about: what is served.

        Returns:
            When to call again, seconds of the monotonic clock.
        """
        now = self._clock.monotonic()
        text = self._text(phase, generation, workers)
        self._set_title(text)
        wakes = self._notify(phase, text, now, patience)

        def describe() -> Mapping[str, Any]:
            return self._describe(phase, generation, workers, about)

        return min(wakes, self._answer(workers, now, describe))

    def close(self) -> None:
        """Nobody can ask any more."""
        self._control.close()

    def _text(self, phase: Phase, generation: int, workers: Workers) -> str:
        tasks = sum(worker.tasks for worker in workers)
        text = f"generation {generation}, {len(workers)} workers, {tasks} tasks"
        if phase is not Phase.SERVING:
            text += f", {phase.value}"
        if any(worker.away for worker in workers):
            text += "; the database does not answer"
        if self.problem:
            text += f"; restart failed: {self.problem}"
        # It is one line to the service manager, which takes no long ones.
        return brief(text)[:_LONGEST_TEXT]

    def _notify(self, phase: Phase, text: str, now: float, patience: float) -> float:
        """Tell the service manager what is new; when to call again."""
        fields = self._step(phase, now)
        if fields or (text != self._shown and now >= self._next_line):
            self._shown, self._next_line = text, now + _STATUS_INTERVAL
            fields["STATUS"] = text
        wakes = float("inf") if text == self._shown else self._next_line
        if phase in (Phase.STARTING, Phase.STOPPING) and now < patience:
            every, extension = _EXTENSION
            if now >= self._next_extension:
                self._next_extension = now + every
                fields["EXTEND_TIMEOUT_USEC"] = microseconds(extension)
            wakes = min(wakes, self._next_extension)
        if self._notifier.watchdog is not None:
            if now >= self._next_beat:
                self._next_beat = now + self._notifier.watchdog / 3
                fields["WATCHDOG"] = 1
            wakes = min(wakes, self._next_beat)
        if fields:
            self._notifier.send(**fields)
        return wakes

    def _step(self, phase: Phase, now: float) -> dict[str, object]:
        before, self._phase = self._phase, phase
        if phase is before:
            return {}
        match phase:
            case Phase.STOPPING:
                self._next_extension = now
                return {"STOPPING": 1}
            case Phase.RELOADING if before is not Phase.STARTING:
                return {"RELOADING": 1, "MONOTONIC_USEC": microseconds(now)}
            case _ if before in (Phase.STARTING, Phase.RELOADING):
                return {"READY": 1}
        return {}

    def _answer(
        self, workers: Workers, now: float, describe: Callable[[], Mapping[str, Any]]
    ) -> float:
        """Answer those who ask, when the workers have reported; when to call again."""
        self._control.advance()
        if not self._control.waiting:
            self._asked = None
            return float("inf")
        if self._asked is None:
            self._asked = now
            for worker in workers:
                worker.tell(report=True)
        over = self._asked + _REPORT_TIMEOUT
        if now < over and any(w.reported < self._asked for w in workers if w.ready):
            return over
        self._control.answer(describe)
        self._asked = None
        return float("inf")

    def _describe(
        self, phase: Phase, generation: int, workers: Workers, about: Mapping[str, str]
    ) -> Mapping[str, Any]:
        now = self._clock.monotonic()
        errors = [*self._recent]
        for worker in workers:
            errors += worker.report.get("errors", ())
        return {
            **about,
            "pid": os.getpid(),
            "phase": phase.value,
            "generation": generation,
            "uptime": now - self._started,
            "problem": self.problem and brief(self.problem),
            "worker_deaths": workers.deaths,
            "workers": [_described(worker, now) for worker in workers],
            # They begin with their time.
            "errors": sorted(errors)[-_ERRORS:],
        }


def _described(worker: WorkerChild, now: float) -> Mapping[str, Any]:
    state = "leaving" if worker.leaving else "ready" if worker.ready else "starting"
    age = now - worker.reported
    return {
        "pid": worker.pid,
        "number": worker.place.number,
        "generation": worker.place.generation,
        "state": state,
        "uptime": now - worker.started,
        "silent_for": now - worker.heard,
        "store_away": worker.away,
        "tasks": [
            {
                **task,
                "running_for": task["running_for"] + age,
                "lease_left": task["lease_left"] - age,
            }
            for task in worker.report.get("tasks", ())
        ],
    }

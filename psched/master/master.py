"""The master: a loop over signals, deaths and time. It owns processes and nothing else.

::

    booting ─── canary ready ──▶ running ◀── canary ready: old workers told to leave ──┐
       │                           │  └───── HUP, USR1 ─▶ reloading: a canary of g+1 ──┤
       │ canary fails              │                                                   │
       ▼                           │                  canary fails: g goes on as it was┘
     exit 65, 78                   ▼
                  TERM, INT, QUIT ─▶ stopping ── second INT, QUIT ─▶ at once ── all gone ─▶ exit 0

A generation is one reading of configuration and handler code. Nothing is reloaded in place: new
code comes with new processes, so a broken file hurts nobody but its canary. Stopping is a latch:
nothing undoes it.
"""

import logging
import signal
from collections.abc import Callable, Collection, Mapping
from typing import Any

from psched.base.clock import Clock
from psched.base.fault_log import FaultLog
from psched.master.generation_spec import HOPELESS, GenerationSpec, Plan, PlanError
from psched.master.respawn import Respawn
from psched.master.status import Phase, Status
from psched.master.worker_child import WorkerChild
from psched.master.workers import Workers
from psched.process.signals import SignalInbox

_log = logging.getLogger("psched.master")

CRASH_LOOP = 70
"""Exit status: workers die again and again (sysexits.h: EX_SOFTWARE)."""

_STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}
_RESTART = {signal.SIGHUP, signal.SIGUSR1}

_OLD_GENERATIONS = 2  # that may be leaving at the same time; a further restart waits

_ESCALATION = 1.0
"""Seconds; a second INT within them is one key press seen twice."""

_TICK = 4.0  # seconds between two looks at everything, at most


class Master:
    """Keeps workers running until it is told to stop.

    Args:
        plan: reads the configuration into a blueprint; called anew at every restart.
        workers: the table of children.
        inbox: this process's signals.
        clock: this host's clocks.
        respawn: the pace of replacements.
        reopen_logs: called on USR2 and at a restart.
        status: shows how it stands.
        on_terminal: WINCH is the terminal's, not an order.
    """

    def __init__(
        self,
        plan: Plan,
        workers: Workers,
        *,
        inbox: SignalInbox,
        clock: Clock,
        respawn: Respawn,
        reopen_logs: Callable[[], None],
        status: Status,
        on_terminal: bool,
    ) -> None:
        self._plan = plan
        self._workers = workers
        self._inbox = inbox
        self._clock = clock
        self._respawn = respawn
        self._reopen_logs = reopen_logs
        self._status = status
        self._on_terminal = on_terminal

        self._generation = 0
        self._blueprint: GenerationSpec | None = None
        self._canary: WorkerChild | None = None
        self._restart_wanted = True
        self._more = 0
        self._paused_until = -1
        self._served = False
        self._stopping_since: float | None = None
        self._patience = float("inf")
        self._exit_status = 0
        self._no_forks = FaultLog("cannot fork", _log, clock)

    def run(self) -> int:
        """Work until told to stop; the exit status."""
        while True:
            timeout = self.tick()
            if self._stopping_since is not None and not self._workers:
                _log.info("stopped")
                self._status.close()
                return self._exit_status
            links = [worker.link for worker in self._workers]
            arrived = self._inbox.wait(timeout, [*links, *self._status.links])
            self.obey(arrived)

    def tick(self) -> float:
        """Do what is due; the seconds until something is due again."""
        for worker in self._workers:
            worker.link.flush()
            for message in worker.link.receive():
                self._hear(worker, message)
        for worker in self._workers.reap():
            for message in worker.last_words:
                self._hear(worker, message)
            self._ended(worker)
        self._workers.watch()
        self._workers.recover()
        stopping = self._stopping_since is not None
        if not stopping:
            self._restart()
            self._fill()
        if (stopping or self._paused) and not self._workers and self._blueprint is not None:
            # Nobody will follow who could release what dead workers held.
            self._workers.clean_up(self._blueprint, self._generation)
        wakes = self._show()
        now = self._clock.monotonic()
        wakes = min(wakes, self._workers.wakes, self._respawn.wakes(now), now + _TICK)
        self._workers.due = max(now, wakes)
        return max(0.0, wakes - now)

    def obey(self, arrived: Collection[signal.Signals]) -> None:
        """Do what the signals say; a stop goes before everything else."""
        if not _STOP.isdisjoint(arrived):
            self._stop(arrived)
        if signal.SIGUSR2 in arrived or not _RESTART.isdisjoint(arrived):
            self._reopen_logs()
            for worker in self._workers:
                worker.tell(reopen=True)
        if self._stopping_since is not None:
            return
        if not _RESTART.isdisjoint(arrived):
            _log.info("restart asked for")
            self._restart_wanted = True
        self._more += (signal.SIGTTIN in arrived) - (signal.SIGTTOU in arrived)
        if signal.SIGWINCH in arrived and not self._on_terminal:
            self._pause()

    # --- generations -----------------------------------------------------------------

    def _restart(self) -> None:
        """Begin the next generation with its canary, if one is wanted and there is room."""
        now = self._clock.monotonic()
        if not self._restart_wanted or self._canary or not self._respawn.allowed(0, now):
            return
        old = {w.place.generation for w in self._workers if w.place.generation < self._generation}
        if len(old) >= _OLD_GENERATIONS:
            return
        self._restart_wanted = False
        try:
            blueprint = self._plan(None)
            self._canary = self._workers.spawn(0, self._generation + 1, blueprint)
        except (PlanError, OSError) as error:
            self._not_started(str(error), error.status if isinstance(error, PlanError) else None)

    def _hear(self, worker: WorkerChild, message: Mapping[str, Any]) -> None:
        worker.hear(message, self._clock.monotonic())
        if "ready" in message and not worker.ready:
            worker.ready = True
            # It waits for this, and has obeyed by then what it was told before.
            worker.tell(go=worker is not self._canary or self._promote(worker, message["ready"]))
        if "looked" in message:
            self._served = True
        if message.get("enough") and not self._paused and self._workers.may_be_replaced(worker):
            _log.info("%s %s: another takes its place", worker.place, message["enough"])
            worker.leave(None, worker.heard)
        if "recovered" in message:
            self._workers.recovered(worker, message["recovered"])

    def _promote(self, canary: WorkerChild, reported: Mapping[str, Any] | None) -> bool:
        """The canary lives: its generation is the present one, the others leave.

        Returns:
            False if the master cannot go by what the canary reports.
        """
        self._canary = None
        if reported:
            try:
                canary.blueprint = self._plan(reported)
            except PlanError as error:
                canary.leaving = True
                self._not_started(str(error), error.status)
                return False
        self._blueprint = canary.blueprint
        self._blueprint.adopt()
        self._generation = canary.place.generation
        self._respawn.forget()
        for worker in self._workers:
            if worker.place.generation < self._generation and not worker.leaving:
                worker.leave(None, self._clock.monotonic())
        self._status.problem = None
        _log.info("generation %d serves, %d workers", self._generation, self._blueprint.processors)
        return True

    def _ended(self, worker: WorkerChild) -> None:
        """A worker has been reaped."""
        exit_, now = worker.exit, self._clock.monotonic()
        if exit_ is None or self._stopping_since is not None:
            return
        if worker is self._canary:
            self._canary = None
            meaning = HOPELESS.get(exit_.status) if exit_.status is not None else None
            why = f"its first worker {exit_}" + (f": {meaning}" if meaning else "")
            self._not_started(why, exit_.status if meaning else None)
        elif worker.failed and worker.place.generation == self._generation:
            lived = now - worker.started if worker.ready else 0.0
            self._respawn.failed(worker.place.number, lived, now)
            self._give_up_if_hopeless()

    def _not_started(self, why: str, status: int | None) -> None:
        """A generation could not be started: the one before it goes on, if there is one.

        Args:
            why: for people.
            status: the exit status, if trying again would be pointless.
        """
        # What was to be paused is not there: the next try is nobody's pause.
        self._paused_until = min(self._paused_until, self._generation)
        if self._blueprint is not None:
            _log.error(
                "generation %d could not be started: %s; generation %d goes on",
                self._generation + 1, why, self._generation,
            )  # fmt: skip
            self._status.problem = why
        elif status is not None:
            _log.error("cannot start: %s", why)
            self._give_up(status)
        else:
            _log.error("cannot start yet: %s", why)
            self._respawn.failed(0, 0.0, self._clock.monotonic())
            self._restart_wanted = True
            self._give_up_if_hopeless()

    # --- a pause ---------------------------------------------------------------------

    @property
    def _paused(self) -> bool:
        return self._generation <= self._paused_until

    def _pause(self) -> None:
        """Have no task started by this generation, nor by one that is about to replace it."""
        _log.info("paused: no task is started until the next restart")
        self._paused_until = self._generation + (self._canary is not None)
        for worker in self._workers:
            worker.tell(pause=True)

    # --- numbers ---------------------------------------------------------------------

    @property
    def _wanted(self) -> int:
        return 0 if self._blueprint is None else max(0, self._blueprint.processors + self._more)

    def _fill(self) -> None:
        """Have as many workers of this generation as are wanted; in a pause, no new ones."""
        if self._blueprint is None:
            return
        self._more = max(self._more, -self._blueprint.processors)
        now = self._clock.monotonic()
        there = self._workers.serving(self._generation)
        for number in range(0 if self._paused else self._wanted):
            if number not in there and self._respawn.allowed(number, now):
                try:
                    self._workers.spawn(number, self._generation, self._blueprint)
                except OSError as error:
                    self._no_forks.failed(error)
                    self._respawn.refused(number, now)
        self._no_forks.passed()
        for number, worker in there.items():
            if number >= self._wanted:
                worker.leave(None, now)

    def _give_up_if_hopeless(self) -> None:
        if self._respawn.hopeless(max(1, self._wanted)):
            _log.error("every worker has died again and again: giving up")
            self._give_up(CRASH_LOOP)

    # --- the end ---------------------------------------------------------------------

    def _give_up(self, status: int) -> None:
        self._exit_status = status
        self._stop((signal.SIGTERM,))

    def _stop(self, arrived: Collection[signal.Signals]) -> None:
        now = self._clock.monotonic()
        if self._stopping_since is None:
            self._stopping_since, self._canary = now, None
            _log.info("stopping: running tasks may finish")
            for worker in self._workers:
                worker.dismiss(worker.blueprint.graceful_timeout, now)
            self._patience = max((worker.overdue for worker in self._workers), default=now)
            return
        again = signal.SIGINT in arrived and now - self._stopping_since >= _ESCALATION
        if again or signal.SIGQUIT in arrived:
            _log.info("stopping at once: running tasks are stopped and released")
            for worker in self._workers:
                worker.dismiss(0, now, hurry=True)

    def _show(self) -> float:
        """Show how it stands; when to do so again, seconds of the monotonic clock."""
        about = {} if self._blueprint is None else self._blueprint.about
        return self._status.show(
            self._phase, self._generation, self._workers, patience=self._patience, about=about
        )

    @property
    def _phase(self) -> Phase:
        if self._stopping_since is not None:
            return Phase.STOPPING
        if self._paused:
            return Phase.PAUSED
        if not self._served:
            return Phase.STARTING
        if self._canary or self._restart_wanted:
            return Phase.RELOADING
        return Phase.SERVING

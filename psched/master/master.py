"""The master: a loop that acts on signals, on exits of workers and on timeouts.

It owns processes, but neither schedules nor a database connection.

::

    booting ─── canary ready ──▶ serving ◀── canary ready: old workers told to drain ──┐
       │                           │  └───── HUP, USR1 ─▶ reloading: a canary of g+1 ──┤
       │ canary fails              │                                                   │
       ▼                           │                 canary fails: g goes on as it was ┘
     exit 65, 78                   ▼
                  TERM, INT, QUIT ─▶ stopping ── second INT, QUIT ─▶ at once ── all gone ─▶ exit 0

A generation (g) is a set of workers that use one reading of the configuration and of the handler
code. A running process never reloads code. A restart starts one worker of the next generation
first, the canary. If a file is broken, only the canary fails. A stop cannot be cancelled.

Signals::

    TERM, INT   stop: claim no more, running tasks may finish for ``graceful_timeout``, then the
                kill ladder, leases released, exit 0. A second INT (1 s later or more): at once
    QUIT        stop, like TERM; while a stop is under way: at once
    HUP, USR1   restart: a new generation of workers; the old ones finish what they run
    USR2        reopen the log, nothing else
    TTIN, TTOU  one worker more, one fewer
    WINCH       start no more tasks until the next restart (ignored on a terminal)

CONT has no meaning, because service managers send it after TERM. CHLD is never ignored, because
the kernel would then discard the exit statuses of the children.

If the master dies, its workers read the end of the stream on their links. They kill their tasks,
release the leases and exit, and a service manager starts the next master. Every running task is
lost, so the master survives errors in its own code; see `Master.run`.
"""

import logging
import signal
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from psched.base.clock import Clock
from psched.base.fault_log import FaultLog
from psched.master.generation_spec import FATAL, GenerationSpec, ReadSpec, SpecError
from psched.master.respawn import Respawn
from psched.master.status import MasterState, Status
from psched.master.worker_child import WorkerChild
from psched.master.workers import Workers
from psched.process.signals import SignalInbox

_log = logging.getLogger("psched.master")

CRASHED = 70
"""Exit status: workers crash repeatedly, or psched has a bug (sysexits.h: EX_SOFTWARE)."""

_STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}
_RESTART = {signal.SIGHUP, signal.SIGUSR1}

_MOST_DRAINING = 2
"""The most generations that drain at the same time; a further restart waits for one to end."""

_SAME_KEY_PRESS = 1.0
"""Seconds after the first INT in which a second one is ignored: one key press may send both."""

_TICK = 4.0
"""The most seconds between two ticks."""

_KILL_GRACE = 5.0
"""Seconds after the last KILL. If a fault keeps a worker in the table until then, `run` returns
and leaves the worker behind."""

_FAULT_PAUSE = 1.0
"""Seconds until the next tick after an unforeseen exception."""


class Master:
    """Keeps workers running until it is told to stop.

    `run` is the loop of a process. A test or a simulation calls `tick` and `obey` itself; see
    `psched.testing.MasterDriver`.

    Args:
        read_spec: reads the configuration; called anew at every restart.
        workers: the table of children.
        respawn: the pace of replacements.
        reopen_logs: called on USR2 and at a restart.
        clock: the time of the loop.
        status: publishes the state of the master, for example to the service manager.
        on_terminal: the master runs on a terminal, so WINCH is ignored: the terminal sends it when
            its size changes.
    """

    def __init__(
        self,
        read_spec: ReadSpec,
        workers: Workers,
        *,
        clock: Clock,
        respawn: Respawn,
        reopen_logs: Callable[[], None],
        status: Status,
        on_terminal: bool,
    ) -> None:
        self._read_spec = read_spec
        self._workers = workers
        self._clock = clock
        self._respawn = respawn
        self._reopen_logs = reopen_logs
        self._status = status
        self._on_terminal = on_terminal

        self._generation = 0
        self._spec: GenerationSpec | None = None
        self._canary: WorkerChild | None = None
        self._restart_wanted = True
        self._more = 0
        self._paused_until = -1
        self._has_served = False
        self._stopping_since: float | None = None
        self._last_kill = float("inf")
        self._exit_status = 0
        self._wakes = 0.0
        self._fork_outage = FaultLog("cannot fork", _log, clock)
        self._fault = False
        self._faults = FaultLog("a fault in the master; it goes on", _log, clock, traceback=True)

    def run(self, inbox: SignalInbox) -> int:
        """Work until told to stop; return the exit status.

        An unforeseen exception is a fault in psched; it does not end the master. It ends only the
        step of the tick that has raised it. All other steps and all later ticks are executed. Each
        different fault is logged once, with its traceback. After a fault, the next tick follows a
        second later or when a signal arrives, and messages are not read before that tick. So a
        fault in every tick neither keeps the processor busy nor fills the log.

        A stop continues after a fault, too. If a fault keeps the stop from completing, the master
        exits with `CRASHED` shortly after the time at which the last worker should have been
        killed. The remaining workers then read the end of the stream on their links, release their
        leases and exit.

        A fault during the start of a generation is treated like a broken configuration: the old
        generation continues. If there is none, the master exits with `CRASHED`.

        Args:
            inbox: this process's signals.
        """
        while True:
            timeout = self.tick()
            if self.has_stopped:
                return self.close()
            self.obey(self._wait(inbox, timeout))

    def tick(self) -> float:
        """Execute all steps that are due; return the seconds until the next one is due."""
        self._fault = False
        self._try(self._receive)
        self._try(self._reap)
        self._try(self._watch)
        self._try(self._workers.recover)
        if self._stopping_since is None:
            self._try(self._restart)
            self._try(self._fill)
        self._try(self._clean_up)
        self._try(self._show)
        if not self._fault:
            self._faults.passed()
        now = self._clock.monotonic()
        wakes = now + _FAULT_PAUSE if self._fault else min(self._wakes, now + _TICK)
        self._workers.due = max(now, wakes)
        return max(0.0, wakes - now)

    @property
    def has_stopped(self) -> bool:
        """Whether a stop is complete: no worker is left, or a fault has used up the time limit."""
        if self._stopping_since is None:
            return False
        if not self._workers:
            return True
        return self._faults.ongoing and self._clock.monotonic() > self._last_kill + _KILL_GRACE

    def close(self) -> int:
        """Remove the status socket of a master that has stopped; return the exit status."""
        self._try(self._status.close)
        if self._workers:
            _log.critical("a fault has kept the stop from completing: workers are left behind")
            return CRASHED
        _log.info("stopped")
        return self._exit_status

    def obey(self, arrived: Collection[signal.Signals]) -> None:
        """Act on the signals; a stop takes precedence over everything else."""
        if not _STOP.isdisjoint(arrived):
            self._try(self._stop, arrived)
        if signal.SIGUSR2 in arrived or not _RESTART.isdisjoint(arrived):
            self._try(self._reopen)
        if self._stopping_since is not None:
            return
        if not _RESTART.isdisjoint(arrived):
            _log.info("restart asked for")
            self._restart_wanted = True
        self._more += (signal.SIGTTIN in arrived) - (signal.SIGTTOU in arrived)
        if signal.SIGWINCH in arrived and not self._on_terminal:
            self._try(self._pause)

    def _try(self, step: Callable[..., object], *arguments: object) -> None:
        """Call a step, and log an exception that it raises; see `run`."""
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001  # whatever it is, the workers live on
            self._fault = True
            self._faults.failed(error)

    def _wait(self, inbox: SignalInbox, timeout: float) -> Collection[signal.Signals]:
        """Sleep until a signal or message arrives or the time is up; return the signals."""
        try:
            if self._fault:
                return inbox.wait(timeout)
            return inbox.wait(timeout, [*(w.link for w in self._workers), *self._status.links])
        except Exception as error:  # noqa: BLE001
            self._faults.failed(error)
            self._clock.sleep(_FAULT_PAUSE)
            return inbox.take()

    # --- workers ---------------------------------------------------------------------

    def _receive(self) -> None:
        for worker in self._workers:
            # Each worker is read on its own, so that a fault in one worker's messages does not keep
            # the others' messages unread: a worker that seems silent is killed.
            self._try(self._receive_from, worker)

    def _receive_from(self, worker: WorkerChild) -> None:
        worker.link.flush()
        for message in worker.link.receive():
            self._try(self._handle, worker, message)

    def _watch(self) -> None:
        now = self._clock.monotonic()
        self._workers.excuse_standstill(now)
        for worker in self._workers:
            self._try(worker.watch, now)

    def _reap(self) -> None:
        for worker in self._workers.reap():
            for message in worker.last_words:
                self._try(self._handle, worker, message)
            self._try(self._ended, worker)

    def _handle(self, worker: WorkerChild, message: Mapping[str, Any]) -> None:
        """Act on a worker's message."""
        worker.heard_from(message, self._clock.monotonic())
        # A "ready" from a worker that has died after sending it is ignored.
        if "ready" in message and not worker.ready and worker.exit is None:
            # An exception while the nonce is recorded must not keep the worker from working.
            self._try(self._workers.became_ready, worker)
            # The worker waits for this answer. It obeys earlier messages, such as a stop, first.
            if worker is not self._canary or self._promote(worker, message["ready"]):
                worker.admit()
            else:
                worker.refuse()
        if "looked" in message:
            self._has_served = True
        if message.get("enough") and not self._paused and self._workers.may_be_replaced(worker):
            _log.info("%s %s: another takes its place", worker.identity, message["enough"])
            worker.drain(None, worker.heard)
        if "recovered" in message:
            self._workers.recovered(worker, message["recovered"])

    def _ended(self, worker: WorkerChild) -> None:
        """Act on the exit of a worker that was reaped."""
        exit_, now = worker.exit, self._clock.monotonic()
        if exit_ is None or self._stopping_since is not None:
            return
        if worker is self._canary:
            self._canary = None
            meaning = FATAL.get(exit_.status) if exit_.status is not None else None
            why = f"its first worker {exit_}" + (f": {meaning}" if meaning else "")
            self._not_started(why, exit_.status if meaning else None)
        elif worker.failed and worker.identity.generation == self._generation:
            lived = now - worker.started if worker.ready else 0.0
            self._respawn.failed(worker.identity.number, lived, now)
            self._give_up_on_crash_loop()

    def _reopen(self) -> None:
        self._reopen_logs()
        for worker in self._workers:
            worker.tell(reopen=True)

    def _clean_up(self) -> None:
        """Release the leases of dead workers by a cleaner, if no further worker will be started."""
        no_followers = self._stopping_since is not None or self._paused
        if no_followers and not self._workers and self._spec is not None:
            self._workers.clean_up(self._generation, self._spec)

    # --- generations -----------------------------------------------------------------

    def _restart(self) -> None:
        """Start the next generation's canary, if a restart is wanted and few generations drain."""
        now = self._clock.monotonic()
        if not self._restart_wanted or self._canary or not self._respawn.allowed(0, now):
            return
        generations = {worker.identity.generation for worker in self._workers}
        if sum(generation < self._generation for generation in generations) >= _MOST_DRAINING:
            return
        self._restart_wanted = False
        self._can_start(self._spawn_canary)

    def _spawn_canary(self) -> None:
        spec = self._read_spec(None)
        self._canary = self._workers.spawn(0, self._generation + 1, spec)

    def _can_start(self, step: Callable[[], object]) -> bool:
        """Call a function that starts a generation; return whether it succeeded."""
        try:
            step()
        except SpecError as error:
            self._not_started(str(error), error.status)
        except OSError as error:
            self._not_started(str(error), None)
        except Exception as error:  # noqa: BLE001  # see `run`
            _log.exception("a fault in the master")
            self._not_started(repr(error), CRASHED)
        else:
            return True
        return False

    def _promote(self, canary: WorkerChild, reported: Mapping[str, Any] | None) -> bool:
        """Make the canary's generation the present one, and drain the workers of older ones.

        Returns:
            False if the settings that the canary has reported cannot be used.
        """
        self._canary = None
        if reported and not self._can_start(lambda: canary.belongs_to(self._read_spec(reported))):
            return False
        self._spec = canary.spec
        self._generation = canary.identity.generation
        self._respawn.forget()
        self._status.problem = None
        for worker in self._workers:
            if worker.identity.generation < self._generation and not worker.draining:
                self._try(worker.drain, None, self._clock.monotonic())
        self._try(self._spec.adopt)
        _log.info("generation %d serves, %d workers", self._generation, self._spec.processors)
        return True

    def _not_started(self, why: str, status: int | None) -> None:
        """Log that a generation could not be started. The generation before it continues.

        If there is no earlier generation, try again later or give up.

        Args:
            why: the reason, for the log and for ``psched status``.
            status: the exit status if another try would fail, too; None: another try may succeed.
        """
        # End a pause that was requested for this generation: the next try is not paused.
        self._paused_until = min(self._paused_until, self._generation)
        if self._spec is not None:
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
            self._give_up_on_crash_loop()

    # --- a pause ---------------------------------------------------------------------

    @property
    def _paused(self) -> bool:
        return self._generation <= self._paused_until

    def _pause(self) -> None:
        """Stop the start of tasks in this generation and in a canary's that will replace it."""
        _log.info("paused: no task is started until the next restart")
        self._paused_until = self._generation + (self._canary is not None)
        for worker in self._workers:
            worker.tell(pause=True)

    # --- the number of workers -------------------------------------------------------

    @property
    def _wanted(self) -> int:
        return 0 if self._spec is None else max(0, self._spec.processors + self._more)

    def _fill(self) -> None:
        """Start or drain workers to reach the wanted number; during a pause, start none."""
        if self._spec is None:
            return
        self._more = max(self._more, -self._spec.processors)
        now = self._clock.monotonic()
        serving = self._workers.serving(self._generation)
        for number in range(0 if self._paused else self._wanted):
            if number not in serving and self._respawn.allowed(number, now):
                try:
                    self._workers.spawn(number, self._generation, self._spec)
                except OSError as error:
                    self._fork_outage.failed(error)
                    self._respawn.refused(number, now)
        self._fork_outage.passed()
        for number, worker in serving.items():
            if number >= self._wanted:
                worker.drain(None, now)

    def _give_up_on_crash_loop(self) -> None:
        if self._respawn.is_crash_loop(max(1, self._wanted)):
            _log.error("every worker has died again and again: giving up")
            self._give_up(CRASHED)

    # --- the end ---------------------------------------------------------------------

    def _give_up(self, status: int) -> None:
        self._exit_status = status
        self._stop((signal.SIGTERM,))

    def _stop(self, arrived: Collection[signal.Signals]) -> None:
        now = self._clock.monotonic()
        if self._stopping_since is None:
            self._stopping_since, self._last_kill, self._canary = now, now, None
            _log.info("stopping: running tasks may finish")
            for worker in self._workers:
                self._try(worker.shut_down, worker.spec.graceful_timeout, now)
        elif signal.SIGQUIT in arrived or (
            signal.SIGINT in arrived and now - self._stopping_since >= _SAME_KEY_PRESS
        ):
            _log.info("stopping at once: running tasks are stopped and released")
            for worker in self._workers:
                self._try(partial(worker.shut_down, 0, now, hurry=True))
        self._last_kill = max((worker.killed_at for worker in self._workers), default=now)

    # --- its status ------------------------------------------------------------------

    def _show(self) -> None:
        """Publish the master's status, and note when the next tick is due."""
        about = {} if self._spec is None else self._spec.about
        shown = self._status.show(
            self._state, self._generation, self._workers, until=self._last_kill, about=about
        )
        again = self._respawn.wakes(self._clock.monotonic())
        self._wakes = min(shown, self._workers.wakes, again)

    @property
    def _state(self) -> MasterState:
        if self._stopping_since is not None:
            return MasterState.STOPPING
        if self._paused:
            return MasterState.PAUSED
        if not self._has_served:
            return MasterState.STARTING
        if self._canary or self._restart_wanted:
            return MasterState.RELOADING
        return MasterState.SERVING

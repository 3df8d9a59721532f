"""The master: a loop that acts on signals, on exits of workers and on timeouts.

The master only manages processes. It reads no schedules and has no connection to the database.

A generation is a set of workers that use one reading of the configuration and of the handler code.
A running process never reloads code. A restart first starts one worker of the next generation, the
canary. Once the canary is ready, the other workers of the next generation are started, and the old
workers drain: they claim no more tasks, finish the tasks that they run, and exit. If the canary
fails, for example because a file is broken, the old generation continues.

The states of a master whose generation has the number g::

    booting ─── canary ready ──▶ serving ◀── canary ready: old workers told to drain ──┐
       │                           │  └───── HUP, USR1 ─▶ reloading: a canary of g+1 ──┤
       │ canary fails              │                                                   │
       ▼                           │               canary fails: generation g continues ┘
     exit 65, 78                   ▼
                  TERM, INT, QUIT ─▶ stopping ─ second INT, QUIT ─▶ at once ─ all exited ─▶ exit 0

Signals::

    TERM, INT   stop: the workers claim no more tasks. Running tasks have ``graceful_timeout``
                seconds to finish. Then they are stopped and their leases are released. The exit
                status is 0. A second INT, at least 1 s later, stops the running tasks at once.
    QUIT        stop, like TERM; if a stop has already begun, stop the running tasks at once
    HUP, USR1   restart: start a new generation of workers; the old workers drain. HUP stops the
                master, like TERM, if its terminal was closed (see `psched.master.terminal`)
    USR2        reopen the log files, without a restart
    TTIN, TTOU  run one worker more, or one fewer
    WINCH       start no more tasks until the next restart (ignored on a terminal)

A stop cannot be cancelled. CONT does not cancel it, because service managers send CONT after TERM.
The master does not ignore CHLD, because the kernel would then discard the exit statuses of the
children.

If the master dies, its workers notice that their connections to the master are closed. The workers
then kill their tasks, release the leases and exit, and a service manager starts the next master.
Because every running task is killed in this case, an error in the master's own code must not end
the master; see `Master.run`.
"""

import logging
import signal
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from psched.base.clock import Clock
from psched.base.fault_log import FaultLog
from psched.master.generation_spec import GenerationSpec, ReadSpec, SpecError
from psched.master.monitor_child import MonitorKeeper
from psched.master.reports.health import MasterState
from psched.master.reports.status import Status
from psched.master.terminal import StopNotice, Terminal
from psched.master.waking import Looks
from psched.master.worker_child import WorkerChild
from psched.master.workers import Respawn, Workers
from psched.process.signals import SignalInbox

_log = logging.getLogger("psched.master")

CRASHED = 70
"""Exit status: workers crash repeatedly, or psched has a bug (EX_SOFTWARE in sysexits.h)."""

_STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}
_RESTART = {signal.SIGHUP, signal.SIGUSR1}

_MOST_DRAINING = 2
"""The most old generations whose workers are allowed to finish their tasks at the same time. A
further restart waits until all workers of one of these generations have exited."""

_TICK = 4.0  # the most seconds between two calls of `Master.tick`

_KILL_GRACE = 5.0
"""If a fault in the master keeps a stop from completing, `Master.run` returns this many seconds
after the time at which the last worker should have been killed."""

_FAULT_PAUSE = 1.0
"""Seconds between two calls of `Master.tick` if the first has caught an unforeseen exception."""


class Master:
    """Starts workers and replaces dead ones until a signal stops the master.

    A master process calls `run`, which loops until the master has stopped. A test or a simulation
    calls `tick` and `obey` instead; see `psched.testing.MasterDriver`.
    """

    def __init__(
        self,
        read_spec: ReadSpec,  # reads the configuration; called at every restart
        workers: Workers,
        *,
        clock: Clock,
        respawn: Respawn,
        reopen_logs: Callable[[], None],  # reopens the log files; called on USR2, HUP and USR1
        status: Status,
        terminal: Terminal,
        monitor: MonitorKeeper,
        looks: Looks,
    ) -> None:
        self._read_spec = read_spec
        self._workers = workers
        self._clock = clock
        self._respawn = respawn
        self._reopen_logs = reopen_logs
        self._status = status
        self._terminal = terminal
        self._monitor = monitor
        self._looks = looks
        self._notice = StopNotice(workers, terminal, clock)

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
        """Call `tick` and `obey` until a signal has stopped the master; return the exit status.

        An unforeseen exception is a fault in psched, but it does not end the master. It ends only
        that step of `tick` which has raised it. Each different fault is logged once, with its
        traceback. After a fault, the master sleeps for a second or until a signal arrives; messages
        do not wake it. So a fault in every tick neither fills the log nor keeps a processor busy.

        If a fault keeps a stop from completing, `run` returns `CRASHED` shortly after the time at
        which the last worker should have been killed. The master then exits. The remaining workers
        read the end of the stream on their links, release their leases and exit.

        A fault during the start of a generation is treated like a broken configuration: the old
        generation continues. If there is no old generation, `run` returns `CRASHED`.
        """
        while True:
            timeout = self.tick()
            if self.has_stopped:
                return self.close()
            self.obey(self._wait(inbox, timeout))

    def tick(self) -> float:
        """Do what is due for the workers; return the seconds until `tick` must be called again."""
        self._fault = False
        self._try(self._receive)
        self._try(self._reap)
        self._try(self._watch)
        self._try(self._workers.recover)
        self._try(self._looks.step, self._spec)
        if self._stopping_since is None:
            self._try(self._restart)
            self._try(self._fill)
        self._try(self._clean_up)
        self._try(self._monitor.step, self._generation, self._spec, self._state)
        self._try(self._show)
        self._try(self._terminal.look if self._stopping_since is None else self._notice.step)
        if not self._fault:
            self._faults.passed()
        now = self._clock.monotonic()
        wakes = now + _FAULT_PAUSE if self._fault else min(self._wakes, now + _TICK)
        self._workers.due = max(now, wakes)
        return max(0.0, wakes - now)

    @property
    def has_stopped(self) -> bool:
        """Whether a stop has been requested and `run` must return.

        It must return when no worker is left, or when a fault in the master still keeps the stop
        from completing `_KILL_GRACE` seconds after the last worker should have been killed.
        """
        if self._stopping_since is None:
            return False
        if not self._workers and not self._monitor.keeps_from_stopping:
            return True
        return self._faults.ongoing and self._clock.monotonic() > self._last_kill + _KILL_GRACE

    def close(self) -> int:
        """Remove the sockets after a stop; return the exit status of the master."""
        self._try(self._status.close)
        self._try(self._looks.close)
        if self._workers:
            _log.critical("a fault has kept the stop from completing: workers are left behind")
            return CRASHED
        _log.info("stopped")
        return self._exit_status

    def obey(self, arrived: Collection[signal.Signals]) -> None:
        """Act on signals; in a stop, only on those that stop the master or reopen the logs."""
        arrived = self._terminal.translate(arrived)
        if not _STOP.isdisjoint(arrived):
            self._try(self._stop, arrived)
        if signal.SIGUSR2 in arrived or not _RESTART.isdisjoint(arrived):
            self._try(self._reopen)
        if self._stopping_since is not None:
            return
        if not _RESTART.isdisjoint(arrived):
            _log.info("restart asked for")
            self._restart_wanted = True
        if change := (signal.SIGTTIN in arrived) - (signal.SIGTTOU in arrived):
            self._more += change
            _log.info("TTIN: one worker more" if change > 0 else "TTOU: one worker fewer")
        if signal.SIGWINCH in arrived and not self._terminal.has_window:
            self._try(self._pause)

    def _try(self, step: Callable[..., object], *arguments: object) -> None:
        """Call ``step``. If it raises an exception, log the exception and return."""
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001  # no exception is allowed to end the master
            self._fault = True
            self._faults.failed(error)

    def _wait(self, inbox: SignalInbox, timeout: float) -> Collection[signal.Signals]:
        """Sleep until a signal or message arrives or ``timeout`` seconds pass; return signals."""
        try:
            if self._fault:  # messages do not wake the master; see `run`
                return inbox.wait(timeout)
            links = [w.link for w in self._workers] + self._monitor.links
            return inbox.wait(timeout, [*links, *self._status.links, *self._looks.links])
        except Exception as error:  # noqa: BLE001
            self._faults.failed(error)
            self._clock.sleep(_FAULT_PAUSE)
            return inbox.take()

    # --- workers ---------------------------------------------------------------------

    def _receive(self) -> None:
        for worker in self._workers:
            # Each worker by itself: if an exception at one worker's messages left those of others
            # unread, the master would kill the others, because they seem silent.
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
            self._try(self._monitor.worker_ended, worker)
            self._try(self._ended, worker)

    def _handle(self, worker: WorkerChild, message: Mapping[str, Any]) -> None:
        """Act on a worker's message."""
        worker.heard_from(message, self._clock.monotonic())
        # Ignore "ready" if the worker has died after sending it.
        if "ready" in message and not worker.ready and worker.exit is None:
            # The worker must work even if its nonce cannot be recorded.
            self._try(self._workers.became_ready, worker)
            # The worker waits for this answer before it claims tasks. If the master has already
            # told it to stop, it reads that message before this answer and claims no task.
            if worker is not self._canary or self._promote(worker, message["ready"]):
                worker.admit()
            else:
                worker.refuse()
        if "looked" in message:
            self._has_served = True
        if message.get("enough") and not self._paused and self._workers.may_be_replaced(worker):
            _log.info("%s %s: another takes its place", worker.identity, message["enough"])
            worker.drain(None, worker.heard)
        self._looks.heard(message)
        self._monitor.heard(worker, message)
        self._status.relay(message, worker)
        if "recovered" in message:
            self._workers.recovered(worker, message["recovered"])

    def _ended(self, worker: WorkerChild) -> None:
        """Act on the exit of a worker, unless the master stops.

        If the worker was the canary, its generation could not be started. If another worker has
        failed, the failure is counted.
        """
        exit_, now = worker.exit, self._clock.monotonic()
        if exit_ is None or self._stopping_since is not None:
            return
        if worker is self._canary:
            self._canary = None
            self._not_started(*worker.why_not_started)
        elif worker.failed and worker.identity.generation == self._generation:
            lived = now - worker.started if worker.ready else 0.0
            self._respawn.failed(worker.identity.number, lived, now)
            self._give_up_on_crash_loop()

    def _reopen(self) -> None:
        self._reopen_logs()
        self._try(self._monitor.reopen_log)
        for worker in self._workers:
            worker.tell(reopen=True)

    def _clean_up(self) -> None:
        """Fork a cleaner for leases of dead workers if no worker lives and none will follow."""
        no_followers = self._stopping_since is not None or self._paused
        if no_followers and not self._workers and self._spec is not None:
            self._workers.clean_up(self._generation, self._spec)

    # --- generations -----------------------------------------------------------------

    def _restart(self) -> None:
        """Start the next canary if a restart was requested, and no start or drain is in its way."""
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
        """Call ``step``, which starts a generation; return False if it has raised an exception."""
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
        """Make the canary's generation the present one, if its settings can be used."""
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
        _log.info("generation %d serves, %d workers", self._generation, self._wanted)
        return True

    def _not_started(self, why: str, status: int | None) -> None:
        """Log that a generation could not be started. The generation before it continues.

        If there is no earlier generation, try again later, or stop the master if another try would
        fail for the same reason.
        """
        # End a pause by WINCH in the failed generation: it must not pause the next try.
        self._paused_until = min(self._paused_until, self._generation)
        if self._spec is not None:
            _log.error(
                "generation %d could not be started: %s; generation %d goes on",
                self._generation + 1, why, self._generation,
            )  # fmt: skip
            self._status.problem = why
        elif status is not None:
            _log.error("cannot start: %s", why)
            self._status.failure = why
            self._give_up(status)
        else:
            _log.error("cannot start yet: %s", why)
            self._respawn.failed(0, 0.0, self._clock.monotonic())
            self._restart_wanted = True
            self._give_up_on_crash_loop()

    # --- the pause of WINCH ----------------------------------------------------------

    @property
    def _paused(self) -> bool:
        return self._generation <= self._paused_until

    def _pause(self) -> None:
        """Let no more tasks start in this generation, nor in that of a canary that is starting."""
        _log.info("paused: no task is started until the next restart")
        self._paused_until = self._generation + (self._canary is not None)
        for worker in self._workers:
            worker.tell(pause=True)

    # --- the number of workers -------------------------------------------------------

    @property
    def _wanted(self) -> int:
        return 0 if self._spec is None else max(0, self._spec.processors + self._more)

    def _fill(self) -> None:
        """Start missing workers, unless there is a pause, and drain those that are too many."""
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
            self._status.failure = "every worker has died again and again; the log says why"
            self._give_up(CRASHED)

    # --- stopping --------------------------------------------------------------------

    def _give_up(self, status: int) -> None:
        self._exit_status = status
        self._stop((signal.SIGTERM,))

    def _stop(self, arrived: Collection[signal.Signals]) -> None:
        now = self._clock.monotonic()
        if self._stopping_since is None:
            self._stopping_since, self._last_kill, self._canary = now, now, None
            self._try(self._notice.begin)
            for worker in self._workers:
                self._try(worker.shut_down, worker.spec.graceful_timeout, now)
        elif self._notice.hurries(arrived):
            for worker in self._workers:
                self._try(partial(worker.shut_down, 0, now, hurry=True))
        self._last_kill = max((worker.killed_at for worker in self._workers), default=now)

    # --- the status ------------------------------------------------------------------

    def _show(self) -> None:
        """Publish the master's status, and note when `tick` must be called again."""
        about = {} if self._spec is None else self._spec.about
        shown = self._status.show(
            self._state, self._generation, self._workers, until=self._last_kill, about=about
        )
        wakes = [each.wakes for each in (self._workers, self._monitor, self._looks)]
        self._wakes = min(shown, *wakes, self._respawn.wakes(self._clock.monotonic()))

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

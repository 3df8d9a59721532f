"""Stops tasks at time limits and before their leases end, even if the store does not answer."""

import logging
import signal
from collections.abc import Iterable
from math import inf
from typing import Protocol

from psched.base.clock import Clock
from psched.config import Config
from psched.process.child import KillLadder
from psched.runner.runner_pool import RunnerPool
from psched.runner.stop_flags import Reason
from psched.worker.running_task import RunningTask

IMMEDIATE = 2.0
"""Seconds from TERM to KILL if the master orders an immediate stop."""

_LONGEST_EXIT = 5.0
"""If a runner must exit after its task has ended, it is killed after this many seconds."""


class KillTimer(Protocol):
    """Kills this process at the time that was set; see `psched.process.deadman.DeadMan`."""

    def set(self, at: float | None) -> None:
        """Set the time at which this process is killed, in seconds of the boot-time clock.

        None switches the timer off.
        """
        ...

    def hasten(self, at: float) -> None:
        """Set the time at which this process is killed, unless an earlier time is set already."""
        ...


class TaskGuard:
    """Stops each task at its time limit, and before another worker can claim its row.

    Args:
        settings: contain the time limits.
        pool: kills the runners.
        clock: measures when a signal is due.
        deadman: kills this process if `watch` is not called in time.
    """

    def __init__(
        self, settings: Config, *, pool: RunnerPool, clock: Clock, deadman: KillTimer
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._clock = clock
        self._deadman = deadman

    def begin(self, task: RunningTask) -> None:
        """Make sure that ``deadman`` fires in time for a task that is about to be started."""
        self._deadman.hasten(task.deadlines.deadman)

    def watch(self, tasks: Iterable[RunningTask]) -> float:
        """Send the signals that are due, and set the timer that kills this process if it hangs.

        Call this at the returned time, and before every call that can block for long: a request to
        the store, or a fork.

        Returns:
            When the next signal is due, seconds of the monotonic clock.
        """
        mono, boot = self._clock.monotonic(), self._clock.boottime()
        running = [task for task in tasks if not task.empty]
        wakes = inf
        for task in running:
            self._limit(task, mono)
            self._guard_lease(task, boot)
            # The clock is read again, because the calls above can begin a stop whose first signal
            # is due now, which is later than ``mono``.
            self._climb(task, self._clock.monotonic())
            wakes = min(wakes, self._wakes(task, mono, boot))
        # Tasks whose processes do not die on KILL are not counted: this process need not be killed
        # because of such a task, because its death would not end the task either.
        deadmen = [task.deadlines.deadman for task in running if not task.runner.stuck]
        self._deadman.set(min(deadmen, default=None))
        return wakes

    def stop(self, task: RunningTask, reason: Reason, limit: float | None = None) -> None:
        """Begin to stop a task; if the task is being stopped already, bring its KILL forward."""
        now, settings = self._clock.monotonic(), self._settings
        limit = settings.graceful_kill_limit if limit is None else limit
        if task.ladder is not None:
            task.ladder.hasten(now, limit)
            return
        if limit and not task.over:
            task.log("stopping it: %s", reason.name.lower(), level=logging.WARNING)
        task.stop(reason, KillLadder(now, task.definition.settings.kill_interval, limit))

    def _limit(self, task: RunningTask, mono: float) -> None:
        limit = task.definition.settings.kill_timeout
        if limit and task.ladder is None and not task.over and mono >= task.started + limit:
            self.stop(task, Reason.TIMEOUT)
        if not task.begun and mono >= task.started + self._settings.start_timeout:
            # A runner that has not begun its task by now is killed, because it might hang in a
            # function that was registered with os.register_at_fork.
            if not (task.over or task.runner.stop_flags.begun):
                task.log("killing it: its process does not begin", level=logging.ERROR)
                self._pool.kill(task.runner)
            task.taken_up()

    def _guard_lease(self, task: RunningTask, boot: float) -> None:
        """Kill the task before its lease can be granted to another worker."""
        deadlines = task.deadlines
        if task.is_lost or boot >= deadlines.kill:
            self.stop(task, Reason.LEASE, 0)
        elif boot >= deadlines.warn:
            self.stop(task, Reason.LEASE, deadlines.kill - boot)

    def _climb(self, task: RunningTask, mono: float) -> None:
        """Send the signal that is due on the task's kill ladder."""
        if task.over and task.runner.exit is None and mono >= task.ended + _LONGEST_EXIT:
            self._pool.kill(task.runner)
        if task.ladder is None:
            return
        killing = task.ladder.killing
        if (number := task.ladder.due(mono)) is None:
            return
        if number is signal.SIGKILL:
            if not killing:
                self._log_kill(task)
            self._pool.kill(task.runner)
        elif not task.over:
            task.runner.send(number)

    def _log_kill(self, task: RunningTask) -> None:
        """Log the first KILL of a task, if the lease is the reason.

        A ladder that the lease began says KILL at the end of the lease, too, and can be due
        before `_guard_lease` notices the end: the clocks are read one after the other, and rounded.
        """
        if task.is_lost:
            what = "its lease is lost" if task.lost else "its schedule is not held any more"
            task.log(f"killing it: {what}", level=logging.ERROR)
        elif task.stopping is Reason.LEASE or self._clock.boottime() >= task.deadlines.kill:
            task.log("killing it: its lease could not be extended", level=logging.ERROR)

    def _wakes(self, task: RunningTask, mono: float, boot: float) -> float:
        limit = task.definition.settings.kill_timeout
        deadlines = task.deadlines
        moments = [mono + deadline - boot for deadline in (deadlines.warn, deadlines.kill)]
        if task.ladder is not None:
            moments.append(task.ladder.wakes)
        elif limit:
            moments.append(task.started + limit)
        if task.over:
            moments.append(task.ended + _LONGEST_EXIT)
        if not task.begun:
            moments.append(task.started + self._settings.start_timeout)
        return min((moment for moment in moments if moment > mono), default=mono + 1)

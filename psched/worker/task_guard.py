"""What must happen to running tasks whether or not the store answers: limits, ladders, fences."""

import logging
import signal
from collections.abc import Iterable

from psched.base.clock import Clock
from psched.config import Config
from psched.process.deadman import DeadMan
from psched.process.kill_ladder import KillLadder
from psched.runner.forking_pool import RunnerPool
from psched.runner.stop_flags import Reason
from psched.worker.running_task import RunningTask, tell

IMMEDIATE = 2.0
"""Seconds from TERM to KILL when everything is to end at once."""

_LEAVING = 5.0
"""Seconds that a runner may take to exit after its last task."""

_NEVER = float("inf")


class TaskGuard:
    """Stops tasks at their time limit, and before their lease can be another's.

    Args:
        settings: the installation's.
        runners: where the tasks run.
        clock: this host's clocks.
        deadman: kills this process if `watch` is not called in time.
    """

    def __init__(
        self, settings: Config, *, runners: RunnerPool, clock: Clock, deadman: DeadMan
    ) -> None:
        self._settings = settings
        self._runners = runners
        self._clock = clock
        self._deadman = deadman

    def begin(self, slot: RunningTask) -> None:
        """A task begins: nothing runs unguarded, not even for an instant."""
        self._deadman.hasten(slot.deadlines.deadman)

    def watch(self, slots: Iterable[RunningTask]) -> float:
        """Send the signals that are due.

        Returns:
            When to call again, seconds of the monotonic clock; to be called besides before each
            request to the store, which may hold the caller up for a driver timeout.
        """
        mono, boot = self._clock.monotonic(), self._clock.boottime()
        running = [slot for slot in slots if not slot.empty]
        wakes = _NEVER
        for slot in running:
            self._limit(slot, mono)
            self._fence(slot, boot)
            # By the clock as it is now: what is to be killed at once does not wait for a next tick.
            self._climb(slot, self._clock.monotonic())
            wakes = min(wakes, self._wakes(slot, mono, boot))
        # Where KILL does not help, the end of this process would not either.
        deadmen = [slot.deadlines.deadman for slot in running if not slot.runner.stuck]
        self._deadman.set(min(deadmen, default=None))
        return wakes

    def stop(self, slot: RunningTask, reason: Reason, limit: float | None = None) -> None:
        """Begin to take a task down.

        Args:
            slot: the task's.
            reason: what it is told.
            limit: seconds until KILL; default: ``graceful_kill_limit``.
        """
        now, settings = self._clock.monotonic(), self._settings
        limit = settings.graceful_kill_limit if limit is None else limit
        if slot.ladder is not None:
            slot.ladder.hasten(now, limit)
            return
        if limit and not slot.over:
            tell(slot, "stopping it: %s", reason.name.lower(), level=logging.WARNING)
        slot.stop(reason, KillLadder(now, slot.definition.settings.kill_interval, limit))

    def _limit(self, slot: RunningTask, mono: float) -> None:
        limit = slot.definition.settings.kill_timeout
        if limit and slot.ladder is None and not slot.over and mono >= slot.started + limit:
            self.stop(slot, Reason.TIMEOUT)
        if not slot.begun and mono >= slot.started + self._settings.start_timeout:
            # It hangs in what somebody has registered with os.register_at_fork, say.
            if not (slot.over or slot.runner.stop_flags.begun):
                tell(slot, "killing it: its process does not begin", level=logging.ERROR)
                self._runners.kill(slot.runner)
            slot.begun = True

    def _fence(self, slot: RunningTask, boot: float) -> None:
        """Nothing of a task may run when its lease can be granted to another."""
        if slot.lost or boot >= slot.deadlines.kill:
            if slot.ladder is None or not slot.ladder.killing:
                why = "its lease is lost" if slot.lost else "its lease could not be extended"
                tell(slot, "killing it: %s", why, level=logging.ERROR)
            self.stop(slot, Reason.LEASE, 0)
        elif boot >= slot.deadlines.warn:
            self.stop(slot, Reason.LEASE, slot.deadlines.kill - boot)

    def _climb(self, slot: RunningTask, mono: float) -> None:
        if slot.over and slot.runner.exit is None and mono >= slot.ended + _LEAVING:
            self._runners.kill(slot.runner)
        if slot.ladder is None or (number := slot.ladder.due(mono)) is None:
            return
        if number is signal.SIGKILL:
            self._runners.kill(slot.runner)
        elif not slot.over:
            slot.runner.send(number)

    def _wakes(self, slot: RunningTask, mono: float, boot: float) -> float:
        limit = slot.definition.settings.kill_timeout
        moments = [
            mono + deadline - boot for deadline in (slot.deadlines.warn, slot.deadlines.kill)
        ]
        if slot.ladder is not None:
            moments.append(slot.ladder.wakes)
        elif limit:
            moments.append(slot.started + limit)
        if slot.over:
            moments.append(slot.ended + _LEAVING)
        if not slot.begun:
            moments.append(slot.started + self._settings.start_timeout)
        return min((moment for moment in moments if moment > mono), default=mono + 1)

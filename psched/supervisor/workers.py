"""The master's children: a plain table, and what can happen to a row of it."""

import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence

from psched.clock import Clock
from psched.supervisor import tree
from psched.supervisor.blueprint import CLEANER, DRAINED, Blueprint, Place
from psched.supervisor.child import Child, reap
from psched.supervisor.kill import Ladder
from psched.supervisor.link import Link
from psched.supervisor.spawn import spawn

_log = logging.getLogger("psched.master")

_ABORT_GRACE = 2.0
"""Seconds that a silent worker has to write down its stack before it is killed."""

_CLEAN_UP_LIMIT = 20.0
"""Seconds that a shutdown spends on the leases of dead workers."""


class WorkerChild(Child):
    """A worker as the master sees it.

    Attributes:
        place: where it stands.
        blueprint: what it was made of.
        leaving: it has been told to go.
        recovering: nonces of dead workers whose leases it is releasing.
    """

    def __init__(
        self, pid: int, link: Link, now: float, place: Place, blueprint: Blueprint
    ) -> None:
        super().__init__(pid, link, now)
        self.place = place
        self.blueprint = blueprint
        self.leaving = False
        self.recovering: list[str] = []

    @property
    def failed(self) -> bool:
        """It has ended, and nobody had asked it to."""
        if self.exit is None:
            return False
        return self.exit.status != DRAINED or not (self.ready or self.leaving)

    def tell(self, **message: object) -> None:
        """Send it a message."""
        self.link.send(message)

    def leave(self, timeout: float | None, now: float) -> None:
        """Tell it to claim no more and to exit when its tasks are done.

        Args:
            timeout: seconds until it takes its tasks down; None: it waits for them.
            now: seconds of the monotonic clock.
        """
        self.leaving = True
        self.tell(stop=timeout)
        if timeout is not None:
            # It works down the same limits itself; this is for one that does not.
            limit = timeout + self.blueprint.kill_limit + _CLEAN_UP_LIMIT
            if self.ladder is None:
                self.ladder = Ladder(now + limit, 1.0, 0)
            else:
                self.ladder.hasten(now, limit)

    def dismiss(self, timeout: float, now: float) -> None:
        """Have it go, at a shutdown; see `leave`."""
        if self.ready:
            self.leave(timeout, now)
        else:
            # It holds nothing yet, and may be deep in an import.
            self.leaving = True
            self.send(signal.SIGKILL)


class Workers:
    """All workers of all generations that are alive, and what the dead ones left behind.

    Args:
        clock: this host's clocks.
        draw_nonce: draws a text never drawn before.
        keep: the descriptors that workers need: open log files.
    """

    def __init__(
        self, clock: Clock, draw_nonce: Callable[[], str], keep: Callable[[], Sequence[int]]
    ) -> None:
        self._clock = clock
        self._draw_nonce = draw_nonce
        self._keep = keep
        self._by_pid: dict[int, WorkerChild] = {}
        self._dead: list[str] = []

    def __iter__(self) -> Iterator[WorkerChild]:
        return iter([*self._by_pid.values()])

    def __len__(self) -> int:
        return len(self._by_pid)

    def serving(self, generation: int) -> Mapping[int, WorkerChild]:
        """Those of a generation that have not been told to go, by their places."""
        return {
            worker.place.number: worker
            for worker in self
            if worker.place.generation == generation and not worker.leaving
        }

    def spawn(self, number: int, generation: int, blueprint: Blueprint) -> WorkerChild:
        """Fork a worker.

        Raises:
            OSError: the system has no process or memory left.
        """
        place = Place(number, generation, self._draw_nonce())
        pid, link = spawn(lambda link: blueprint.work(link, place), keep=self._keep())
        worker = WorkerChild(pid, link, self._clock.monotonic(), place, blueprint)
        self._by_pid[pid] = worker
        _log.info("%s started, pid %d", place, pid)
        return worker

    def reap(self) -> list[WorkerChild]:
        """Collect the workers that have ended; what they have left running is killed."""
        ended = []
        for exit_ in reap():
            worker = self._by_pid.pop(exit_.pid, None)
            if worker is None:
                continue  # an orphan of a worker that died before
            worker.reaped(exit_)
            ended.append(worker)
            self._dead += worker.recovering
            if exit_.status != DRAINED and worker.ready:
                self._dead.append(worker.place.nonce)
            expected = exit_.status == DRAINED or worker.leaving
            level = logging.INFO if expected else logging.ERROR
            _log.log(level, "%s, pid %d, %s", worker.place, exit_.pid, exit_)
        if any(worker.exit is not None and worker.exit.status != DRAINED for worker in ended):
            # Its runners have died with it; what those had forked has come to us.
            tree.kill_all_below(os.getpid(), frozenset(self._by_pid))
        return ended

    def recover(self) -> None:
        """Have a living worker release what dead ones still hold."""
        ready = [worker for worker in self if worker.ready]
        if self._dead and ready:
            # Any will do; one that stays is more likely to get it done.
            worker = min(ready, key=lambda worker: (worker.leaving, len(worker.recovering)))
            worker.tell(recover=self._dead)
            worker.recovering += self._dead
            self._dead = []

    def recovered(self, worker: WorkerChild, nonces: Sequence[str]) -> None:
        """A worker reports that it has released what these held."""
        worker.recovering = [nonce for nonce in worker.recovering if nonce not in nonces]

    def clean_up(self, blueprint: Blueprint, generation: int) -> None:
        """Fork a process for what dead workers still hold, when no worker is left to do it."""
        nonces, self._dead = self._dead, []
        if not nonces:
            return
        place = Place(CLEANER, generation, self._draw_nonce())
        pid, link = spawn(lambda link: blueprint.clean_up(link, place, nonces), keep=self._keep())
        worker = WorkerChild(pid, link, self._clock.monotonic(), place, blueprint)
        worker.leaving = True
        worker.ladder = Ladder(worker.started + _CLEAN_UP_LIMIT, 1.0, 0)
        self._by_pid[pid] = worker

    def watch(self) -> None:
        """Stop workers that are not ready in time, or silent, or overdue."""
        now = self._clock.monotonic()
        for worker in self:
            since = worker.heard if worker.ready else worker.started
            limit = (
                worker.blueprint.heartbeat_limit if worker.ready else worker.blueprint.start_timeout
            )
            if worker.ladder is None and now - since > limit:
                what = "silent" if worker.ready else "not ready"
                _log.error(
                    "%s, pid %d, %s for %.0f s: killed", worker.place, worker.pid, what, limit
                )
                # Its stack, by faulthandler, tells what it hangs in.
                worker.send(signal.SIGABRT)
                worker.ladder = Ladder(now + _ABORT_GRACE, 1.0, 0)
            if worker.ladder is not None and (number := worker.ladder.due(now)) is not None:
                worker.send(number)

    @property
    def wakes(self) -> float:
        """When `watch` is to be called again, seconds of the monotonic clock."""
        return min((w.ladder.wakes for w in self if w.ladder is not None), default=float("inf"))

"""The master's children: a plain table, and what can happen to a row of it."""

import logging
import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from psched.base.clock import Clock
from psched.base.fault_log import FaultLog
from psched.master.generation_spec import CLEANER, DRAINED, GenerationSpec, Place
from psched.master.nonce_file import NonceFile
from psched.master.worker_child import CLEAN_UP_LIMIT, WorkerChild
from psched.process import tree
from psched.process.cgroup import Cgroup
from psched.process.child import reap
from psched.process.deadman import Deadline
from psched.process.kill_ladder import KillLadder
from psched.process.orphan_reaper import OrphanReaper
from psched.process.spawn import spawn

_log = logging.getLogger("psched.master")

_ABORT_GRACE = 2.0
"""Seconds that a silent worker has to write down its stack before it is killed."""

_STALL = 1.0
"""Seconds by which a look at the workers is late, from which on the master has stood still."""

_RECOVERY = 2.0
"""Seconds that workers are given then, which may have stood still with it, to speak again."""


class Workers:
    """All workers of all generations that are alive, and what the dead ones left behind.

    Args:
        clock: this host's clocks.
        draw_nonce: draws a text never drawn before.
        keep: the descriptors that workers need: open log files.
        cgroup: the master's, below which each worker is given one; None: there is none.
        dead: nonces of workers of a master that was killed, of which nothing is left.
        will: where the nonces are kept, for the master after this.

    Attributes:
        deaths: how many have ended unasked.
        due: when `watch` is to be called next, by its caller; seconds of the monotonic clock.
    """

    def __init__(
        self,
        clock: Clock,
        draw_nonce: Callable[[], str],
        keep: Callable[[], Sequence[int]],
        *,
        cgroup: Cgroup | None,
        dead: Collection[str],
        will: NonceFile,
    ) -> None:
        self._clock = clock
        self._draw_nonce = draw_nonce
        self._keep = keep
        self._by_pid: dict[int, WorkerChild] = {}
        self._cgroup = cgroup
        self._no_cgroups = FaultLog("workers have no cgroups of their own", _log, clock)
        self._remains = OrphanReaper[WorkerChild](clock)
        self._dead = [*dead]
        self._will = will
        self.due = clock.monotonic()
        # Whoever was this process before has started them: they are not a worker's.
        self._spared = frozenset(tree.children(os.getpid()))
        self._owing = {*dead}
        self.deaths = 0

    def __iter__(self) -> Iterator[WorkerChild]:
        return iter([*self._by_pid.values()])

    def __len__(self) -> int:
        return len(self._by_pid)

    def __bool__(self) -> bool:
        """Whether there are any, or anything that dead ones have left and that may yet die."""
        return bool(self._by_pid) or self._remains.younger_than(CLEAN_UP_LIMIT)

    def serving(self, generation: int) -> Mapping[int, WorkerChild]:
        """Those of a generation that have not been told to go, by their places."""
        return {
            worker.place.number: worker
            for worker in self
            if worker.place.generation == generation and not worker.leaving
        }

    def may_be_replaced(self, worker: WorkerChild) -> bool:
        """Whether it is the only one in its place: no more than two work there at a time."""
        place = worker.place.number, worker.place.generation
        there = [w for w in self if (w.place.number, w.place.generation) == place]
        return there == [worker] and not worker.leaving

    def spawn(self, number: int, generation: int, blueprint: GenerationSpec) -> WorkerChild:
        """Fork a worker.

        Raises:
            OSError: the system has no process or memory left.
        """
        nonce = self._draw_nonce()
        self._owing.add(nonce)
        self._will.write(self._owing)
        place = Place(number, generation, nonce, self._cgroup_for(nonce), Deadline())
        try:
            pid, link = spawn(lambda link: blueprint.work(link, place), keep=self._keep())
        except BaseException:
            if place.cgroup is not None:
                place.cgroup.remove()
            self._settled([nonce])
            raise
        worker = WorkerChild(pid, link, self._clock.monotonic(), place, blueprint)
        self._by_pid[pid] = worker
        self._remains.born(worker)
        _log.info("%s started, pid %d", place, pid)
        return worker

    def reap(self) -> list[WorkerChild]:
        """Collect the workers that have ended; what they have left running is killed.

        A dead worker's leases are released only when nothing of its trees is left.
        """
        ended = []
        for exit_ in reap():
            # A pid that has been reaped can be anybody's next.
            self._spared -= {exit_.pid}
            worker = self._by_pid.pop(exit_.pid, None)
            if worker is None:
                continue  # an orphan of a worker that died before
            worker.reaped(exit_)
            ended.append(worker)
            if worker.place.number != CLEANER:
                self._dead += worker.recovering
            elif exit_.status == DRAINED:
                self._settled(worker.recovering)
            self._remains.add(worker, worker.place.cgroup)
            expected = exit_.status == DRAINED or worker.leaving
            self.deaths += worker.ready and not expected
            level = logging.INFO if expected else logging.ERROR
            how = worker.ending(self._clock.boottime())
            _log.log(level, "%s, pid %d, %s", worker.place, exit_.pid, how)
        if ended or self._remains.due:
            # Its fork server and its runners die with it; what those had forked comes to us.
            self._clear()
        return ended

    def _clear(self) -> None:
        """Kill what dead workers have left running."""
        for worker in self._remains.look(self._spared | self._by_pid.keys()):
            if worker.place.cgroup is not None:
                worker.place.cgroup.remove()
            if worker.exit is not None and worker.exit.status != DRAINED and worker.ready:
                self._dead.append(worker.place.nonce)
            else:
                self._settled([worker.place.nonce])
        for worker, what in self._remains.late:
            text = "%s has ended, but what it has started does not die: %s"
            _log.warning(text, worker.place, what)
        self._remains.late.clear()

    def _cgroup_for(self, nonce: str) -> Cgroup | None:
        """Make a worker's cgroup; where that fails, its trees are found by walking."""
        if self._cgroup is None:
            return None
        try:
            made = self._cgroup.below(nonce)
        except OSError as error:
            self._no_cgroups.failed(error)
            return None
        self._no_cgroups.passed()
        return made

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
        done = {*nonces}.intersection(worker.recovering)  # of others it cannot know
        worker.recovering = [nonce for nonce in worker.recovering if nonce not in done]
        self._settled(done)

    def _settled(self, nonces: Collection[str]) -> None:
        """Nothing is held in these names any more."""
        self._owing.difference_update(nonces)
        self._will.write(self._owing)

    def clean_up(self, blueprint: GenerationSpec, generation: int) -> None:
        """Fork a process for what dead workers still hold, when no worker is left to do it."""
        nonces, self._dead = self._dead, []
        if not nonces:
            return
        place = Place(CLEANER, generation, self._draw_nonce())
        try:
            pid, link = spawn(
                lambda link: blueprint.clean_up(link, place, nonces), keep=self._keep()
            )
        except OSError as error:
            _log.error("leases of dead workers are left to run out: cannot fork: %s", error)
            return
        worker = WorkerChild(pid, link, self._clock.monotonic(), place, blueprint)
        worker.leaving, worker.recovering = True, nonces
        worker.ladder = KillLadder(worker.started + CLEAN_UP_LIMIT, 1.0, 0)
        self._by_pid[pid] = worker

    def watch(self) -> None:
        """Stop workers that are not ready in time, or silent, or overdue."""
        now = self._clock.monotonic()
        late = now - self.due
        for worker in self:
            if late > _STALL:
                # Not more than that: on a host where each look is late, who hangs is still found.
                worker.started = min(now, worker.started + late + _RECOVERY)
                worker.heard = min(now, worker.heard + late + _RECOVERY)
            if worker.link.fault is not None and not worker.cut_off:
                worker.cut_off = worker.aborted = True
                text = "%s, pid %d, has sent %s: killed"
                _log.error(text, worker.place, worker.pid, worker.link.fault)
                worker.send(signal.SIGKILL)
            if not worker.aborted and now > worker.expected:
                worker.aborted = True
                what = "silent" if worker.ready else "not ready"
                _log.error(
                    "%s, pid %d, %s for %.0f s: killed",
                    worker.place,
                    worker.pid,
                    what,
                    worker.limit,
                )
                # Its stack, by faulthandler, tells what it hangs in.
                worker.send(signal.SIGABRT)
                worker.ladder = KillLadder(now + _ABORT_GRACE, 1.0, 0)
            if worker.ladder is not None and (number := worker.ladder.due(now)) is not None:
                worker.send(number)

    @property
    def wakes(self) -> float:
        """When `watch` is to be called again, seconds of the monotonic clock."""
        ladders = [worker.ladder.wakes for worker in self if worker.ladder is not None]
        silences = [worker.expected for worker in self if not worker.aborted]
        return min([self._remains.wakes, *ladders, *silences])

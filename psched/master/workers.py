"""The table of the master's workers, and what dead workers have left: processes and leases.

`Respawn` decides when a dead worker is replaced, and when the master gives up replacing workers.
"""

import logging
import random
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import inf

from psched.base.clock import Clock
from psched.base.fault_log import FaultLog
from psched.master.generation_spec import CLEANER, DRAINED, GenerationSpec, WorkerIdentity
from psched.master.leftover_processes import PAUSE
from psched.master.nonce_file import NonceFile
from psched.master.worker_child import CLEAN_UP_LIMIT, WorkerChild
from psched.process.cgroup import Cgroup
from psched.process.child import Exit, OrphanReaper, Spawner
from psched.process.deadman import Deadline
from psched.process.link import Link

_log = logging.getLogger("psched.master")

_STANDSTILL = 1.0
"""Seconds. If `excuse_standstill` is called later than `Workers.due` by more than this, the master
has stood still: it was stopped, or the kernel gave it no processor time."""


class Workers:
    """All living workers of all generations, and the nonces of dead workers.

    A nonce is a random text that identifies a worker in its leases. Once a dead worker and its
    tasks have no process left, the master sends the dead worker's nonce to a living worker, which
    releases the leases. The nonce file contains each nonce from before the worker's first claim
    until its leases are released. If this master is killed, the next master reads that file.
    """

    def __init__(
        self,
        clock: Clock,
        spawner: Spawner,
        *,
        draw_nonce: Callable[[], str],  # never returns the same text again
        keep: Callable[[], Sequence[int]],  # the descriptors of open log files, for the workers
        # The master's cgroup, in which each worker's cgroup is created. None if workers have no
        # cgroups of their own.
        cgroup: Cgroup | None,
        nonce_file: NonceFile,
        inherited: Collection[str],  # of workers without a process, so their leases can be released
        # Kills what tasks of earlier masters leave; returns whether to call it again. None: nothing
        # does.
        search: Callable[[], bool] | None = None,
    ) -> None:
        self._clock = clock
        self._spawner = spawner
        self._draw_nonce = draw_nonce
        self._keep = keep
        self._by_pid: dict[int, WorkerChild] = {}
        self._ended: list[WorkerChild] = []
        self._cgroup = cgroup
        self._cgroup_outage = FaultLog("workers have no cgroups of their own", _log, clock)
        self._orphan_reaper = OrphanReaper[WorkerChild](clock, spawner)
        self._nonce_file = nonce_file
        self._to_recover = [*inherited]
        self._search, self._search_at = search, inf if search is None else 0.0
        # Children that exist already were started before this process executed psched, so they
        # belong to no task. Remember them, so that they are not killed as orphans.
        self._not_ours = spawner.children()
        # Whether there was a monitor, whose hooks can leave processes.
        self._has_hooks = False
        self._helpers: dict[int, Callable[[Exit], object]] = {}
        # When `excuse_standstill` should be called next, in seconds of the monotonic clock. The
        # caller of `excuse_standstill` sets this attribute.
        self.due = clock.monotonic()
        self.deaths = 0  # how many ready workers have exited unexpectedly
        # When the last one of them did, in seconds of the boot-time clock; None if none has.
        self.last_death: float | None = None

    def __iter__(self) -> Iterator[WorkerChild]:
        return iter([*self._by_pid.values()])

    def __len__(self) -> int:
        return len(self._by_pid)

    def __bool__(self) -> bool:
        """Whether a worker is alive, or a worker that died recently has left living processes."""
        return bool(self._by_pid) or self._orphan_reaper.younger_than(CLEAN_UP_LIMIT)

    def serving(self, generation: int) -> Mapping[int, WorkerChild]:
        """The workers of a generation that are not draining; the keys are the worker numbers."""
        return {
            worker.identity.number: worker
            for worker in self
            if worker.identity.generation == generation and not worker.draining
        }

    def may_be_replaced(self, worker: WorkerChild) -> bool:
        """Whether a successor with this worker's number can be started while this worker drains.

        False if this worker is draining already. Also False if another worker of its generation has
        its number, because at most two workers are allowed to have the same number.
        """
        same = worker.identity.number, worker.identity.generation
        found = [w for w in self if (w.identity.number, w.identity.generation) == same]
        return found == [worker] and not worker.draining

    def spawn(self, number: int, generation: int, spec: GenerationSpec) -> WorkerChild:
        """Fork a worker."""
        nonce = self._draw_nonce()
        identity = WorkerIdentity(number, generation, nonce, self._make_cgroup(nonce), Deadline())
        try:
            worker = self._fork(identity, spec, lambda link: spec.work(link, identity))
        except BaseException:
            if identity.cgroup is not None:
                identity.cgroup.remove()
            raise
        _log.info("%s started, pid %d", identity, worker.pid)
        return worker

    def clean_up(self, generation: int, spec: GenerationSpec) -> None:
        """Fork a cleaner if leases of dead workers must be released.

        A cleaner is a process that only releases leases. Call this only if no worker is alive,
        because otherwise `recover` can tell a worker to release the leases.
        """
        nonces, self._to_recover = self._to_recover, []
        if not nonces:
            return
        identity = WorkerIdentity(CLEANER, generation, self._draw_nonce())
        try:
            cleaner = self._fork(identity, spec, lambda link: spec.clean_up(link, identity, nonces))
        except OSError as error:
            _log.error("leases of dead workers are left to run out: cannot fork: %s", error)
            return
        cleaner.has_only_to_clean_up(nonces)

    def _fork(
        self, identity: WorkerIdentity, spec: GenerationSpec, main: Callable[[Link], int]
    ) -> WorkerChild:
        pid, link = self._spawner.spawn(main, keep=self._keep())
        now = self._clock.monotonic()
        worker = WorkerChild(pid, link, now, identity=identity, spec=spec, spawner=self._spawner)
        self._by_pid[pid] = worker
        self._orphan_reaper.born(worker)
        return worker

    def _make_cgroup(self, nonce: str) -> Cgroup | None:
        """Create a cgroup for a worker; return None if the worker must run without a cgroup."""
        if self._cgroup is None:
            return None
        try:
            made = self._cgroup.below(nonce)
        except OSError as error:
            self._cgroup_outage.failed(error)
            return None
        self._cgroup_outage.passed()
        return made

    def spare(self, pid: int, ended: Callable[[Exit], object]) -> None:
        """Let a child alone that is no worker; call this at once after its fork."""
        self._not_ours |= {pid}
        self._helpers[pid] = ended
        self._has_hooks = True

    def became_ready(self, worker: WorkerChild) -> None:
        """Mark a worker as ready, and write its nonce to the nonce file.

        Call this before `WorkerChild.admit`, because a worker takes leases only after that, and its
        nonce must be in the file before.
        """
        worker.became_ready()
        cgroup = worker.identity.cgroup
        # Check whether the worker is in its cgroup, because the worker itself has to enter the
        # cgroup before it is ready, and this might have failed.
        own_cgroup = cgroup is not None and worker.pid in cgroup.members
        self._nonce_file.add(worker.identity.nonce, own_cgroup=own_cgroup)

    def reap(self) -> list[WorkerChild]:
        """Return the workers that have exited, and KILL the processes that they have left."""
        is_left = False
        for exit_ in self._spawner.reap():
            is_helper = exit_.pid in self._not_ours
            # Forget the pid, because the kernel can give it to another process from now on.
            self._not_ours -= {exit_.pid}
            if (tell := self._helpers.pop(exit_.pid, None)) is not None:
                tell(exit_)
            worker = self._by_pid.pop(exit_.pid, None)
            if worker is None:
                # A helper, or an orphan. If the guard of a hook was killed, so was the hook's
                # program, and what it has started may live: it is killed below. An orphan that
                # ends otherwise can be one of `docker exec`, if this is process 1.
                is_killed = exit_.signal == signal.SIGKILL
                is_left = is_left or (self._has_hooks and is_killed and not is_helper)
                continue
            # Record the worker before anything can fail, so that the next call returns it if an
            # exception ends this call.
            self._ended.append(worker)
            self._orphan_reaper.add(worker, worker.identity.cgroup)
            if worker.identity.number != CLEANER:
                self._to_recover += worker.recovering
            elif exit_.status == DRAINED:
                self._nonce_file.remove(worker.recovering)
            worker.reaped(exit_)
            expected = exit_.status == DRAINED or worker.draining
            if worker.ready and not expected:
                self.deaths += 1
                self.last_death = self._clock.boottime()
            level = logging.INFO if expected else logging.ERROR
            how = worker.describe_exit(self._clock.boottime())
            _log.log(level, "%s, pid %d, %s", worker.identity, exit_.pid, how)
        if self._ended or is_left or self._orphan_reaper.due:
            # A worker's fork server and runners die with the worker. The processes that the fork
            # server and the runners have forked become the master's children and must be killed.
            self._kill_orphans()
        ended, self._ended = self._ended, []
        return ended

    def _kill_orphans(self) -> None:
        for worker in self._orphan_reaper.sweep(self._not_ours | self._by_pid.keys()):
            if worker.identity.cgroup is not None:
                worker.identity.cgroup.remove()
            if worker.may_hold_leases:
                self._to_recover.append(worker.identity.nonce)
            else:
                self._nonce_file.remove([worker.identity.nonce])
        for worker, what in self._orphan_reaper.late:
            text = "%s has ended, but what it has started does not die: %s"
            _log.warning(text, worker.identity, what)
        self._orphan_reaper.late.clear()

    def recover(self) -> None:
        """Tell a living worker to release the leases of dead workers, if there are any.

        This also keeps the nonce file, which a task can remove, and searches for what tasks of dead
        masters have left.
        """
        self._nonce_file.keep()
        if self._search is not None and (now := self._clock.monotonic()) >= self._search_at:
            self._search_at = now + PAUSE if self._search() else inf
        ready = [worker for worker in self if worker.ready]
        if self._to_recover and ready:
            # Prefer a worker that is not draining, because a draining worker might exit before it
            # has released all leases.
            worker = min(ready, key=lambda worker: (worker.draining, len(worker.recovering)))
            worker.recover(self._to_recover)
            self._to_recover = []

    def recovered(self, worker: WorkerChild, nonces: Sequence[str]) -> None:
        """Note that a worker has released the leases of the dead workers with these nonces."""
        self._nonce_file.remove(worker.recovered(nonces))

    def excuse_standstill(self, now: float) -> None:
        """Extend the workers' time limits if the master has stood still.

        The master has stood still if this method is called much later than `due`. It could not
        read the workers' messages meanwhile, so the workers only seem silent.
        """
        late = now - self.due
        if late > _STANDSTILL:
            for worker in self:
                # A part of the time counts, so that a worker that hangs is found even on a host
                # where every call is late. No worker needs more: it sends a message after a
                # quarter of its limit at the latest.
                worker.stood_still(late - _STANDSTILL, now)

    @property
    def wakes(self) -> float:
        """When `reap`, `recover` or `WorkerChild.watch` is due next, in monotonic seconds."""
        children = (worker.wakes for worker in self)
        return min([self._orphan_reaper.wakes, self._search_at, *children])


_BACKOFF = (1.0, 60.0)
"""Two times in seconds: the pause after the second failure in a row, and the longest pause. Each
further failure doubles the pause."""

_HEALTHY = 60.0
"""If a worker fails that has lived for at least this many seconds, the earlier failures of workers
with its number are not counted any more."""

_CRASH_LOOP = 5  # the master gives up when every worker number has had this many failures in a row


class Respawn:
    """Counts the failures of each worker number, and decides when a failed worker is replaced.

    After its first failure, a worker is replaced at once, because the tasks that it ran wait for
    another try. After each further failure in a row, the master waits before it replaces the
    worker, for a time that differs between hosts. All times are of the monotonic clock.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures: dict[int, int] = {}
        self._not_before: dict[int, float] = {}

    def failed(self, number: int, lived: float, now: float) -> None:
        """Count a failure of a worker that exited untold; ``lived`` is 0 if it was never ready."""
        failures = 1 if lived >= _HEALTHY else self._failures.get(number, 0) + 1
        self._failures[number] = failures
        shortest, longest = _BACKOFF
        pause = 0 if failures == 1 else min(longest, shortest * 2 ** (failures - 2))
        self._not_before[number] = now + pause * self._rng.uniform(0.8, 1.2)

    def refused(self, number: int, now: float) -> None:
        """Begin a pause because the system could not fork a worker. No failure is counted."""
        self._not_before[number] = now + _BACKOFF[0] * self._rng.uniform(0.8, 1.2)

    def allowed(self, number: int, now: float) -> bool:
        """Whether a worker with this number can be forked now; False during a pause."""
        return now >= self._not_before.get(number, now)

    def wakes(self, now: float) -> float:
        """When the next pause ends, in seconds of the monotonic clock; infinity if none is left."""
        return min((at for at in self._not_before.values() if at > now), default=float("inf"))

    def forget(self) -> None:
        """Forget all failures and pauses; called when a new generation replaces the old one."""
        self._failures.clear()
        self._not_before.clear()

    def is_crash_loop(self, count: int) -> bool:
        """Whether every worker number below ``count`` has had `_CRASH_LOOP` failures in a row."""
        return count > 0 and all(
            self._failures.get(number, 0) >= _CRASH_LOOP for number in range(count)
        )

"""The master's side of the monitor: starts it, watches it, and ends it.

The monitor is a helper. It is not in the table of workers: whatever it does, no worker, generation
or exit status changes because of it. A monitor that has ended, is silent, or has sent an invalid
message is replaced, after a pause that grows with each failure.

::

    fork ─▶ starting ── first "beat" ─▶ ready ── "stop" ─▶ leaving ── exit ─▶ reaped
               └── silent, invalid message ─▶ KILL ◀── too slow ──┘
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from psched.base.clock import Clock
from psched.base.fault_log import FaultLog
from psched.master.generation_spec import GenerationSpec, MonitorSpec
from psched.master.messages import FROM_MONITOR
from psched.master.reports.health import Facts, MasterState, why_not_ready
from psched.master.totals import Totals, host_of
from psched.master.worker_child import WorkerChild
from psched.master.workers import Respawn, Workers
from psched.process.cgroup import Cgroup
from psched.process.child import Child, Exit, KillLadder, Spawner
from psched.process.link import Link, packed

_MOST_BYTES = 2 * 2**20
"""The most bytes that wait for a monitor. If more come, the oldest messages are dropped, and
counted: people want to know how the last runs have ended."""

_MOST_OPEN = 10_000  # the most runs that are remembered, because the worker may die

_KEPT = ("ping", "key", "run", "what", "exit", "text")
"""The fields that are passed on, besides the output."""


class PingRelay:
    """Passes what workers tell about runs on to the monitor, which pings.

    It keeps a few messages, because the monitor may be slow, hang, or be replaced. It does not
    judge a message. It only remembers which runs of a worker have begun and not ended, because a
    worker that dies cannot tell how they end.
    """

    def __init__(self) -> None:
        # Whether there is, or will soon be, a monitor. If not, messages are dropped.
        self.wanted = False
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._lost = 0
        # The runs that have begun and not ended, by the nonce of their worker.
        self._open: dict[str, dict[str, Mapping[str, Any]]] = {}
        self._open_count = 0

    def note(self, worker: WorkerChild, message: Mapping[str, Any]) -> None:
        """Keep what a worker's message says about a run, if it says something."""
        if not self.wanted:
            return
        self._lost += message.get("lost_pings", 0)
        if "ping" not in message:
            return
        kept = {name: message[name] for name in _KEPT}
        runs = self._open.setdefault(worker.identity.nonce, {})
        if kept["what"] != "start":
            self._open_count -= runs.pop(kept["run"], None) is not None
        elif self._open_count < _MOST_OPEN and kept["run"] not in runs:
            runs[kept["run"]] = {**kept, "text": ""}  # which can be long, and is not needed
            self._open_count += 1
        if "tail" in message:
            self._keep(packed({**kept, "tail": True}, message["data"]))
        else:
            self._keep(packed(kept))

    def ended(self, worker: WorkerChild) -> None:
        """Note that a worker has ended; if it has died, its runs have failed."""
        runs = self._open.pop(worker.identity.nonce, {})
        self._open_count -= len(runs)
        if worker.may_hold_leases and self.wanted:
            for run in runs.values():
                text = f"{run['key']}: lost, because its worker has died"
                self._keep(packed({**run, "what": "fail", "text": text}))

    def pass_on(self, link: Link, *, everything: bool = False) -> None:
        """Send the monitor what it accepts now."""
        while self._waiting and (everything or not link.unsent):
            message = self._waiting.popleft()
            self._size -= len(message)
            link.send(message)
        if self._lost and (everything or not link.unsent):
            link.send({"lost_pings": self._lost})
            self._lost = 0

    def _keep(self, message: bytes) -> None:
        self._waiting.append(message)
        self._size += len(message)
        while self._size > _MOST_BYTES:
            self._size -= len(self._waiting.popleft())
            self._lost += 1


_log = logging.getLogger("psched.master")

_LONGEST_END = 5.0  # seconds after which a monitor that was told to end is killed

_GIVE_UP = 5.0
"""Seconds from its KILL, at a stop, until the master no longer waits for the monitor's end."""

_KILL_INTERVAL = 1.0  # seconds between two KILLs to a monitor that is still alive

_STANDSTILL = 6.0
"""The master calls `MonitorKeeper.step` more often than this. If it does so later, it has stood
still, and could not read the monitor's messages."""

_FAULT_PAUSE = 1.0
"""Seconds for which nothing is done about the monitor after a fault in this module."""

_TELL = 1.0  # the least seconds between two messages to the monitor about what the workers do

_TELL_ANYWAY = 10.0
"""After so many more seconds the monitor is told that nothing has changed, as a sign of life."""

_NUMBER = 0  # the number under which `Respawn` counts the monitor's failures


class MonitorKeeper:
    """Keeps one monitor process alive, with the settings of the present generation."""

    def __init__(
        self,
        workers: Workers,  # which reaps all children; at a stop, the monitor ends after them
        spawner: Spawner,
        *,
        clock: Clock,
        respawn: Respawn,
        keep: Callable[[], Sequence[int]],  # the descriptors of open log files
        # The master's cgroup, below which the monitor has its own; None if it has none.
        cgroup: Cgroup | None,
    ) -> None:
        self._workers = workers
        self._spawner = spawner
        self._clock = clock
        self._respawn = respawn
        self._keep = keep
        self._cgroup = cgroup
        self._fork_outage = FaultLog("cannot fork a monitor", _log, clock)
        self._faults = FaultLog("a fault about the monitor", _log, clock, traceback=True)
        self._not_before = 0.0
        self._over_since: float | None = None
        self._state = MasterState.STARTING
        self._child: Child | None = None
        self._own_cgroup: Cgroup | None = None
        self._spec: MonitorSpec | None = None
        self._generation = 0
        self._leaving = False
        self._made = 0
        self._stepped = clock.monotonic()
        # What the workers have counted. The monitor is told the totals when they change, and a new
        # monitor is told all of them.
        self.totals = Totals()
        self._pings = PingRelay()
        self._is_told = False
        self._tell_at = 0.0

    @property
    def links(self) -> list[Link]:
        """The link to wait on."""
        if self._child is None or self._clock.monotonic() < self._not_before:
            return []
        return [self._child.link]

    @property
    def keeps_from_stopping(self) -> bool:
        """Whether the master must still wait for the end of the monitor."""
        if self._child is None or self._over_since is None:
            return self._child is not None
        return self._clock.monotonic() < self._over_since + _LONGEST_END + _GIVE_UP

    @property
    def wakes(self) -> float:
        """When `step` must be called again, in seconds of the monotonic clock."""
        now = self._clock.monotonic()
        if now < self._not_before:
            return self._not_before
        if (child := self._child) is None:
            return self._respawn.wakes(now)
        silent = float("inf")
        if not child.cut_off:
            silent = min(child.heard + self._limit, child.next_look(self._limit))
        told = float("inf")
        if self._tell_at > now:
            told = self._tell_at  # something may have changed right after the last message
        return min(silent, told, float("inf") if child.ladder is None else child.ladder.wakes)

    def step(self, generation: int, spec: GenerationSpec | None, state: MasterState) -> None:
        """Start, watch or end the monitor, whatever is due."""
        self._state = state
        stopping = state == MasterState.STOPPING
        if stopping and not self._workers and self._over_since is None:
            self._over_since = self._clock.monotonic()
        try:
            self._step(generation, spec)
        except Exception as error:  # noqa: BLE001  # a fault here must not slow down the master
            self._failed(error)
        else:
            self._faults.passed()
        self._stepped = self._clock.monotonic()

    def _step(self, generation: int, spec: GenerationSpec | None) -> None:
        now = self._clock.monotonic()
        if now < self._not_before:
            return
        is_over = self._over_since is not None
        wanted = None if spec is None or is_over else spec.monitor
        self._pings.wanted = wanted is not None
        if generation != self._generation:
            self._generation = generation
            self._respawn.forget()  # the cause may be gone, with the settings
        if (child := self._child) is None:
            if wanted is not None and self._respawn.allowed(_NUMBER, now):
                self._start(wanted, now)
        else:
            self._watch(child, now)
            if not (child.cut_off or self._leaving):
                # What comes while it ends waits for the next monitor.
                self._tell(child, now)
                self._pings.pass_on(child.link)
            if wanted is not self._spec:
                self._end(child, now)

    def heard(self, worker: WorkerChild, message: Mapping[str, Any]) -> None:
        """Note what a worker's message says that the monitor needs."""
        if "counted" in message:
            self.totals.add(message["counted"])
        self._pings.note(worker, message)

    def worker_ended(self, worker: WorkerChild) -> None:
        """Note that a worker has ended, after its last messages."""
        self._pings.ended(worker)

    def reopen_log(self) -> None:
        """Have the monitor open its log file again."""
        if self._child is not None:
            self._child.link.send({"reopen": True})

    def describe(self) -> Mapping[str, Any] | None:
        """The monitor's pid and state, for ``psched status``; None if there is no monitor."""
        if (child := self._child) is None:
            return None
        state = "leaving" if self._leaving else "ready" if child.ready else "starting"
        return {"pid": child.pid, "state": state}

    def _failed(self, error: Exception) -> None:
        self._faults.failed(error)
        self._not_before = self._clock.monotonic() + _FAULT_PAUSE

    @property
    def _limit(self) -> float:
        return float("inf") if self._spec is None else self._spec.limit

    def _start(self, spec: MonitorSpec, now: float) -> None:
        cgroup = self._make_cgroup()
        try:
            pid, link = self._spawner.spawn(lambda link: spec.main(link, cgroup), keep=self._keep())
        except (OSError, RuntimeError) as error:
            self._fork_outage.failed(error)
            self._respawn.refused(_NUMBER, now)
            if cgroup is not None:
                cgroup.remove()
            return
        self._fork_outage.passed()
        link.expects = FROM_MONITOR
        self._child, self._spec, self._leaving = Child(pid, link, now), spec, False
        self._own_cgroup = cgroup
        self._is_told, self._tell_at = False, 0.0
        self._workers.spare(pid, self._ended)
        _log.info("monitor (gen %d) started, pid %d", self._generation, pid)

    def _make_cgroup(self) -> Cgroup | None:
        """A cgroup for the monitor alone: if it is killed, so is all that it has started."""
        if self._cgroup is None:
            return None
        self._made += 1
        try:
            return self._cgroup.below(f"monitor-{os.getpid()}-{self._made}")
        except OSError:
            return None  # it then stays in the cgroup of the master

    def _watch(self, child: Child, now: float) -> None:
        """Read the monitor's messages; kill it if it is silent, or has sent an invalid message."""
        if (late := now - self._stepped - _STANDSTILL) > 0:
            # A part of the time counts, so that a monitor that hangs is found even on a host where
            # every call is late.
            child.heard = min(now, child.heard + late)
        child.link.flush()
        if child.link.receive():
            child.heard, child.ready = now, True
        if not child.cut_off:
            if child.link.fault is not None:
                self._kill(child, f"has sent {child.link.fault}", now)
            elif child.is_stopped(now, self._limit, self._spawner):
                self._kill(child, "is stopped by a signal", now)
            elif now > child.heard + self._limit:
                self._kill(child, f"is silent for {self._limit:.0f} s", now)
        if child.ladder is not None and (number := child.ladder.due(now)) is not None:
            self._spawner.send(child.pid, number)

    def _tell(self, child: Child, now: float) -> None:
        """Tell the monitor what the workers do, at most every `_TELL` seconds.

        It is told from time to time even if nothing has changed, so that it sees a master that
        hangs.
        """
        # A monitor that reads slowly is told nothing more, so that nothing accumulates here.
        if self._spec is None or now < self._tell_at or child.link.unsent or child.cut_off:
            return
        facts = Facts(phase=self._state.value, workers=[each.facts(now) for each in self._workers])
        host = host_of(self._workers, why_not_ready(facts, self._spec.limits))
        anyway = now >= self._tell_at + _TELL_ANYWAY
        changes = self.totals.changes(host, everything=not self._is_told, anyway=anyway)
        if changes is not None:
            self._is_told, self._tell_at = True, now + _TELL
            child.link.send(changes)

    def _kill(self, child: Child, why: str, now: float) -> None:
        _log.error("the monitor, pid %d, %s: killed", child.pid, why)
        child.cut_off = True
        child.ladder = KillLadder(now, _KILL_INTERVAL, 0)

    def _end(self, child: Child, now: float) -> None:
        """Tell the monitor to end; kill it later if it has not ended."""
        if not self._leaving:
            self._leaving, self._tell_at = True, 0.0
            self._tell(child, now)  # what the last workers have counted at last
            self._pings.pass_on(child.link, everything=True)
            child.link.send({"stop": True})
            if child.ladder is None:
                child.ladder = KillLadder(now + _LONGEST_END, _KILL_INTERVAL, 0)

    def _ended(self, how: Exit) -> None:
        """Note that the monitor was reaped; raise nothing, because workers may have ended, too."""
        child, self._child = self._child, None
        if child is None:
            return
        try:
            child.reaped(how)
        except Exception as error:  # noqa: BLE001
            self._failed(error)
        if self._own_cgroup is not None:
            self._own_cgroup.kill()
            self._own_cgroup.remove()
            self._own_cgroup = None
        if self._leaving:
            _log.info("the monitor, pid %d, %s", child.pid, how)
            return
        now = self._clock.monotonic()
        self._respawn.failed(_NUMBER, now - child.started if child.ready else 0.0, now)
        _log.error("the monitor, pid %d, %s", child.pid, how)

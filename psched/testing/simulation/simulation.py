"""Runs hosts, people and faults on one event heap, and checks what came of it."""

import gc
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any

from typing_extensions import override

from psched.client.collection import ScheduleCollection
from psched.client.verifier import Verifier
from psched.config import Config, from_mapping
from psched.core.history.protocol import AuditSelection
from psched.core.model import Row
from psched.reports.findings import Kind, Violation
from psched.testing.memory_store import MemoryStore
from psched.testing.simulation.machine import Machine
from psched.testing.simulation.network import CallFault, Connection, Network
from psched.testing.simulation.observer import Observer
from psched.testing.simulation.people import SCHEDULES, add_all, carry_out
from psched.testing.simulation.plan import ON_STORE, RARE, Step, What, draw
from psched.testing.simulation.world import START, Host, HostClock, Process, World
from psched.testing.virtual_schedules import VirtualStore
from psched.testing.witnesses import (
    PEOPLE,
    Fault,
    Seen,
    Witness,
    check_leases_ended,
    check_rows,
    check_witnesses,
)

_QUIET = 250.0  # seconds without faults before everything that is due must have run
_BETWEEN = 30.0  # the mean time in seconds between two faults
_LOSING = 20.0  # seconds before the stop in which no claim is answered
_STOPPING = 60.0  # seconds that the masters have for their stop

_SETTINGS = {
    "url": "sqlite:///unused.db",
    "retry_wait": 10,
    "concurrency": 4,
    "kill_timeout": 100,
    "graceful_timeout": 10,
    "graceful_kill_limit": 5,
    "child_heartbeat_limit": 60,
    "monitor": False,
    "output": "service",
    "retention_time": 10_000_000,
}


class _StoreClock(HostClock):
    """The clock of a store, whose time of day a simulation sets."""

    def __init__(self, host: Host, now: Callable[[], float]) -> None:
        super().__init__(host, lambda _seconds: None)
        self._now = now

    @override
    def wall(self) -> float:
        return self._now()


MakeStore = Callable[[HostClock, ExitStack], Callable[[], Any]]
"""Makes a store with a clock, and whatever is to be closed; returns what opens it for a process."""


@dataclass(slots=True, kw_only=True)
class Result:
    """What came of a simulation."""

    seed: int
    hours: float  # how many hours were simulated
    steps: Sequence[Step]  # what was done
    violations: Sequence[Violation]  # the promises that were not kept
    runs: int  # how many tasks began
    completed: int  # how many of them did all their work
    calls: int  # how many requests were sent to the store
    troubled: int  # how many of them were sent before all faults were over
    faults: Mapping[str, int]  # how many faults there were before the stop, by kind
    unknown: Mapping[str, int]  # how many occurrences have an unknown fate, by the reason
    digest: int  # a number that is equal for equal simulations
    cpu_seconds: float  # how long it took
    log: Sequence[str] = field(repr=False, default=())  # what has happened, for people


class Simulation:
    """One simulation."""

    def __init__(
        self,
        seed: int,
        hours: float,
        *,
        mix: Sequence[What] = tuple(What),  # the kinds of faults; empty means none
        steps: Sequence[Step] | None = None,  # what is done, in place of what the seed would draw
        calls: Mapping[int, CallFault] | None = None,  # faults of requests, by their numbers
        # ``memory``; ``sqlite`` for psched's own store; or what makes another one. Only the one in
        # memory can lose its last commits.
        store: str | MakeStore = "memory",
        pace: int = 1,  # how many times as far apart everything is
        hosts: int | None = None,  # the number of hosts; None draws it
        schedules: int = SCHEDULES,  # the number of schedules at the beginning
        # For how many seconds there is no fault before everything that is due must have run.
        quiet: float = _QUIET,
        **settings: object,
    ) -> None:
        self.seed = seed
        self.world = world = World(seed)
        choose = world.rng("settings")
        hosts = hosts or choose.randint(2, 3)
        drawn = {
            "processors": choose.randint(1, 2 if pace == 1 else 1),
            "poll_interval": min(60.0, pace * choose.choice([1.0, 2.0, 5.0])),
            "alive_time": choose.choice([16, 20, 30]) * min(pace, 4),
        }
        self.settings: Config = from_mapping({**_SETTINGS, **drawn, **settings})
        self._pace = pace
        self._number = schedules
        self._quiet = quiet
        self._seconds = hours * 3600
        self._witnesses: dict[tuple[str, str], Witness] = {}
        self._faults: list[Fault] = []
        self._log: list[str] = []
        self._offset = 0.0
        self._nonces = count(1)
        self._closing = ExitStack()
        in_memory = MemoryStore(self._store_now, self.settings, keeps=60.0)
        self.store: Any = in_memory
        self._open_store: Callable[[], Any] = lambda: in_memory
        if store != "memory":
            make = self._make_sqlite if isinstance(store, str) else store
            self._open_store = make(
                _StoreClock(Host(world, "store"), self._store_now), self._closing
            )
            self.store = self._open_store()
            mix = [each for each in mix if each is not What.ROLL_BACK]
        alive_time = self.settings.alive_time
        self.observer = Observer(self.store, self._rows, self._witnesses, alive_time)
        self.network = Network(
            world,
            world.rng("network"),
            timeout=self.settings.driver_timeout,
            freeze=self.settings.alive_time * 1.5,
            planned=calls or {},
            observe=self.observer.request,
        )
        clocks = world.rng("clocks")
        self.machines = [
            Machine(
                world,
                Host(
                    world,
                    f"h{number}",
                    wall=clocks.uniform(-100, 100),
                    rate=clocks.uniform(0.9998, 1.0002),
                ),
                network=self.network,
                open_store=self._open_store,
                settings=self.settings,
                saw=self._saw,
                store_time=self._highest,
                log=self.note,
            )
            for number in range(hosts)
        ]
        if steps is None:
            steps = draw(
                world.rng("plan"),
                seconds=self._seconds,
                hosts=hosts,
                schedules=schedules,
                every=_BETWEEN * pace,
                mix=mix,
            )
        self.steps = steps
        self._people = Host(world, PEOPLE)

    def note(self, text: str) -> None:
        """Note what has happened."""
        self._log.append(f"{self.world.now - START:10.3f} {text}")

    def _store_now(self) -> float:
        return self.world.now + self._offset

    def _make_sqlite(self, clock: HostClock, closing: ExitStack) -> Callable[[], Any]:
        """Make a database, and return what opens it."""
        memory = "/dev/shm"  # noqa: S108  # a private folder in it
        where = memory if os.access(memory, os.W_OK) else None
        folder = closing.enter_context(TemporaryDirectory(prefix="psched-", dir=where))
        settings = from_mapping({**_SETTINGS, "url": f"sqlite:///{folder}/psched.db"})

        def open_store() -> VirtualStore:
            made = VirtualStore(settings, clock, [])
            closing.callback(made.disconnect)
            return made

        first = open_store()
        first.init()
        return open_store

    def _rows(self) -> Mapping[str, Row]:
        if isinstance(self.store, MemoryStore):
            return dict(self.store.stored)
        return {row.key: row for row in self.store.rows()}

    def _highest(self) -> float:
        return max(self.observer.highest, self._store_now())

    def _saw(self, witness: Witness) -> None:
        self._witnesses[witness.key, witness.owner] = witness
        row = self._rows().get(witness.key)
        if row is not None and row.owner == witness.owner and row.next_run_time is not None:
            witness.lease_end = row.next_run_time - self._offset
        else:
            witness.lease_end = witness.started

    # --- the run ---------------------------------------------------------------------------

    def run(self) -> Result:
        """Run the simulation, and check what came of it."""
        with self._closing:
            return self._run()

    def _run(self) -> Result:
        begun, world = time.process_time(), self.world
        self._do(self._add_all)
        for machine in self.machines:
            machine.start()
        for step in self.steps:
            world.at(START + step.at, partial(self._carry_out, step))
        world.run(START + self._seconds)
        troubled = self.network.calls
        self._heal()
        world.run(world.now + self._quiet)
        violations = [*check_rows(self._rows().values(), self.store.now(), self._quiet / 2)]
        faults = Counter(each.what for each in [*self._faults, *self._call_faults()])
        # Workers are stopped while they do not know what they have claimed.
        self.network.loses_claims = True
        world.run(world.now + _LOSING)
        for machine in self.machines:
            machine.signal(signal.SIGTERM)
        world.run(world.now + _STOPPING)
        stopped = world.now
        for machine in self.machines:
            violations += machine.still_alive()
        violations += check_leases_ended(self._rows().values())
        world.run(world.now + 1.0)
        verified = Verifier(self.store, self.settings).verify(10**9)
        # Nobody knows when a series of occurrences began if no record, or a wrong clock, says so.
        time_is_odd = any(each.what in RARE for each in self._faults)
        vague = {each.key for each in self.observer.series} if time_is_odd else set()
        vague |= {key for _, key in self.observer.untold}
        # The records contradict each other if the store's time has been set.
        kinds = {Kind.MISSING} if time_is_odd else {*Kind}
        verified.violations = [
            each
            for each in verified.violations
            if each.kind in kinds
            and (each.kind not in {Kind.MISSING, Kind.REPEATED} or each.key not in vague)
        ]
        seen = Seen(
            witnesses=[*self._witnesses.values()],
            records=[*self.store.history.runs()],
            audits=[*self.store.history.audits(AuditSelection()), *self.observer.series],
            faults=[*self._faults, *self._call_faults()],
            lease=max(61.0, self.settings.alive_time + 1.0),
            now=world.now,
            stopped=stopped,
        )
        violations += [*self.observer.violations, *verified.violations]
        violations += [
            each
            for each in check_witnesses(seen)
            if each.kind is not Kind.PAUSED or not time_is_odd
        ]
        gc.unfreeze()  # each worker has frozen what existed when it began
        return Result(
            seed=self.seed,
            hours=self._seconds / 3600,
            steps=self.steps,
            violations=violations,
            runs=len(self._witnesses),
            completed=sum(each.completed for each in self._witnesses.values()),
            calls=self.network.calls,
            troubled=troubled,
            faults=faults,
            unknown=verified.unknown,
            digest=hash((world.events, self.network.calls, *map(str, seen.witnesses))),
            cpu_seconds=time.process_time() - begun,
            log=self._log,
        )

    def _add_all(self, schedules: ScheduleCollection) -> None:
        add_all(schedules, self._number, self._pace)
        self.observer.series.clear()  # nothing has run before these

    def _call_faults(self) -> list[Fault]:
        longest = self.network.freeze + 2 * self.network.timeout
        return [
            Fault(at=at, until=at + longest, host=host, what=fault)
            for at, host, fault in self.network.happened
        ]

    def _do(self, change: Callable[[ScheduleCollection], None]) -> None:
        """Have a person do something."""

        def main() -> int:
            store: Any = Connection(self._open_store(), self.network, process)
            with ScheduleCollection(
                store,
                self.settings,
                clock=process.clock,
                draw_nonce=lambda: f"{next(self._nonces):032x}",
            ) as schedules:
                change(schedules)
            return 0

        process = Process(self._people, main, lambda _status: None)

    def _heal(self) -> None:
        """End all faults."""
        self.network.cut.clear()
        self.network.bad = 0.0
        for machine in self.machines:
            machine.start()

    # --- faults ----------------------------------------------------------------------------

    def _carry_out(self, step: Step) -> None:
        if step.what not in [*What]:
            self.note(str(step))
            self._do(lambda schedules: carry_out(schedules, step, self._pace))
            return
        machine = self.machines[step.place % len(self.machines)]
        host = None if step.what in ON_STORE else machine.host.name
        self.note(f"{'store' if host is None else host}: {step}")
        breaks = step.what in {What.ROLL_BACK, What.STORE_AHEAD}
        self._faults.append(
            Fault(
                at=self.world.now,
                until=self.world.now + step.seconds + (0 if host is None else 30),
                host=host,
                what=step.what,
                breaks_leases=breaks,
            )
        )
        if host is None:
            self._do_to_store(step)
        else:
            machine.suffer(step)

    def _do_to_store(self, step: Step) -> None:
        match step.what:
            case What.STORE_AWAY:
                self.network.cut_off("", step.seconds)
            case What.STORE_BAD:
                self.network.bad += 0.2
                self.world.after(step.seconds, self._answers_better)
            case What.STORE_BACK:
                self._offset -= step.seconds
            case What.STORE_AHEAD:
                self._offset += step.seconds
            case What.ROLL_BACK:
                self.store.roll_back(min(step.seconds, 30.0))
                self.observer.forget()

    def _answers_better(self) -> None:
        self.network.bad = max(0.0, self.network.bad - 0.2)

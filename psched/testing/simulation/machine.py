"""A simulated host: its master, workers and runners, which run psched's real code."""

import select
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from typing_extensions import override

from psched.base.log import Log
from psched.config import Config
from psched.core.history.recording import Recorder, StoreClock
from psched.core.store_protocol import Store
from psched.master.generation_spec import WorkerIdentity
from psched.process.link import Link
from psched.process.signals import Waitable
from psched.reports.findings import Kind, Violation
from psched.testing.master_driver import ManualChild, ManualSpawner, MasterDriver
from psched.testing.simulation.network import Connection, Network
from psched.testing.simulation.plan import Step, What
from psched.testing.simulation.tasks import SimulatedPool
from psched.testing.simulation.world import Host, Process, World
from psched.testing.witnesses import Witness
from psched.worker.context import Context, KillTimer
from psched.worker.worker import Inbox, Worker, clean_up


class SimulatedInbox(Inbox):
    """Receives the signals of a simulated process, and lets it sleep after `before_sleep`."""

    process: Process

    def __init__(self, before_sleep: Callable[[], object]) -> None:
        self._before_sleep = before_sleep
        self._arrived: set[signal.Signals] = set()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self._arrived.add(number)
        self.process.wake()

    @override
    def take(self) -> Collection[signal.Signals]:
        arrived, self._arrived = self._arrived, set()
        return arrived

    @override
    def watch(self, links: Iterable[Waitable]) -> None:
        pass

    @override
    def sleep(self, timeout: float) -> bool:
        self._before_sleep()
        return self.process.pause(timeout, listens=True)

    def wait(self, timeout: float, links: Iterable[Waitable] = ()) -> Collection[signal.Signals]:
        """See `psched.process.signals.SignalInbox.wait`."""
        del links
        self.sleep(timeout)
        return self.take()


class SimulatedDeadMan(KillTimer):
    """The kernel's timer of a worker, which kills it even if it is stopped."""

    def __init__(self, worker: "SimulatedWorker") -> None:
        self._worker = worker
        self._at: float | None = None

    @override
    def set(self, at: float | None) -> None:
        self._at = at
        if at is not None:
            self._worker.machine.at_uptime(at, lambda: self._fire(at))

    @override
    def hasten(self, at: float) -> None:
        if self._at is None or at < self._at:
            self.set(at)

    def _fire(self, at: float) -> None:
        if self._at == at and self._worker.process.lives:
            self._worker.machine.note("the lease timer kills a worker")
            self._worker.process.kill()


class SimulatedWorker:
    """A worker, which runs `psched.worker.worker.Worker`, or a cleaner."""

    def __init__(
        self,
        machine: "Machine",
        child: ManualChild,
        identity: WorkerIdentity,
        # The nonces whose leases a cleaner releases; None for a worker.
        cleans: Sequence[str] | None = None,
    ) -> None:
        self.machine = machine
        self.child = child
        self.identity = identity
        self._cleans = cleans
        self.readable = _readable(child.link)
        self.told = self.readable  # set anew when the spawner knows the master's end
        self.process = Process(machine.host, self._main, self._ended)
        self._store = machine.connect(self.process)
        self.inbox = SimulatedInbox(self._deliver)
        self.inbox.process = self.process
        self.pool = SimulatedPool(machine, self.process.clock, self.process.wake)

    def _main(self) -> int:
        settings, store = self.machine.settings, self._store
        if self._cleans is not None:
            return clean_up(store, settings, self._cleans)
        clock = self.process.clock
        context = Context(
            place=self.identity,
            link=self.child.link,
            settings=settings,
            store=store,
            pool=self.pool,
            deadman=SimulatedDeadMan(self),
            clock=clock,
            rng=self.machine.rng,
            recorder=Recorder(
                host=self.machine.host.name,
                generation=self.identity.generation,
                clock=StoreClock(clock),
            ),
        )
        log = Log(None, "worker")
        return Worker(context, inbox=self.inbox, log=log, show_title=lambda _title: None).run()

    def _deliver(self) -> None:
        """Have the runners and the master read what this worker has sent."""
        self.pool.receive()
        self.machine.heard_of(self)

    def _ended(self, status: int | None) -> None:
        self._store.disconnect()
        orphans = self.pool.die()
        self.machine.worker_ended(self, status, orphans)


class Machine:
    """A host with a master, which is started again when it has died."""

    def __init__(
        self,
        world: World,
        host: Host,
        *,
        network: Network,
        open_store: Callable[[], Store],
        settings: Config,
        saw: Callable[[Witness], object],  # called with each task that begins
        store_time: Callable[[], float],  # returns the latest time that the store's clock has shown
        log: Callable[[str], object],  # called with each fault and what follows from it, as text
    ) -> None:
        self.host = host
        self.network = network
        self.settings = settings
        self.saw = saw
        self.store_time = store_time
        self.rng = world.rng(host.name)
        self.workers: list[SimulatedWorker] = []  # the workers and cleaners that live
        self.driver: MasterDriver | None = None  # the master's code; None before the first start
        self.master: Process | None = None  # the process of the last master
        self.inbox = SimulatedInbox(self.deliver)
        # When the processes that are killed now have run for the last time; None for now.
        self.died_at: float | None = None
        self._world = world
        self._open_store = open_store
        self._log = log
        self._pids = count(100_000)
        self._nonces = count(1)
        self._stopped = False
        self._held: list[Callable[[], object]] = []
        self._overdue: list[Callable[[], object]] = []

    def note(self, text: str) -> None:
        """Note what has happened on this host."""
        self._log(f"{self.host.name}: {text}")

    def connect(self, process: Process) -> Any:  # noqa: ANN401  # a store
        """A connection of a process to the store."""
        return Connection(self._open_store(), self.network, process)

    # --- time ----------------------------------------------------------------------------

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Have a function called after some seconds, and not while the host is suspended."""
        self._world.after(seconds / self.host.rate, lambda: self._when_running(call, self._held))

    def at_uptime(self, at: float, call: Callable[[], object]) -> None:
        """Have the kernel call a function at a time of the boot-time clock."""

        def fire() -> None:
            self._when_running(call, self._overdue)

        self._world.after(max(0.0, at - self.host.uptime) / self.host.rate, fire)

    def _when_running(self, call: Callable[[], object], held: list[Callable[[], object]]) -> None:
        if self._stopped:
            held.append(call)
        else:
            call()

    # --- processes ------------------------------------------------------------------------

    def start(self) -> None:
        """Start a master, unless one runs."""
        if self.master is not None and self.master.lives:
            return
        self.note("a master starts")
        spawner = _Spawner(self)
        settings = self.settings
        self.inbox = SimulatedInbox(self.deliver)
        self.master = Process(self.host, self._run_master, self._master_ended)
        self.inbox.process = self.master
        self.driver = MasterDriver(
            processors=settings.processors,
            spawner=spawner,
            clock=self.master.clock,
            # Each is the beginning of the next one: only the dot after it tells its owners apart.
            draw_nonce=lambda: f"{self.host.name}-{'1' * next(self._nonces)}",
            work=self._begin,
            clean_up=self._begin,
            start_timeout=settings.child_heartbeat_limit,
            heartbeat_limit=settings.child_heartbeat_limit,
            graceful_timeout=settings.graceful_timeout,
            kill_limit=settings.graceful_kill_limit,
        )

    def _run_master(self) -> int:
        assert self.driver is not None  # for mypy: `start` has set it
        return self.driver.master.run(self.inbox)  # type: ignore[arg-type]  # what it uses of it

    def _begin(
        self, link: Link, identity: WorkerIdentity, nonces: Sequence[str] | None = None
    ) -> int:
        """Begin a worker or a cleaner, in place of a fork."""
        assert self.driver is not None  # for mypy: a master has spawned it
        child = next(each for each in self.driver.spawner.born if each.link is link)
        self.workers.append(SimulatedWorker(self, child, identity, nonces))
        return 0

    def draw_pid(self) -> int:
        """A pid that no other process has."""
        return next(self._pids)

    def deliver(self) -> None:
        """Wake each worker that has a message of the master to read."""
        for worker in self.workers:
            if worker.readable():
                worker.process.wake()

    def heard_of(self, worker: SimulatedWorker) -> None:
        """Wake the master if a worker has sent it a message."""
        driver = self.driver
        if self.master is None or driver is None or worker.child not in driver.spawner.born:
            return
        if worker.told():
            self.master.wake()

    def worker_ended(self, worker: SimulatedWorker, status: int | None, orphans: list[int]) -> None:
        """Tell the master that a worker has ended."""
        self.workers.remove(worker)
        child = worker.child
        if child.lives:
            if status is None:
                child.dies()
            else:
                child.exits(status)
        if self.driver is not None and child in self.driver.spawner.born:
            self.driver.spawner.orphans |= {*orphans}
        if self.master is not None:
            self.master.wake()

    def runner_ended(self, pid: int) -> None:
        """Note that a runner has ended, whose worker may have died before."""
        if self.driver is not None and pid in self.driver.spawner.orphans:
            self.driver.spawner.orphans.discard(pid)
            if self.master is not None:
                self.master.wake()

    def _master_ended(self, status: int | None) -> None:
        self.note("the master has died" if status is None else f"the master exits with {status}")
        if self.driver is not None:
            for child in self.driver.workers:
                child.link.close()
        for worker in self.workers:
            worker.process.wake()

    # --- faults ---------------------------------------------------------------------------

    def signal(self, number: signal.Signals) -> None:
        """Send the master a signal."""
        if self.master is not None and self.master.lives:
            self.inbox.send(number)

    def suffer(self, step: Step) -> None:
        """Have a fault happen to this host, unless it is suspended."""
        if self._stopped:
            return
        number, seconds = step.number, step.seconds
        workers = [worker.process for worker in self.workers]
        masters = [self.master] if self.master is not None else []
        one = slice(number % max(1, len(workers)), number % max(1, len(workers)) + 1)
        faults: dict[str, Callable[[], object]] = {
            What.KILL_WORKER: lambda: self._kill(workers[one]),
            What.KILL_TASK: lambda: self._kill_task(self.workers[one]),
            What.KILL_MASTER: lambda: self._kill(masters),
            What.POWER_FAILURE: lambda: self._lose_power([*masters, *workers]),
            What.FREEZE_WORKER: lambda: self._freeze(workers[one], seconds),
            What.FREEZE_MASTER: lambda: self._freeze(masters, seconds),
            What.FREEZE_ALL: lambda: self._freeze([*masters, *workers], seconds),
            What.SUSPEND: lambda: self._suspend([*masters, *workers], seconds),
            What.STEP_HOST: lambda: self._step_clock(seconds * (-1) ** number),
            What.CUT: lambda: self.network.cut_off(self.host.name, seconds),
            What.RESTART: lambda: self.signal(signal.SIGHUP),
            What.STOP: lambda: self.signal(signal.SIGTERM),
        }
        faults[step.what]()
        if step.what in {What.KILL_MASTER, What.POWER_FAILURE, What.STOP}:
            self._world.after(seconds, self.start)

    def _kill_task(self, workers: Sequence[SimulatedWorker]) -> None:
        for worker in workers:
            worker.pool.kill_one()

    def _step_clock(self, seconds: float) -> None:
        self.host.wall += seconds

    def _lose_power(self, processes: Sequence[Process]) -> None:
        for worker in self.workers:
            worker.pool.vanish()
        self._kill(processes)

    def still_alive(self) -> Iterator[Violation]:
        """Yield a violation for each process that should have ended."""
        left = [f"worker {worker.identity}" for worker in self.workers]
        if self.master is not None and self.master.lives:
            left.append("the master")
        for each in left:
            text = f"{self.host.name}: {each} lives after the stop"
            yield Violation(kind=Kind.STOPPED, key="", instant=0, text=text)

    def _kill(self, processes: Iterable[Process]) -> None:
        for process in processes:
            process.kill()

    def _freeze(self, processes: Sequence[Process], seconds: float) -> None:
        for process in processes:
            process.freeze()
            self._world.after(seconds, process.thaw)

    def _suspend(self, processes: Sequence[Process], seconds: float) -> None:
        """Suspend the machine: nothing runs, and the monotonic clock stands still."""
        if self._stopped:
            return
        self._stopped, begun = True, self._world.now
        for process in processes:
            process.freeze()

        def go_on() -> None:
            self.host.suspended += seconds * self.host.rate
            # Overdue timers kill before anything else runs, so what they kill ran no more.
            self.died_at = begun
            for call in self._overdue:
                call()
            self.died_at = None
            self._stopped, held = False, self._held
            self._held, self._overdue = [], []
            for call in held:
                call()
            for process in processes:
                process.thaw()

        self._world.after(seconds, go_on)


class _Spawner(ManualSpawner):
    """Begins a simulated worker where a master forks one."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    @override
    def spawn(self, main: Callable[[Link], int], *, keep: Iterable[int]) -> tuple[int, Link]:
        pid, link = super().spawn(main, keep=keep)
        main(self.born[-1].link)
        self._machine.workers[-1].told = _readable(link)
        return pid, link

    @override
    def send(self, pid: int, number: signal.Signals) -> None:
        for worker in [*self._machine.workers]:
            if worker.child.pid == pid and worker.child in self.born:
                if number is signal.SIGKILL:
                    worker.process.kill()
                else:
                    worker.inbox.send(number)


def _readable(link: Link) -> Callable[[], bool]:
    poller = select.poll()
    poller.register(link.fileno(), select.POLLIN)
    return lambda: bool(poller.poll(0))

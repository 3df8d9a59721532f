"""Runs a master whose time, signals and child processes a test controls."""

import itertools
import random
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from typing_extensions import override

from psched.base.clock import Clock
from psched.master.generation_spec import GenerationSpec, MonitorSpec
from psched.master.master import Master
from psched.master.messages import FROM_MASTER, LONGEST_PIECE, TO_MONITOR
from psched.master.monitor_child import MonitorKeeper
from psched.master.nonce_file import NonceFile
from psched.master.reports.health import Limits, Load
from psched.master.reports.sd_notify import Notifier
from psched.master.reports.status import Status
from psched.master.reports.status_socket import StatusSocket
from psched.master.terminal import Terminal
from psched.master.waking import Looks, WakeSocket
from psched.master.worker_child import WorkerChild
from psched.master.workers import Respawn, Workers
from psched.process.child import Exit, Spawner
from psched.process.link import Link
from psched.testing.manual_clock import ManualClock


class ManualChild:
    """A child of a `ManualSpawner`, which is not a process.

    KILL ends the child at once, unless `stuck` is set. Other signals are only added to `signals`.

    Attributes:
        pid: the child's number, which the parent uses as a pid.
        main: the function that the parent wants the child to run. Nothing calls it, except a
            simulation.
        link: the child's end of a real link to the parent.
        received: the parent's messages that `receive` has read, in order.
        signals: the signals that the parent has sent to the child, in order.
        stuck: whether the child ignores KILL, like a process in uninterruptible sleep; set by the
            test.
        stopped: whether the child seems to be stopped by the signal STOP; set by the test.
        exit: how the child has ended; None while it is alive.
    """

    def __init__(self, pid: int, main: Callable[[Link], int], link: Link) -> None:
        self.pid = pid
        self.main = main
        self.link = link
        self.received: list[Mapping[str, Any]] = []
        self.signals: list[signal.Signals] = []
        self.stuck = self.stopped = False
        self.exit: Exit | None = None

    @property
    def lives(self) -> bool:
        """Whether the child has not ended."""
        return self.exit is None

    def say(self, **message: object) -> None:
        """Send a message from the child to its parent."""
        self.link.send(message)

    def receive(self) -> list[Mapping[str, Any]]:
        """Read and return the parent's messages that have arrived since the last call."""
        messages = self.link.receive()
        self.received += messages
        return messages

    def exits(self, status: int = 0) -> None:
        """End the child, as if it had exited with this status."""
        self._end(Exit(self.pid, status, None))

    def dies(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the child, as if this signal had killed it."""
        self._end(Exit(self.pid, None, number))

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the child; KILL ends it unless it is `stuck`."""
        self.signals.append(number)
        if number == signal.SIGKILL and not self.stuck:
            self.dies()

    def _end(self, how: Exit) -> None:
        if self.exit is None:
            self.receive()
            self.exit = how
            self.link.close()


class ManualSpawner(Spawner):
    """A `psched.process.child.Spawner` whose children are not processes; a test ends them.

    Attributes:
        born: every child that was spawned, in the order of creation.
        refusal: the error that `spawn` raises; None if `spawn` succeeds. A test sets it.
        orphans: pids of processes that were started by children which have ended. KILL does not end
            these processes. A test adds and removes their pids.
    """

    def __init__(self) -> None:
        self.born: list[ManualChild] = []
        self.refusal: OSError | None = None
        self.orphans: set[int] = set()
        self._pids = itertools.count(1000)
        self._by_pid: dict[int, ManualChild] = {}

    @property
    def living(self) -> list[ManualChild]:
        """The children that have not ended."""
        return [child for child in self.born if child.lives]

    def spawn(self, main: Callable[[Link], int], *, keep: Iterable[int]) -> tuple[int, Link]:
        """Create a child that does not run ``main``; return its pid and the parent's end of a link.

        Raises:
            OSError: the test has set `refusal`.
        """
        del keep
        if self.refusal is not None:
            raise self.refusal
        ours, theirs = Link.pair()
        child = ManualChild(next(self._pids), main, theirs)
        self.born.append(child)
        self._by_pid[child.pid] = child
        return child.pid, ours

    def reap(self) -> Iterator[Exit]:
        """For each child that has ended since the last call, yield how it has ended."""
        for pid, child in [*self._by_pid.items()]:
            if child.exit is not None:
                del self._by_pid[pid]
                yield child.exit

    def send(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to the child with this pid; do nothing if no such child is alive."""
        if (child := self._by_pid.get(pid)) is not None and child.lives:
            child.send(number)

    def children(self) -> frozenset[int]:
        """The pids of the children whose end `reap` has not reported."""
        return frozenset(self._by_pid)

    def kill_all(self, spare: frozenset[int]) -> bool:
        """Kill nothing; return whether ``spare`` contains all orphans."""
        return not self.orphans - spare

    def living_below(self, spare: frozenset[int]) -> frozenset[int]:
        """The pids of the orphans, except those in ``spare``."""
        return frozenset(self.orphans - spare)

    def is_alive(self, pid: int) -> bool:
        """Whether a process is an orphan, or a child that has not ended."""
        child = self._by_pid.get(pid)
        return pid in self.orphans or (child is not None and child.lives)

    def is_stopped(self, pid: int) -> bool:
        """Whether the child is `stopped`."""
        return pid in self._by_pid and self._by_pid[pid].stopped

    def describe(self, pid: int) -> str:
        """The process's pid, as text."""
        return str(pid)

    def close(self) -> None:
        """Close the ends of all links that belong to the children."""
        for child in self.born:
            child.link.close()


_LEAST = 0.001  # the shortest time between two ticks of the master, in seconds


class ManualTerminal(Terminal):
    """A terminal that a test closes.

    Attributes:
        closed: whether the terminal is closed, so that HUP stops the master.
        said: the lines that the master has shown its user.
    """

    has_user = True

    def __init__(self) -> None:
        self.closed = False
        self.said: list[str] = []

    @override
    def translate(self, arrived: Collection[signal.Signals]) -> Collection[signal.Signals]:
        hung_up = self.closed and signal.SIGHUP in arrived
        return {signal.SIGTERM} if hung_up else arrived

    @override
    def say(self, text: str) -> None:
        self.said.append(text)


class MasterDriver:
    """Runs a `psched.master.master.Master` without processes, without signals and without waiting.

    ::

        with contextlib.closing(MasterDriver(processors=2)) as driver:
            driver.boot()
            driver.worker(1).dies()
            driver.tick()
            assert driver.worker(1).lives  # a new worker 1

    After `ready` or `boot`, a worker sends a sign of life whenever `advance` lets time pass, until
    the test calls `silence`. The test decides everything else that happens to workers; see
    `ManualChild`.

    Args:
        processors: the number of workers in a generation. A test can set the attribute of this name
            before a restart.
        monitor_limit: the most seconds of silence of the monitor; None if there is no monitor. A
            test can set the attribute of this name before a restart.
        spawner: creates the workers; None for a new `ManualSpawner`.
        clock: the master's clock; None for a new `ManualClock`, which `advance` needs.
        draw_nonce: draws the nonces of the workers; None numbers them.
        spec: attributes of `GenerationSpec`: ``start_timeout``, ``heartbeat_limit``,
            ``graceful_timeout`` and ``kill_limit`` in seconds; ``work`` and ``clean_up``.

    Attributes:
        clock: the master's clock.
        spawner: the spawner that creates the workers.
        master: the master under test.
        workers: the master's table of children.
        spec_error: the error that `read_spec` raises; None if `read_spec` succeeds. A test sets it.
        reopened: how often the master has reopened its log.
        title: the master's last process title: its generation, its state, and what is wrong.
        terminal: the master's terminal. A test can close it.
        looks: has the workers look for due rows. A test can give it a hint.
    """

    def __init__(
        self,
        *,
        processors: int = 1,
        monitor_limit: float | None = None,
        spawner: ManualSpawner | None = None,
        clock: Clock | None = None,
        draw_nonce: Callable[[], str] | None = None,
        **spec: Any,  # noqa: ANN401  # the fields of a `GenerationSpec`
    ) -> None:
        self.clock: Any = ManualClock() if clock is None else clock
        self.spawner = ManualSpawner() if spawner is None else spawner
        self.processors = processors
        self.monitor_limit = monitor_limit
        self.spec_error: Exception | None = None
        self.reopened = 0
        self.title = ""
        self.terminal = ManualTerminal()
        self._spec = {
            "work": lambda _link, _identity: 0,
            "clean_up": lambda _link, _identity, _nonces: 0,
            "start_timeout": 60.0,
            "heartbeat_limit": 60.0,
            "graceful_timeout": 10.0,
            "kill_limit": 5.0,
            **spec,
        }
        self._talking: set[int] = set()
        self._monitor_pids: set[int] = set()
        numbers = itertools.count(1)
        self.workers = Workers(
            self.clock,
            self.spawner,
            draw_nonce=draw_nonce or (lambda: f"nonce-{next(numbers)}"),
            keep=lambda: (),
            cgroup=None,
            nonce_file=NonceFile(None, "", None, self.clock),
            inherited=(),
        )
        self.monitor = MonitorKeeper(
            self.workers,
            self.spawner,
            clock=self.clock,
            respawn=Respawn(random.Random(0)),  # noqa: S311  # jitter
            keep=lambda: (),
            cgroup=None,
        )
        self.looks = Looks(WakeSocket([], self.clock), self.workers, self.clock)
        self.master = Master(
            self.read_spec,
            self.workers,
            clock=self.clock,
            respawn=Respawn(random.Random(0)),  # noqa: S311  # jitter
            reopen_logs=self._reopen,
            status=Status(
                notifier=Notifier({}),
                socket=StatusSocket([], self.clock),
                set_title=self.set_title,
                recent=[],
                clock=self.clock,
            ),
            terminal=self.terminal,
            monitor=self.monitor,
            looks=self.looks,
        )

    def close(self) -> None:
        """Close the links between the master and its children."""
        for worker in self.workers:
            worker.link.close()
        for link in self.monitor.links:
            link.close()
        self.spawner.close()

    # --- events ----------------------------------------------------------------------

    def tick(self) -> float:
        """Have the master do everything that is due; return the seconds until the next tick."""
        timeout = self.master.tick()
        for child in self._living:
            child.link.expects = FROM_MASTER
            child.receive()
        for child in self.monitors:
            if child.lives:
                child.link.expects = TO_MONITOR
                child.link.data_limit = LONGEST_PIECE
                child.receive()
        return timeout

    def advance(self, seconds: float) -> None:
        """Move the clock, and tick whenever something is due; return early if the master stops."""
        left = seconds
        while True:
            for child in self._living:
                if child.pid in self._talking:
                    child.say(tasks=0, away=None, enough="", **Load(slots=1, free=1)._asdict())
            timeout = max(self.tick(), _LEAST)
            if left <= 0 or self.master.has_stopped:
                return
            self.clock.advance(min(timeout, left))
            left -= timeout

    def send(self, *numbers: signal.Signals) -> None:
        """Send signals to the master, all at the same time, and tick once."""
        self.master.obey(numbers)
        self.tick()

    def ready(self, child: ManualChild, reported: Mapping[str, Any] | None = None) -> None:
        """Have a worker report that it has loaded its handlers, and tick.

        If the master admits the worker, the worker also reports its first search for due rows.

        Args:
            child: the worker.
            reported: settings that only the worker could read; None if there are none.
        """
        child.say(ready=reported)
        self.tick()
        if {"go": True} in child.received:
            self._talking.add(child.pid)
            child.say(looked=True)
            self.tick()

    def silence(self, child: ManualChild) -> None:
        """Have a worker hang: it does not send any more signs of life."""
        self._talking.discard(child.pid)

    def boot(self) -> None:
        """Have the master start or restart; report all workers of the generation as ready."""
        self.tick()
        while waiting := [
            child
            for child in self._living
            if not self.record(child).ready and not self.record(child).draining
        ]:
            for child in waiting:
                self.ready(child)

    # --- queries ---------------------------------------------------------------------

    @property
    def monitors(self) -> list[ManualChild]:
        """All monitors that the master has started, the latest last."""
        found = self.monitor.describe()
        if found is not None:
            self._monitor_pids.add(found["pid"])
        return [child for child in self.spawner.born if child.pid in self._monitor_pids]

    @property
    def _living(self) -> list[ManualChild]:
        """The living workers."""
        return [child for child in self.spawner.living if child not in self.monitors]

    def record(self, child: ManualChild) -> WorkerChild:
        """The master's record of a child that the master has not reaped."""
        return next(worker for worker in self.workers if worker.pid == child.pid)

    def found(self) -> dict[tuple[int, int], ManualChild]:
        """The living workers, by generation and number; if two have the same, the younger one."""
        found = {}
        for child in self._living:
            identity = self.record(child).identity
            found[identity.generation, identity.number] = child
        return found

    def worker(self, number: int, generation: int | None = None) -> ManualChild:
        """Return a living worker.

        Args:
            number: the worker's number; -1 for the cleaner.
            generation: the worker's generation; None for the latest one that has such a worker.

        Raises:
            KeyError: no such worker is alive.
        """
        found = self.found()
        latest = max((g for g, n in found if n == number), default=0)
        return found[latest if generation is None else generation, number]

    # --- methods that the master calls -----------------------------------------------

    def read_spec(self, reported: Mapping[str, Any] | None) -> GenerationSpec:
        """Return the configuration for the master. A subclass can return another configuration.

        Args:
            reported: see `psched.master.generation_spec.ReadSpec`.
        """
        del reported
        if self.spec_error is not None:
            raise self.spec_error
        return GenerationSpec(
            processors=self.processors,
            about={},
            monitor=self._monitor_spec(),
            **self._spec,
        )

    def _monitor_spec(self) -> MonitorSpec | None:
        if self.monitor_limit is None:
            return None
        return MonitorSpec(lambda _link, _cgroup: 0, self.monitor_limit, Limits())

    def set_title(self, text: str) -> None:
        """Store the master's new process title in `title`."""
        self.title = text

    def _reopen(self) -> None:
        self.reopened += 1

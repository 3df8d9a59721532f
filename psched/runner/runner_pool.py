"""The runners of one worker, and how it creates, kills and reaps them.

`RunnerPool` is what the worker uses. `ForkingRunnerPool` has a fork server fork the runners before
they are needed.
"""

import logging
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from typing_extensions import override

from psched.base.clock import Clock
from psched.base.errors import LoadError
from psched.base.fault_log import FaultLog
from psched.output.captured import Pipe
from psched.output.collection import OutputCollection
from psched.process import tree
from psched.process.cgroup import Cgroup, OomCounter, RunnerCgroups
from psched.process.child import Child, Exit, OrphanReaper, exit_of, reap
from psched.process.link import Link
from psched.process.program_runner import STOP
from psched.process.signals import Waitable
from psched.runner.fork_server import MOST_AT_ONCE, Born, ForkServer
from psched.runner.forker import Origin
from psched.runner.messages import FROM_PROGRAM_RUNNER, FROM_RUNNER
from psched.runner.shared_memory import NOTHING, Reason, StopFlags, StopFlagTable

_log = logging.getLogger("psched.worker")

Streams = tuple[tuple[int, int], tuple[int, int]]
"""The inodes and devices of standard output and standard error."""


class RunnerChild(Child):
    """The worker's record of a runner.

    Attributes:
        stop_flags: tell the runner why its task is being stopped, and tell the worker whether the
            runner has begun its task.
        offspring: tells whether the runner has any children.
        pipe: carries its output; None if its output is not collected.
        programs: whether it runs programs, and nothing else; see `psched.process.program_runner`.
        streams: which files it had for its output, if it runs programs and has no pipe; else None.
        cgroup: the runner's own cgroup; None if the runner has no cgroup of its own.
        lost_server: whether the runner's fork server died while the runner was alive.
        used: whether the runner has run a task.
        killed: whether this process has sent SIGKILL to the runner.
        cpu_us: the CPU time of the cgroup during the last task that has ended, in microseconds;
            None if it is not known.
        oom_kills: the value of `RunnerPool.oom_kills` before the task of the runner was started.
    """

    def __init__(
        self,
        pid: int,
        link: Link,
        now: float,
        stop_flags: StopFlags,
        pipe: Pipe | None = None,
        *,
        programs: bool = False,
    ) -> None:
        super().__init__(pid, link, now)
        link.expects = FROM_PROGRAM_RUNNER if programs else FROM_RUNNER
        self.stop_flags = stop_flags
        self.pipe = pipe
        self.offspring = tree.Offspring(pid)
        self.programs = programs
        self.streams: Streams | None = None
        self.cgroup: Cgroup | None = None
        self.lost_server = False
        self.used = False
        self.killed = False
        self.cpu_us: int | None = None
        self.oom_kills: int | None = None

    @property
    def died_with_server(self) -> bool:
        """Whether the kernel has killed the runner because its fork server had died."""
        return self.lost_server and self.exit is not None and self.exit.signal == signal.SIGKILL

    @override
    def send(self, number: signal.Signals) -> None:
        if self.programs and number is signal.SIGTERM:
            self.link.send(STOP)
        super().send(number)
        if number is signal.SIGKILL and self.exit is None:
            self.killed = True

    @override
    def reaped(self, how: Exit) -> None:
        super().reaped(how)
        self.stop_flags.close()
        self.offspring.close()


_QUIET = 10.0
"""Seconds without tasks after which runners exit that have run no task."""

_LONG_QUIET = 600.0
"""Seconds without tasks after which runners exit that have run tasks.

They stay longer, because what they have loaded, or their connections, may be needed at the next
full minute, or in five minutes.
"""


class RunnerPool(ABC):
    """Creates a worker's runners before they are needed, and ends them with all their processes.

    Subclasses create the runners, and append each new runner to `_idle`, or to `_idle_programs` if
    it runs programs. When a runner ends, the subclass removes it from there. When all processes
    that the runner has left behind are dead, the subclass appends it to `_cleared`.
    """

    def __init__(self) -> None:
        self._idle: list[RunnerChild] = []
        self._idle_programs: list[RunnerChild] = []
        self._held: set[RunnerChild] = set()
        self._cleared: list[RunnerChild] = []
        # The value of `oom_kills` when the last runner was acquired after the last call of `reap`.
        self._oom_kills: int | None = None
        self._has_counted = False

    @property
    @abstractmethod
    def links(self) -> Sequence[Waitable]:
        """The connections to wait on. One is readable if a runner has sent a message or ended."""

    @property
    def waiting(self) -> bool:
        """Whether a runner waits for a task."""
        return bool(self._idle)

    @property
    @abstractmethod
    def wakes(self) -> float:
        """When to call `reap` again, seconds of the monotonic clock."""

    @abstractmethod
    def prepare(self, count: int = 1, *, unused: bool = False) -> None:
        """Make sure that a runner waits for a task, so that the next task does not wait for a fork.

        If none is waiting, up to ``count`` are created at once, for so many tasks, because that
        costs less than to create them one by one. With ``unused``, the runner that `acquire`
        returns next must have run no task yet. An OSError says that the system has no process or
        memory left, a RuntimeError that this process has a second thread.
        """

    @abstractmethod
    def order(self, count: int) -> None:
        """Have runners created meanwhile, until so many wait for a task; return at once.

        A failure is ignored, because the next call of `prepare` meets and reports it.
        """

    def acquire(self) -> RunnerChild:
        """Return a waiting runner for one task; `prepare` must be called before."""
        return self._given(self._idle.pop())

    def acquire_for_program(self) -> RunnerChild | None:
        """Return a waiting runner that runs only programs; None if there is none.

        Then a runner can run the program, too, and there may be one for the next program.
        """
        return self._given(self._idle_programs.pop()) if self._idle_programs else None

    def make_room(self) -> None:
        """Let the waiting runners exit, because a task has found no room for a process."""
        self._let_waiting_exit()

    def _let_waiting_exit(self) -> None:
        for line in self._idle, self._idle_programs:
            for runner in line:
                self._let_exit(runner)
            line.clear()

    def _given(self, runner: RunnerChild) -> RunnerChild:
        # The flags are reset, because they might still describe the runner's previous task.
        runner.stop_flags.write(Reason.NONE)
        runner.stop_flags.begun = False
        runner.stop_flags.write_progress(NOTHING)
        if not self._has_counted:
            self._oom_kills, self._has_counted = self.oom_kills(), True
        runner.oom_kills = self._oom_kills
        return runner

    def give_back(self, runner: RunnerChild) -> bool:
        """Keep a runner for another task if `clear` allows this; otherwise kill the runner.

        Return whether it is kept. If not, `cleared` returns it once all its processes are dead.
        """
        clean = self.clear(runner)
        if clean:
            runner.used = True
            self._line_up(runner)
        else:
            self.kill(runner)
        return clean

    def hold(self, runner: RunnerChild) -> None:
        """Give a runner no further task until `unhold` is called; no effect if it is not idle."""
        for idle in self._idle, self._idle_programs:
            if runner in idle:
                idle.remove(runner)
                self._held.add(runner)

    def unhold(self, runner: RunnerChild) -> None:
        """Allow further tasks for a runner that was held."""
        if runner in self._held:
            self._held.remove(runner)
            if runner.exit is None and not runner.link.closed:
                self._line_up(runner)

    def _line_up(self, runner: RunnerChild) -> None:
        """Have a runner that has run a task wait for another one."""
        # The runner is inserted at the front. `acquire` takes a runner from the end, so that it
        # takes unused runners first.
        (self._idle_programs if runner.programs else self._idle).insert(0, runner)

    @abstractmethod
    def clear(self, runner: RunnerChild) -> bool:
        """KILL all processes below a runner; return whether the runner can be used again."""

    @abstractmethod
    def kill(self, runner: RunnerChild) -> None:
        """KILL a runner and all processes below it; `reap` will return the runner."""

    @abstractmethod
    def reap(self) -> Sequence[RunnerChild]:
        """Return the runners that have ended since the last call; kill what they have left behind.

        `cleared` returns these runners again when all their processes are dead.
        """

    def cleared(self) -> Sequence[RunnerChild]:
        """Return the ended runners whose last process has died since the last call."""
        cleared, self._cleared = self._cleared, []
        return cleared

    def oom_kills(self) -> int | None:
        """How many processes of this service the kernel has killed because memory ran out.

        None if it is not known.
        """
        return None

    @abstractmethod
    def late(self) -> Sequence[tuple[RunnerChild, str]]:
        """Return the ended runners that have left processes which do not die.

        Each such runner is returned once, with a text that lists these processes.
        """

    @abstractmethod
    def renew(self) -> None:
        """Have new runners inherit the store's modules, because tasks seem to use the store.

        Call this when a task has used the store. Later tasks then need not import the modules.
        """

    def trim(self, quiet: float) -> None:
        """Let waiting runners exit that are probably not needed soon.

        After `_QUIET` seconds in which no task was claimed and none has ended, all but one of the
        runners exit that have run no task. After `_LONG_QUIET` seconds, all but one of all waiting
        runners exit. A runner that has run a task stays rather than one that has not.
        """
        if quiet <= _QUIET:
            return
        for line in self._idle, self._idle_programs:
            # `give_back` inserts used runners at the front, the last one first.
            idle = [runner for runner in line if quiet > _LONG_QUIET or not runner.used]
            for runner in idle[1:]:
                line.remove(runner)
                self._let_exit(runner)

    @abstractmethod
    def _let_exit(self, runner: RunnerChild) -> None:
        """Have a waiting runner exit; `reap` will return it."""

    @abstractmethod
    def dismiss(self) -> bool:
        """Let the waiting runners exit, because no task will follow."""

    def cut_off(self, runner: RunnerChild) -> bool:
        """Kill a runner if it has sent an invalid message."""
        if runner.link.fault is None or runner.cut_off:
            return False
        runner.cut_off = True
        _log.error("killing process %d: it has sent %s", runner.pid, runner.link.fault)
        self.kill(runner)
        return True


_LOAD_PAUSE = 10.0
"""Seconds until the next try after a fork server that replaces another could not load the handlers,
because their files were changed meanwhile."""

_PLACES_PER_TASK = 4
"""The number of slots for each task that can run at the same time. One slot per task would not be
enough, because waiting runners, and runners that do not die, occupy slots as well."""


_NO_PROGRAMS = 60.0
"""Seconds for which runners run the programs if a process for programs has not started, or has
found no room for another process."""


class ForkingRunnerPool(RunnerPool):
    """The forked runners of one worker.

    Args:
        origin: says how a fork server comes into being that shares these flags with the worker.
        fall_back: is called if a fork server was executed that has not the code of this psched.
            After the call, ``origin`` returns another one.

    Attributes:
        before_server_fork: a function that is called before a fork server is forked; it closes
            whatever the fork server must not inherit.
    """

    def __init__(
        self,
        origin: Callable[[StopFlagTable], Origin],
        *,
        fall_back: Callable[[], object] = list,
        clock: Clock,
        concurrency: int,
        hold_up: float,
        patience: float,
        cgroup: Cgroup | None,
        output: OutputCollection | None = None,
    ) -> None:
        super().__init__()
        self._output = output
        self.before_server_fork: Callable[[], object] = lambda: None
        self._origin = origin
        self._fall_back = fall_back
        self._places = _PLACES_PER_TASK * (concurrency + MOST_AT_ONCE)
        self._new_server = partial(
            ForkServer,
            places=self._places,
            clock=clock,
            hold_up=hold_up,
            patience=patience,
            output=output,
        )
        # `_server` forks new runners. `_servers` contains `_server`, and those of its predecessors
        # that still have runners.
        self._server: ForkServer | None = None
        self._start_at = 0.0
        self._servers: dict[ForkServer, StopFlagTable] = {}
        self._dismissed = False
        self._clock = clock
        self._alive: dict[int, RunnerChild] = {}
        self._most_programs = concurrency
        self._no_programs_before = 0.0
        self._program_streams: Streams | None = None
        self._program_runners = FaultLog("runners for programs do not start", _log, clock)
        self._reaper = OrphanReaper[RunnerChild](clock)
        self._cgroups = None if cgroup is None else RunnerCgroups(cgroup, clock)
        self._server_deaths = FaultLog("the fork server died", _log, clock)
        if cgroup is not None:
            # This process enters the cgroup, and each fork server inherits it, because a new runner
            # belongs to the cgroup of its fork server until it enters its own cgroup.
            with suppress(OSError):
                cgroup.add(0)
        self._oom_counter = OomCounter()
        # The children that exist now are recorded and never killed, because they do not belong to a
        # task: the handlers' modules have started them on import.
        self._spared = frozenset(tree.children(os.getpid()))
        if output is not None:
            output.spare = self._spare

    def start(self) -> ForkServer:
        """Return the current fork server; fork a new one if there is none."""
        if self._server is not None and self._server.channel.closed:
            self._lose(self._server)
        if self._server is None:
            if self._clock.monotonic() < self._start_at:
                raise BlockingIOError("the handlers could not be loaded")
            self.before_server_fork()
            # Each fork server gets its own table of flags, because runners of two fork servers can
            # have the same slot number.
            flags = StopFlagTable(self._places)
            try:
                self._server = self._new_server(self._origin(flags))
            except BaseException:
                flags.close()
                raise
            self._servers[self._server] = flags
            self._spared |= {self._server.pid}
            self._dismissed = False
        return self._server

    def load(self, within: float) -> ForkServer:
        """Start a fork server, wait until it has loaded the handlers, and return it.

        If that takes longer than ``within`` seconds, its stack is logged. A LoadError says that
        they cannot be loaded, which has been logged; an EOFError that the fork server has died.
        """
        until = self._clock.monotonic() + within
        while not (server := self.start()).has_loaded:
            left = until - self._clock.monotonic()
            server.receive(max(left, 0.0))
            if left <= 0:
                tree.send(server.pid, signal.SIGABRT)
                time.sleep(within)  # the master kills this process meanwhile
            if server.channel.closed and server.is_own and not server.has_loaded:
                how = exit_of(*os.waitpid(server.pid, 0))
                raise EOFError(f"the process that loads the handlers {how}")
        if server.failure is not None:
            raise LoadError(server.failure)
        return server

    @property
    @override
    def links(self) -> list[Waitable]:
        links: list[Waitable] = [runner.link for runner in self._alive.values()]
        links += [server.channel for server in self._servers]
        if self._output is not None:
            links += self._output.links
        return links

    @property
    @override
    def wakes(self) -> float:
        return min([self._reaper.wakes, *(server.wakes for server in self._servers)])

    @override
    def renew(self) -> None:
        if self._server is not None:
            self._server.load_store()

    @override
    def prepare(self, count: int = 1, *, unused: bool = False) -> None:
        if not self._idle or (unused and self._idle[-1].used):
            self._fork(count)

    @override
    def order(self, count: int) -> None:
        server = self._server
        if server is not None and count > len(self._idle):
            with suppress(OSError):
                server.order(count - len(self._idle))

    @override
    def acquire_for_program(self) -> RunnerChild | None:
        # A program runner that has no pipe would write to a log that was renamed.
        streams = _streams() if self._output is None else None
        for each in [each for each in self._idle_programs if each.streams != streams]:
            self._idle_programs.remove(each)
            self._let_exit(each)
        runner, server = super().acquire_for_program(), self._server
        is_late = self._clock.monotonic() >= self._no_programs_before
        if runner is None and server is not None and is_late and not self._dismissed:
            self._program_streams = streams
            alive = self._alive.values()
            there = sum(each.programs and not each.link.closed for each in alive)
            with suppress(OSError):
                server.order(min(1 + there, self._most_programs - there), programs=True)
        return runner

    @override
    def make_room(self) -> None:
        super().make_room()
        self._let_runners_run_programs()

    def _let_runners_run_programs(self) -> None:
        """Order no process for programs for a while, so that runners run them."""
        self._no_programs_before = self._clock.monotonic() + _NO_PROGRAMS

    @override
    def clear(self, runner: RunnerChild) -> bool:
        if runner.exit is not None:
            return False  # the runner cannot be used again, and `reap` has handled its tree
        clean = runner.offspring.none or tree.kill_all_below(runner.pid)
        clean = clean and not runner.link.halfway
        if runner.cgroup is not None:
            # The cgroup is checked, because the task can have made the runner stop adopting orphans
            # (prctl(2)). Such orphans are not below the runner, but they are in its cgroup.
            clean = clean and runner.cgroup.members in ([runner.pid], [])
            if clean:
                runner.cpu_us = runner.cgroup.take_cpu()
        return clean

    @override
    def reap(self) -> list[RunnerChild]:
        self._has_counted = False
        # The ended children of this process are fork servers, and orphans that it has adopted. When
        # a fork server dies, its runners become such orphans.
        exits = [*reap()]
        own = {exit_.pid: exit_ for exit_ in exits}
        # Reaped pids are no longer exempt from kills, because the kernel can give them to processes
        # of tasks.
        self._spared -= own.keys()
        if own and self._output is not None:
            self._output.reaped(own)
        for server in [*self._servers]:
            told = server.exits()
            # New runners are recorded before ends are handled, because the birth and the end of a
            # runner can be reported together.
            self._enrol_late(server)
            exits += told
            if told:
                server.bury([exit_.pid for exit_ in told])
            # The death of a fork server is handled before the ends of its runners, because these
            # ends are recorded differently if that death has caused them.
            if server.pid in own:
                self._lose(server, f"it {own[server.pid]}")
        ended = []
        for exit_ in exits:
            runner = self._alive.pop(exit_.pid, None)
            if runner is not None:  # if None, the process was an orphan or a fork server
                runner.reaped(exit_)
                if runner.programs and not (runner.ready or runner.lost_server):
                    self._program_runners.failed(f"one {exit_}")
                    self._let_runners_run_programs()
                self._reaper.add(runner, runner.cgroup)
                ended.append(runner)
        self._check_idle()
        self._watch_servers()
        if exits or self._reaper.due:
            cleared = self._reaper.sweep(self._spared | self._alive.keys())
            for runner in cleared:
                self._reuse_cgroup(runner)
            self._cleared += cleared
        return ended

    @override
    def oom_kills(self) -> int | None:
        return self._oom_counter.read()

    @override
    def late(self) -> list[tuple[RunnerChild, str]]:
        late, self._reaper.late = self._reaper.late, []
        return late

    @override
    def kill(self, runner: RunnerChild) -> None:
        if runner.exit is not None:
            return  # the pid can belong to another process, and `reap` kills what the runner left
        if runner.cgroup is not None:
            runner.cgroup.kill()
        runner.send(signal.SIGKILL)
        tree.kill_below(runner.pid)

    @override
    def dismiss(self) -> bool:
        self._let_waiting_exit()
        for runner in self._held:
            self._let_exit(runner)
        self._dismissed = True
        self._dismiss_servers()
        return any(runner.used and not runner.programs for runner in self._alive.values())

    @override
    def _let_exit(self, runner: RunnerChild) -> None:
        runner.link.close()

    def _spare(self, pid: int) -> None:
        """Note that a child of this process belongs to no task."""
        self._spared |= {pid}

    def _watch_servers(self) -> None:
        """Kill fork servers that hang or send invalid messages; close those that nobody needs."""
        for server in [*self._servers]:
            server.watch(self._alive)
            if server.channel.fault is not None:
                self._lose(server)
        if self._server_deaths.ongoing:
            self._server_deaths.passed()
        self._dismiss_servers()

    def _check_idle(self) -> None:
        """Drop waiting runners that have died, or that have sent a message without a task."""
        for runner in self._alive.values():
            if not runner.programs or runner.ready:
                continue
            if runner.link.receive():
                runner.ready = True
                if self._program_runners.ongoing:
                    self._program_runners.passed()
                if self._dismissed:
                    self._let_exit(runner)
                else:
                    self._idle_programs.append(runner)
            self.cut_off(runner)
        for runner in [*self._idle, *self._idle_programs]:
            if runner.link.receive() or runner.link.halfway:
                # The runner is killed, because this message would be mistaken for a message of its
                # next task.
                runner.link.cut("a message without a task")
            self.cut_off(runner)
        self._drop_idle(lambda runner: runner.link.closed)

    def _reuse_cgroup(self, runner: RunnerChild) -> None:
        """Release the cgroup of a runner that has no process left, and note its CPU time.

        The cgroup is reused for another runner unless the runner was killed by a signal.
        """
        if self._cgroups is not None and runner.cgroup is not None and runner.exit is not None:
            runner.cpu_us = runner.cgroup.take_cpu()
            self._cgroups.release(runner.cgroup, reusable=runner.exit.signal is None)

    def _lose(self, server: ForkServer, how: str = "it has ended") -> None:
        """Handle the death of a fork server; kill the fork server if it is still alive."""
        if not server.is_own:
            self._close(server)
            if server.pid in self._spared:
                tree.send(server.pid, signal.SIGKILL)
            self._fall_back()
            return
        if server.failure is not None or not server.has_loaded:
            self._start_at = self._clock.monotonic() + _LOAD_PAUSE
        if server.failure is not None:
            how = f"the handlers cannot be loaded: {server.failure}"
        elif server.channel.fault is not None:
            how = f"it has sent {server.channel.fault}"
        self._server_deaths.failed(f"{how}, and all that it had forked dies with it")
        for pid in server.unburied:
            if pid in self._alive:
                self._alive[pid].lost_server = True
        # The waiting runners of this fork server are dropped, because the kernel kills them now.
        self._drop_idle(lambda runner: runner.lost_server)
        self._close(server)
        if server.pid in self._spared:  # not reaped yet, so no other process has this pid
            tree.send(server.pid, signal.SIGKILL)

    def _drop_idle(self, is_useless: Callable[[RunnerChild], bool]) -> None:
        for line in self._idle, self._idle_programs:
            line[:] = [runner for runner in line if not is_useless(runner)]

    def _dismiss_servers(self) -> None:
        """Close fork servers that have no runner left and are not needed any more."""
        for server in [*self._servers]:
            if (self._dismissed or server is not self._server) and not server.unburied:
                self._close(server)

    def _close(self, server: ForkServer) -> None:
        server.close()
        self._servers.pop(server).close()
        if server is self._server:
            self._server = None

    def _fork(self, count: int) -> None:
        server = self.start()
        try:
            born = server.fork(count)
        except ConnectionError:
            # The fork server has died since the last check, so a new one is forked.
            server = self.start()
            born = server.fork(count)
        self._enrol(server, born)
        if all(each.pid in server.for_programs for each in born):
            # It was the answer to an earlier order, and had to come first.
            self._enrol(server, server.fork(count))

    def _enrol_late(self, server: ForkServer) -> None:
        """Record the runners of an order for whose answer nobody has waited."""
        late = self._enrol(server, server.late())
        for runner in late if self._dismissed else ():  # no task will follow
            if not runner.programs:
                self._idle.remove(runner)
            self._let_exit(runner)

    def _enrol(self, server: ForkServer, born: Iterable[Born]) -> Sequence[RunnerChild]:
        """Record new runners, which wait for a task from now on; return them."""
        enrolled = list[RunnerChild]()
        now = self._clock.monotonic()
        pipes = list[Pipe]()
        for place, pid, link, pipe in born:
            flags, programs = self._servers[server].at(place), pid in server.for_programs
            runner = RunnerChild(pid, link, now, flags, pipe, programs=programs)
            if pipe is not None:
                pipes.append(pipe)
            self._alive[pid] = runner
            self._reaper.born(runner)
            if self._cgroups is not None:
                runner.cgroup = self._cgroups.acquire(pid)
            runner.streams = self._program_streams
            if not programs:  # else it says when it is ready
                self._idle.append(runner)
            elif pipe is None and self._output is not None:  # no descriptor was left
                self._let_exit(runner)
            enrolled.append(runner)
        if pipes and self._output is not None:
            self._output.watch(pipes)
        return enrolled


def _streams() -> Streams:
    output, error = os.fstat(1), os.fstat(2)
    return (output.st_ino, output.st_dev), (error.st_ino, error.st_dev)

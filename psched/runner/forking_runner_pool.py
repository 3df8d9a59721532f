"""Runners that are forked: ahead of need, by a fork server."""

import logging
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from typing_extensions import override

from psched.base.clock import Clock
from psched.base.fault_log import FaultLog
from psched.process import tree
from psched.process.cgroup import Cgroup, RunnerCgroups
from psched.process.child import reap
from psched.process.link import Link
from psched.process.orphan_reaper import OrphanReaper
from psched.process.signals import Waitable
from psched.runner.fork_server import MOST_AT_ONCE, ForkServer
from psched.runner.runner_child import RunnerChild
from psched.runner.runner_pool import RunnerPool
from psched.runner.stop_flags import StopFlags, StopFlagTable

_log = logging.getLogger("psched.worker")

_PLACES_PER_TASK = 4
"""Places for each task that may run at once: a runner that waits, or does not die, has one too."""


class ForkingRunnerPool(RunnerPool):
    """The forked runners of one worker.

    Args:
        main: a runner's whole life, in its own process; returns its exit status.
        keep: descriptors that runners need: the open log file.
        clock: tells when a process has been silent for too long.
        concurrency: how many tasks may run at once.
        hold_up: seconds for which a fork may block the worker.
        patience: seconds after which a fork server hangs that owes an answer, or an end.
        cgroup: this process's; each runner is given one below it. None: there is none.
        before_fork: called in the fork server before it forks.

    Attributes:
        before_server_fork: called before a fork server is forked; closes what must not be open
            then.
    """

    def __init__(
        self,
        main: Callable[[Link, StopFlags], int],
        *,
        keep: Sequence[int],
        clock: Clock,
        concurrency: int,
        hold_up: float,
        patience: float,
        cgroup: Cgroup | None,
        before_fork: Callable[[], object],
    ) -> None:
        super().__init__()
        self.before_server_fork: Callable[[], object] = lambda: None
        self._main = main
        self._places = _PLACES_PER_TASK * (concurrency + MOST_AT_ONCE)
        self._new_server = partial(
            ForkServer,
            places=self._places,
            keep=keep,
            clock=clock,
            hold_up=hold_up,
            patience=patience,
            before_fork=before_fork,
        )
        # The fork server that forks, and its predecessors that still have living runners.
        self._server: ForkServer | None = None
        self._servers: dict[ForkServer, StopFlagTable] = {}
        self._servers_made = 0
        self._outdated = False
        self._dismissed = False
        self._clock = clock
        self._alive: dict[int, RunnerChild] = {}
        self._reaper = OrphanReaper[RunnerChild](clock)
        self._cgroups = None if cgroup is None else RunnerCgroups(cgroup, clock)
        self._server_deaths = FaultLog("the fork server died", _log, clock)
        if cgroup is not None:
            # This process enters its cgroup, so that its runners are in it even before they enter
            # their own.
            with suppress(OSError):
                cgroup.add(0)
        # Processes that the handlers' modules have started on import belong to those modules, and
        # are spared.
        self._spared = frozenset(tree.children(os.getpid()))

    def start(self) -> ForkServer:
        """The fork server; a new one is forked if there is none.

        Raises:
            OSError: the system has no process or memory left.
            RuntimeError: this process has a second thread.
        """
        if self._server is not None and self._server.channel.closed:
            self._lose(self._server)
        if self._server is None:
            self.before_server_fork()
            # Each server has its own flags, because runners of two may have the same place.
            flags = StopFlagTable(self._places)
            self._server = self._new_server(partial(_live, self._main, flags))
            self._servers[self._server] = flags
            self._servers_made += 1
            self._spared |= {self._server.pid}
            self._dismissed = False
        return self._server

    @property
    @override
    def links(self) -> list[Waitable]:
        links: list[Waitable] = [runner.link for runner in self._alive.values()]
        links += [server.channel for server in self._servers]
        return links

    @property
    @override
    def wakes(self) -> float:
        return min([self._reaper.wakes, *(server.wakes for server in self._servers)])

    @override
    def renew(self) -> None:
        # The first fork server was forked before this process had loaded the store's modules. The
        # next one inherits them, so no task waits for an import. It is forked when a runner is
        # needed; the first one stays until its runners have ended.
        self._outdated = self._servers_made == 1

    @override
    def prepare(self, count: int = 1, *, unused: bool = False) -> None:
        if not self._idle or (unused and self._idle[-1].used):
            self._fork(count)

    @override
    def clear(self, runner: RunnerChild) -> bool:
        if runner.exit is not None:
            return False  # its last messages; `reap` has handled its tree
        clean = tree.kill_all_below(runner.pid) and not runner.link.halfway
        if runner.cgroup is not None:
            # The runner may have stopped adopting its orphans: prctl(2).
            clean = clean and not {*runner.cgroup.members} - {runner.pid}
        return clean

    @override
    def reap(self) -> list[RunnerChild]:
        # The exits of this process's own children: orphans, and fork servers, whose runners then
        # become orphans.
        exits = [*reap()]
        own = {exit_.pid: exit_ for exit_ in exits}
        # A pid that has been reaped can be given to any process.
        self._spared -= own.keys()
        for server in [*self._servers]:
            told = server.exits()
            # A runner's birth is always told before its end, but both may arrive together.
            self._enrol(server, server.late())
            exits += told
            server.bury([exit_.pid for exit_ in told])
            # A fork server's death is handled before the ends of its runners, which it causes and
            # which may arrive with it.
            if server.pid in own:
                self._lose(server, f"it {own[server.pid]}")
        ended = []
        for exit_ in exits:
            runner = self._alive.pop(exit_.pid, None)
            if runner is not None:  # otherwise an orphan of an earlier run
                runner.reaped(exit_)
                self._reaper.add(runner, runner.cgroup)
                ended.append(runner)
        self._check_idle()
        for server in [*self._servers]:
            server.watch(self._alive)
            if server.channel.fault is not None:
                self._lose(server)
        self._server_deaths.passed()
        self._dismiss_servers()
        if exits or self._reaper.due:
            cleared = self._reaper.sweep(self._spared | self._alive.keys())
            for runner in cleared:
                self._reuse_cgroup(runner)
            self._cleared += cleared
        return ended

    @override
    def late(self) -> list[tuple[RunnerChild, str]]:
        late, self._reaper.late = self._reaper.late, []
        return late

    @override
    def kill(self, runner: RunnerChild) -> None:
        if runner.exit is not None:
            return  # its pid may be reused; `reap` kills what it has left
        if runner.cgroup is not None:
            runner.cgroup.kill()
        runner.send(signal.SIGKILL)
        tree.kill_below(runner.pid)

    @override
    def dismiss(self) -> None:
        for runner in self._idle:
            runner.link.close()
        self._idle.clear()
        self._dismissed = True
        self._dismiss_servers()

    def _check_idle(self) -> None:
        """Drop the waiting runners that have died, or that have sent a message unasked."""
        for runner in self._idle:
            if runner.link.receive() or runner.link.halfway:
                # The messages of its next task would follow in the middle of this one.
                runner.link.cut("a message without a task")
            self.cut_off(runner)
        self._idle = [runner for runner in self._idle if not runner.link.closed]

    def _reuse_cgroup(self, runner: RunnerChild) -> None:
        """Reuse the cgroup of a runner of which nothing is left, unless the runner was killed."""
        if self._cgroups is not None and runner.cgroup is not None and runner.exit is not None:
            self._cgroups.release(runner.cgroup, reusable=runner.exit.signal is None)

    def _lose(self, server: ForkServer, how: str = "it has ended") -> None:
        """Handle a fork server that has died, or kill one because of what it has sent."""
        if server.channel.fault is not None:
            how = f"it has sent {server.channel.fault}"
        self._server_deaths.failed(f"{how}, and all that it had forked dies with it")
        for pid in server.unburied:
            if pid in self._alive:
                self._alive[pid].lost_server = True
        # Its waiting runners are about to die, and a task that began in one would die, too.
        self._idle = [runner for runner in self._idle if not runner.lost_server]
        self._close(server)
        if server.pid in self._spared:  # otherwise reaped: its pid may be reused
            tree.send(server.pid, signal.SIGKILL)

    def _dismiss_servers(self) -> None:
        """Let the fork servers exit that are not needed any more, and have no runner left."""
        for server in [*self._servers]:
            if not server.unburied and (self._dismissed or server is not self._server):
                self._close(server)

    def _close(self, server: ForkServer) -> None:
        server.close()
        del self._servers[server]
        if server is self._server:
            self._server = None

    def _fork(self, count: int) -> None:
        server = self._up_to_date()
        try:
            born = server.fork(count)
        except ConnectionError:
            # The fork server had died without our knowing it.
            server = self.start()
            born = server.fork(count)
        self._enrol(server, born)

    def _up_to_date(self) -> ForkServer:
        """The fork server, or its successor; see `renew`."""
        before = self._server
        if self._outdated and before is not None and not before.owes:
            self._outdated = False
            self._server = None
            try:
                return self.start()
            except (OSError, RuntimeError) as error:
                # Without a new fork server, tasks load those modules themselves, which takes
                # longer.
                _log.warning("no new fork server, the old one goes on: %s", error)
                self._server = before
        return self.start()

    def _enrol(self, server: ForkServer, born: Iterable[tuple[int, int, Link]]) -> None:
        now = self._clock.monotonic()
        for place, pid, link in born:
            runner = RunnerChild(pid, link, now, self._servers[server].at(place))
            self._alive[pid] = runner
            self._reaper.born(runner)
            if self._cgroups is not None:
                runner.cgroup = self._cgroups.acquire(pid)
            self._idle.append(runner)


def _live(
    main: Callable[[Link, StopFlags], int], flags: StopFlagTable, place: int, link: Link
) -> int:
    return main(link, flags.at(place))

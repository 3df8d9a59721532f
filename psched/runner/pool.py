"""A worker's runners: forked ahead of need, used, and gone with all that they have started."""

import logging
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from psched.base.clock import Clock
from psched.base.fault_log import FaultLog
from psched.process import tree
from psched.process.cgroup import Cgroup, Leaves
from psched.process.child import reap
from psched.process.link import Link
from psched.process.orphan_reaper import OrphanReaper
from psched.process.signals import Waitable
from psched.runner.fork_server import MOST_AT_ONCE, ForkServer
from psched.runner.stop_flags import Reason, StopFlags, StopFlagTable
from psched.worker.running_task import RunnerChild

_log = logging.getLogger("psched.worker")

_PLACES = 4
"""For each task that may run at once: runners that are waiting, or do not die, have one, too."""


class RunnerPool:
    """The runners of one worker.

    Args:
        main: a runner's whole life, in its own process; returns its exit status.
        keep: descriptors that runners need: the open log file.
        clock: this host's clocks.
        concurrency: how many tasks may run at once.
        hold_up: seconds for which the worker may be held up by a fork.
        patience: seconds after which a fork server hangs that owes an answer, or an end.
        cgroup: this process's, below which each runner is given one; None: there is none.
        before_fork: called in the fork server before it forks.

    Attributes:
        quiet: called before a fork server is forked; closes what must not be open then.
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
        self.quiet: Callable[[], object] = lambda: None
        self._main = main
        self._places = _PLACES * (concurrency + MOST_AT_ONCE)
        self._new_server = partial(
            ForkServer,
            places=self._places,
            keep=keep,
            clock=clock,
            hold_up=hold_up,
            patience=patience,
            before_fork=before_fork,
        )
        # The one that forks, and those before it while something that they have forked lives.
        self._server: ForkServer | None = None
        self._servers: dict[ForkServer, StopFlagTable] = {}
        self._servers_made = 0
        self._outdated = False
        self._dismissed = False
        self._clock = clock
        self._idle: list[RunnerChild] = []
        self._alive: dict[int, RunnerChild] = {}
        self._remains = OrphanReaper[RunnerChild](clock)
        self._leaves = None if cgroup is None else Leaves(cgroup, clock)
        self._cleared: list[RunnerChild] = []
        self._lost = FaultLog("the fork server died", _log, clock)
        if cgroup is not None:
            # So that a runner is never outside, not even between its fork and its own cgroup.
            with suppress(OSError):
                cgroup.add(0)
        # What the handlers' modules have started on import is theirs, and stays.
        self._spared = frozenset(tree.children(os.getpid()))

    def start(self) -> ForkServer:
        """Have the fork server, which is started again when it has died.

        Raises:
            OSError: the system has no process or memory left.
            RuntimeError: this process has a second thread.
        """
        if self._server is not None and self._server.channel.closed:
            self._lose(self._server)
        if self._server is None:
            self.quiet()
            # Each has its own: runners of two servers may have the same place.
            notes = StopFlagTable(self._places)
            self._server = self._new_server(partial(_live, self._main, notes))
            self._servers[self._server] = notes
            self._servers_made += 1
            self._spared |= {self._server.pid}
            self._dismissed = False
        return self._server

    @property
    def links(self) -> list[Waitable]:
        """What has news when one of them has."""
        links: list[Waitable] = [runner.link for runner in self._alive.values()]
        links += [server.channel for server in self._servers]
        return links

    def renew(self) -> None:
        """A task has used the store: runners that are forked from now on begin with its modules.

        The first fork server was forked before this process had loaded them. The next one has
        them from this process, so nobody waits for an import. It is forked when a runner is
        needed; the first one stays until its runners have ended.
        """
        self._outdated = self._servers_made == 1

    @property
    def waiting(self) -> bool:
        """Whether one waits for a task."""
        return bool(self._idle)

    def prepare(self, count: int = 1, *, unused: bool = False) -> None:
        """Have one waiting, so that the next task does not wait for a fork.

        Args:
            count: so many tasks are to be started: if none is waiting, as many are forked, up to
                a few, which costs less in one go.
            unused: have one waiting that has run no task; `take` returns it.

        Raises:
            OSError: the system has no process or memory left.
            RuntimeError: this process has a second thread.
        """
        if not self._idle or (unused and self._idle[-1].used):
            self._fork(count)

    def take(self) -> RunnerChild:
        """One that `prepare` has made, for one task."""
        runner = self._idle.pop()
        # TERM may have been meant for the task before.
        runner.note.write(Reason.NONE)
        runner.note.begun = False
        return runner

    def give_back(self, runner: RunnerChild) -> bool:
        """Keep a runner for another task, if nothing is left of the last one; else kill it.

        Returns:
            Whether nothing is left; if not, `cleared` tells when that is so.
        """
        clean = self.clear(runner)
        if clean:
            runner.used = True
            # Before all that are unused, which are taken first.
            self._idle.insert(0, runner)
        else:
            self.kill(runner)
        return clean

    def clear(self, runner: RunnerChild) -> bool:
        """KILL all below a runner; whether nothing is left there, and it lives."""
        if runner.exit is not None:
            return False  # these were its last words, and `reap` has seen to its tree
        clean = tree.kill_all_below(runner.pid) and not runner.link.halfway
        if runner.cgroup is not None:
            # It may have given up being the one to whom its orphans come: prctl(2).
            clean = clean and not {*runner.cgroup.members} - {runner.pid}
        return clean

    def reap(self) -> list[RunnerChild]:
        """Those that have ended; what they have left running is killed: see `cleared`."""
        # Our own children's: of orphans, and of the fork server, whose runners come to us then.
        exits = [*reap()]
        own = {exit_.pid: exit_ for exit_ in exits}
        # A pid that has been reaped can be anybody's next.
        self._spared -= own.keys()
        for server in [*self._servers]:
            told = server.exits()
            # An end is never told before the beginning, but they may come together.
            self._enrol(server, server.late())
            exits += told
            server.bury([exit_.pid for exit_ in told])
            # Before its runners' ends, which come of this and may come together with it.
            if server.pid in own:
                self._lose(server, f"it {own[server.pid]}")
        ended = []
        for exit_ in exits:
            runner = self._alive.pop(exit_.pid, None)
            if runner is not None:  # else it is an orphan of a run that ended before
                runner.reaped(exit_)
                self._remains.add(runner, runner.cgroup)
                ended.append(runner)
        self._hear_idle()
        for server in [*self._servers]:
            server.watch(self._alive)
            if server.channel.fault is not None:
                self._lose(server)
        self._lost.passed()
        self._let_servers_go()
        if exits or self._remains.due:
            cleared = self._remains.look(self._spared | self._alive.keys())
            for runner in cleared:
                self._take_back(runner)
            self._cleared += cleared
        return ended

    def cleared(self) -> list[RunnerChild]:
        """Those that have ended, and of whose trees nothing is left now; each once."""
        cleared, self._cleared = self._cleared, []
        return cleared

    def late(self) -> list[tuple[RunnerChild, str]]:
        """Those of whose trees something does not die, and what that is; each once."""
        late, self._remains.late = self._remains.late, []
        return late

    @property
    def wakes(self) -> float:
        """When `reap` is to be called again, seconds of the monotonic clock."""
        return min([self._remains.wakes, *(server.wakes for server in self._servers)])

    def kill(self, runner: RunnerChild) -> None:
        """KILL a runner and all below it; its end is seen by `reap`."""
        if runner.exit is not None:
            return  # its pid may be another's; what it has left is seen to by `reap`
        if runner.cgroup is not None:
            runner.cgroup.kill()
        runner.send(signal.SIGKILL)
        tree.kill_below(runner.pid)

    def cut_off(self, runner: RunnerChild) -> bool:
        """Kill a runner that has sent what it must not send; whether it has, told once."""
        if runner.link.fault is None or runner.cut_off:
            return False
        runner.cut_off = True
        _log.error("killing process %d: it has sent %s", runner.pid, runner.link.fault)
        self.kill(runner)
        return True

    def dismiss(self) -> None:
        """Let those go that wait for a task, and the fork servers after the last of all."""
        for runner in self._idle:
            runner.link.close()
        self._idle.clear()
        self._dismissed = True
        self._let_servers_go()

    def _hear_idle(self) -> None:
        """See which waiting runners have died, or say what nobody has asked them."""
        for runner in self._idle:
            if runner.link.receive() or runner.link.halfway:
                # The next task's messages would begin in the midst of this one.
                runner.link.cut("a message without a task")
            self.cut_off(runner)
        self._idle = [runner for runner in self._idle if not runner.link.closed]

    def _take_back(self, runner: RunnerChild) -> None:
        """Nothing is left of it, so its cgroup may be another's, if it was not killed."""
        if self._leaves is not None and runner.cgroup is not None and runner.exit is not None:
            self._leaves.take_back(runner.cgroup, as_new=runner.exit.signal is None)

    def _lose(self, server: ForkServer, how: str = "it has ended") -> None:
        if server.channel.fault is not None:
            how = f"it has sent {server.channel.fault}"
        self._lost.failed(f"{how}, and all that it had forked dies with it")
        for pid in server.unburied:
            if pid in self._alive:
                self._alive[pid].lost_server = True
        # They are about to die: a task that began in one now would die with it.
        self._idle = [runner for runner in self._idle if not runner.lost_server]
        self._let_go(server)
        if server.pid in self._spared:  # or it has been reaped, and may be anybody
            tree.send(server.pid, signal.SIGKILL)

    def _let_servers_go(self) -> None:
        for server in [*self._servers]:
            if not server.unburied and (self._dismissed or server is not self._server):
                self._let_go(server)

    def _let_go(self, server: ForkServer) -> None:
        server.close()
        del self._servers[server]
        if server is self._server:
            self._server = None

    def _fork(self, count: int) -> None:
        server = self._up_to_date()
        try:
            born = server.fork(count)
        except ConnectionError:
            # It had died, which nobody knew yet.
            server = self.start()
            born = server.fork(count)
        self._enrol(server, born)

    def _up_to_date(self) -> ForkServer:
        """The fork server, or the one that takes its place; see `renew`."""
        before = self._server
        if self._outdated and before is not None and not before.owes:
            self._outdated = False
            self._server = None
            try:
                return self.start()
            except (OSError, RuntimeError) as error:
                # Tasks load for themselves what they need, which takes them longer.
                _log.warning("no new fork server, the old one goes on: %s", error)
                self._server = before
        return self.start()

    def _enrol(self, server: ForkServer, born: Iterable[tuple[int, int, Link]]) -> None:
        now = self._clock.monotonic()
        for place, pid, link in born:
            runner = RunnerChild(pid, link, now, self._servers[server].at(place))
            self._alive[pid] = runner
            self._remains.born(runner)
            if self._leaves is not None:
                runner.cgroup = self._leaves.give(pid)
            self._idle.append(runner)


def _live(
    main: Callable[[Link, StopFlags], int], notes: StopFlagTable, place: int, link: Link
) -> int:
    return main(link, notes.at(place))

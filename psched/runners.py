"""A worker's runners: forked ahead of need, used, and gone with all that they have started."""

import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from psched.clock import Clock
from psched.slots import RunnerChild
from psched.supervisor import tree
from psched.supervisor.cgroup import Cgroup
from psched.supervisor.child import reap
from psched.supervisor.forkserver import MOST_AT_ONCE, ForkServer
from psched.supervisor.link import Link
from psched.supervisor.note import Notes, Reason, StopNote
from psched.supervisor.remains import Remains
from psched.supervisor.signals import Waitable

_log = logging.getLogger("psched.worker")

_NOTES = 4
"""For each task that may run at once: runners that are waiting, or do not die, have one, too."""


_STEP = 1.0
"""Seconds between two looks at an end that the fork server does not tell of."""


class Runners:
    """The runners of one worker.

    Args:
        main: a runner's whole life, in its own process; returns its exit status.
        keep: descriptors that runners need: the open log file.
        clock: this host's clocks.
        concurrency: how many tasks may run at once.
        patience: seconds after which a fork server that says nothing hangs.
        cgroup: this process's, below which each runner is given one; None: there is none.
        before_fork: called in the fork server before it forks.
        preload: called there when a task has used what that loads.

    Attributes:
        quiet: called before the fork server is forked; closes what must not be open then.
    """

    def __init__(
        self,
        main: Callable[[Link, StopNote], int],
        *,
        keep: Sequence[int],
        clock: Clock,
        concurrency: int,
        patience: float,
        cgroup: Cgroup | None = None,
        before_fork: Callable[[], object] = lambda: None,
        preload: Callable[[], object] = lambda: None,
    ) -> None:
        self.quiet: Callable[[], object] = lambda: None
        self._notes = Notes(_NOTES * (concurrency + MOST_AT_ONCE))
        self._new_server = partial(
            ForkServer,
            partial(_live, main, self._notes),
            keep=keep,
            patience=patience,
            before_fork=before_fork,
            preload=preload,
        )
        self._server: ForkServer | None = None
        self._patience = patience
        self._watched = clock.monotonic()
        self._untold = 0.0
        self._preloaded = False
        self._dismissed = False
        self._clock = clock
        self._idle: list[RunnerChild] = []
        self._alive: dict[int, RunnerChild] = {}
        self._remains = Remains[RunnerChild](clock)
        self._cgroup = cgroup
        self._cgroups = 0
        self._spare_cgroups: list[Cgroup] = []
        self._cleared: list[RunnerChild] = []
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
            self._lose_server("has ended")
        if self._server is None:
            self.quiet()
            self._server, self._dismissed = self._new_server(), False
            self._spared |= {self._server.pid}
        return self._server

    @property
    def links(self) -> list[Waitable]:
        """What has news when one of them has."""
        links: list[Waitable] = [runner.link for runner in self._alive.values()]
        if self._server is not None:
            links.append(self._server.channel)
        return links

    def preload(self) -> None:
        """A task has used what `preload` loads: those that follow are to begin with it."""
        if not self._preloaded and self._server is not None:
            self._preloaded = True
            self._server.preload()

    def prepare(self, count: int = 1) -> None:
        """Have one waiting, so that the next task does not wait for a fork.

        Args:
            count: so many tasks are to be started: if none is waiting, as many are forked, up to
                a few, which costs less in one go.

        Raises:
            OSError: the system has no process or memory left.
            RuntimeError: this process has a second thread.
        """
        if not self._idle:
            self._fork(min(count, MOST_AT_ONCE))

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
        if runner.exit is not None:
            return False  # these were its last words, and `reap` has seen to its tree
        clean = tree.kill_all_below(runner.pid)
        if runner.cgroup is not None:
            # It may have given up being the one to whom its orphans come: prctl(2).
            clean = clean and not {*runner.cgroup.members} - {runner.pid}
        if clean:
            self._idle.append(runner)
        else:
            self.kill(runner)
        return clean

    def reap(self) -> list[RunnerChild]:
        """Those that have ended; what they have left running is killed: see `cleared`."""
        # Our own children's: of orphans, and of the fork server, whose runners come to us then.
        exits = [*reap()]
        told = self._server.exits() if self._server is not None else []
        exits += told
        ended = []
        # A pid that has been reaped can be anybody's next.
        self._spared -= {exit_.pid for exit_ in exits}
        for exit_ in exits:
            runner = self._alive.pop(exit_.pid, None)
            if runner is not None:  # else it is an orphan of a run that ended before
                runner.reaped(exit_)
                self._notes.give_back(runner.note)
                self._remains.add(runner, runner.cgroup)
                ended.append(runner)
            if self._server is not None and exit_.pid == self._server.pid:
                self._lose_server(str(exit_))
        if told and self._server is not None:
            self._server.bury([exit_.pid for exit_ in told])
        if exits:
            self._idle = [runner for runner in self._idle if runner.exit is None]
        self._watch_server()
        self._let_server_go()
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
        if self._untold:
            return min(self._remains.wakes, self._watched + _STEP)
        return self._remains.wakes

    def kill(self, runner: RunnerChild) -> None:
        """KILL a runner and all below it; its end is seen by `reap`."""
        if runner.exit is not None:
            return  # its pid may be another's; what it has left is seen to by `reap`
        if runner.cgroup is not None:
            runner.cgroup.kill()
        runner.send(signal.SIGKILL)
        tree.kill_below(runner.pid)

    def dismiss(self) -> None:
        """Let those go that wait for a task, and the fork server after the last of all."""
        for runner in self._idle:
            runner.link.close()
        self._idle.clear()
        self._dismissed = True
        self._let_server_go()

    def _watch_server(self) -> None:
        """KILL a fork server that does not tell of an end: it would never be told."""
        now = self._clock.monotonic()
        closed = [each.pid for each in self._alive.values() if each.link.closed]
        if all(map(tree.alive, closed)):
            self._untold = 0.0
        else:
            # Step by step: when all has stood still, it is given its time all the same.
            self._untold += min(now - self._watched, _STEP)
        if self._untold > self._patience and self._server is not None:
            tree.send(self._server.pid, signal.SIGKILL)
        self._watched = now

    def _lose_server(self, how: str) -> None:
        _log.error("the fork server %s: all that it has forked goes with it", how)
        if self._server is not None:
            self._server.close()
            self._server = None

    def _let_server_go(self) -> None:
        if self._dismissed and not self._alive and self._server is not None:
            self._server.close()
            self._server = None

    def _fork(self, count: int) -> None:
        server = self.start()
        notes = [note for _ in range(count) if (note := self._notes.take()) is not None]
        born: list[tuple[int, Link]] = []
        try:
            if not notes:
                raise BlockingIOError("too many runners that have been killed do not die")
            born = server.fork([note.place for note in notes])
        finally:
            for note in notes[len(born) :]:
                self._notes.give_back(note)
        now = self._clock.monotonic()
        for note, (pid, link) in zip(notes, born, strict=False):
            runner = RunnerChild(pid, link, now, note)
            self._alive[pid] = runner
            self._remains.born(runner)
            runner.cgroup = self._cgroup_for(pid)
            self._idle.append(runner)

    def _cgroup_for(self, pid: int) -> Cgroup | None:
        """Give a runner a cgroup of its own; where that fails, there is still the walk."""
        if self._cgroup is None:
            return None
        leaf: Cgroup | None = None
        try:
            if self._spare_cgroups:
                leaf = self._spare_cgroups.pop()
            else:
                self._cgroups += 1
                leaf = self._cgroup.below(f"run-{self._cgroups}")
            leaf.add(pid)
        except OSError as error:
            if leaf is not None:
                leaf.remove()
            _log.warning("runner %d has no cgroup of its own: %s", pid, error)
            return None
        return leaf

    def _take_back(self, runner: RunnerChild) -> None:
        """Keep the cgroup of one of which nothing is left, for another: to make one takes long.

        Not that of one that was killed, which may have been frozen.
        """
        if runner.cgroup is None:
            return
        with suppress(OSError):
            ended_well = runner.exit is not None and runner.exit.signal is None
            if ended_well and not runner.cgroup.has_below:
                self._spare_cgroups.append(runner.cgroup)
                return
        runner.cgroup.remove()


def _live(main: Callable[[Link, StopNote], int], notes: Notes, place: int, link: Link) -> int:
    return main(link, notes.at(place))

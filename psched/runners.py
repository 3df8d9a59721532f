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
from psched.supervisor.link import Link
from psched.supervisor.note import Reason, StopNote
from psched.supervisor.remains import Remains
from psched.supervisor.spawn import spawn_alike

_log = logging.getLogger("psched.worker")

_MOST_AT_ONCE = 8
"""Forks in a row: what runs meanwhile wants to be watched, and more would save nothing more."""


class Runners:
    """The runners of one worker.

    Args:
        main: a runner's whole life, in its own process; returns its exit status.
        before_fork: called before each fork; closes what must not be open then.
        keep: descriptors that runners need: the open log file.
        clock: this host's clocks.
        cgroup: this process's, below which each runner is given one; None: there is none.
    """

    def __init__(
        self,
        main: Callable[[Link, StopNote], int],
        *,
        before_fork: Callable[[], None],
        keep: Sequence[int],
        clock: Clock,
        cgroup: Cgroup | None = None,
    ) -> None:
        self._main = main
        self._before_fork = before_fork
        self._keep = keep
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

    @property
    def links(self) -> list[Link]:
        """The lines to those that are alive."""
        return [runner.link for runner in self._alive.values()]

    def prepare(self, count: int = 1) -> None:
        """Have one waiting, so that the next task does not wait for a fork.

        Args:
            count: so many tasks are to be started: if none is waiting, as many are forked, up to
                a few, which costs less in one go; see `spawn_alike`.

        Raises:
            OSError: the system has no process or memory left.
            RuntimeError: this process has a second thread.
        """
        if not self._idle:
            self._fork(min(count, _MOST_AT_ONCE))

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
        exits = [*reap()]
        ended = []
        # A pid that has been reaped can be anybody's next.
        self._spared -= {exit_.pid for exit_ in exits}
        for exit_ in exits:
            runner = self._alive.pop(exit_.pid, None)
            if runner is not None:  # else it is an orphan of a run that ended before
                runner.reaped(exit_)
                self._remains.add(runner, runner.cgroup)
                ended.append(runner)
        if exits:
            self._idle = [runner for runner in self._idle if runner.exit is None]
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
        """Let those go that wait for a task."""
        for runner in self._idle:
            runner.link.close()
        self._idle.clear()

    def _fork(self, count: int) -> None:
        self._before_fork()
        notes = [StopNote() for _ in range(count)]
        born = spawn_alike([partial(self._live, note) for note in notes], keep=self._keep)
        now = self._clock.monotonic()
        for note, (pid, link) in zip(notes, born, strict=False):
            runner = RunnerChild(pid, link, now, note)
            self._alive[pid] = runner
            self._remains.born(runner)
            runner.cgroup = self._cgroup_for(pid)
            self._idle.append(runner)

    def _live(self, note: StopNote, link: Link) -> int:
        return self._main(link, note)

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

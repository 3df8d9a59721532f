"""A worker's runners: forked ahead of need, used, and gone with all that they have started."""

import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

from psched.clock import Clock
from psched.slots import RunnerChild
from psched.supervisor import tree
from psched.supervisor.cgroup import Cgroup
from psched.supervisor.child import reap
from psched.supervisor.link import Link
from psched.supervisor.note import Reason, StopNote
from psched.supervisor.remains import Remains
from psched.supervisor.spawn import spawn

_log = logging.getLogger("psched.worker")


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
        self._forks = 0
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

    def prepare(self) -> None:
        """Have one waiting, so that the next task does not wait for a fork.

        Raises:
            OSError: the system has no process or memory left.
            RuntimeError: this process has a second thread.
        """
        if not self._idle:
            self._idle.append(self._fork())

    def take(self) -> RunnerChild:
        """A runner for one task.

        Raises:
            OSError: the system has no process or memory left.
        """
        runner = self._idle.pop() if self._idle else self._fork()
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
            self._cleared += self._remains.look(self._spared | self._alive.keys())
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

    def _fork(self) -> RunnerChild:
        self._before_fork()
        note = StopNote()
        pid, link = spawn(
            lambda link: self._main(link, note),
            keep=self._keep,
            leader=True,
            dies_with_parent=True,
        )
        runner = RunnerChild(pid, link, self._clock.monotonic(), note)
        self._alive[pid] = runner
        self._remains.born(runner)
        self._put_into_cgroup(runner)
        return runner

    def _put_into_cgroup(self, runner: RunnerChild) -> None:
        """Give a runner a cgroup of its own; where that fails, there is still the walk."""
        if self._cgroup is None:
            return
        self._forks += 1
        try:
            leaf = self._cgroup.below(f"run-{self._forks}")
        except OSError as error:
            _log.warning("runner %d has no cgroup of its own: %s", runner.pid, error)
            return
        try:
            leaf.add(runner.pid)
        except OSError as error:
            leaf.remove()
            _log.warning("runner %d has no cgroup of its own: %s", runner.pid, error)
            return
        runner.cgroup = leaf

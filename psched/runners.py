"""A worker's runners: forked ahead of need, used, and gone with all that they have started."""

import os
import signal
from collections.abc import Callable, Sequence

from psched.clock import Clock
from psched.slots import RunnerChild
from psched.supervisor import tree
from psched.supervisor.child import reap
from psched.supervisor.link import Link
from psched.supervisor.note import Reason, StopNote
from psched.supervisor.spawn import spawn


class Runners:
    """The runners of one worker.

    Args:
        main: a runner's whole life, in its own process; returns its exit status.
        before_fork: called before each fork; closes what must not be open then.
        keep: descriptors that runners need: the open log file.
        clock: this host's clocks.
    """

    def __init__(
        self,
        main: Callable[[Link, StopNote], int],
        *,
        before_fork: Callable[[], None],
        keep: Sequence[int],
        clock: Clock,
    ) -> None:
        self._main = main
        self._before_fork = before_fork
        self._keep = keep
        self._clock = clock
        self._idle: list[RunnerChild] = []
        self._alive: dict[int, RunnerChild] = {}
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
        return runner

    def give_back(self, runner: RunnerChild) -> None:
        """Keep a runner for another task; nothing is left of the last one."""
        tree.kill_all_below(runner.pid)
        self._idle.append(runner)

    def reap(self) -> list[RunnerChild]:
        """Those that have ended; what they have left running is killed, to the last process."""
        exits = [*reap()]
        ended = []
        for exit_ in exits:
            runner = self._alive.pop(exit_.pid, None)
            if runner is not None:  # else it is an orphan of a run that ended before
                runner.reaped(exit_)
                ended.append(runner)
        if exits:
            self._idle = [runner for runner in self._idle if runner.exit is None]
            self.sweep()
        return ended

    def sweep(self) -> None:
        """KILL every process below this one that belongs to no living runner."""
        tree.kill_all_below(os.getpid(), self._spared | self._alive.keys())

    def kill(self, runner: RunnerChild) -> None:
        """KILL a runner and all below it; its end is seen by `reap`."""
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
        return runner

"""The interface between a worker and its runners, however they are made."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

from psched.process.signals import Waitable
from psched.runner.runner_child import RunnerChild
from psched.runner.stop_flags import Reason

_log = logging.getLogger("psched.worker")


class RunnerPool(ABC):
    """A worker's runners: made ahead of need, used, and gone with all that they have started.

    Subclasses make the runners, append them to `_idle`, and see how they end: a runner that has
    ended leaves `_idle`, and is appended to `_cleared` when nothing is left of its tree.
    """

    def __init__(self) -> None:
        self._idle: list[RunnerChild] = []
        self._cleared: list[RunnerChild] = []

    @property
    @abstractmethod
    def links(self) -> Sequence[Waitable]:
        """The links that become readable when a runner has sent a message or has ended."""

    @property
    def waiting(self) -> bool:
        """Whether a runner waits for a task."""
        return bool(self._idle)

    @property
    @abstractmethod
    def wakes(self) -> float:
        """When `reap` is to be called again, seconds of the monotonic clock."""

    @abstractmethod
    def prepare(self, count: int = 1, *, unused: bool = False) -> None:
        """Have a runner waiting, so that the next task does not wait for a fork.

        Args:
            count: how many tasks are to be started: if no runner is waiting, as many are made, up
                to a few, which costs less than to make them one by one.
            unused: have a runner waiting that has run no task; `acquire` returns that one.

        Raises:
            OSError: the system has no process or memory left.
            RuntimeError: this process has a second thread.
        """

    def acquire(self) -> RunnerChild:
        """A runner that `prepare` has made, for one task."""
        runner = self._idle.pop()
        # TERM may have been meant for the task before.
        runner.stop_flags.write(Reason.NONE)
        runner.stop_flags.begun = False
        return runner

    def give_back(self, runner: RunnerChild) -> bool:
        """Keep a runner for another task, if nothing is left of its last one; else kill it.

        Returns:
            Whether nothing is left; otherwise `cleared` returns the runner when all is gone.
        """
        clean = self.clear(runner)
        if clean:
            runner.used = True
            # Before all that are unused, which are acquired first.
            self._idle.insert(0, runner)
        else:
            self.kill(runner)
        return clean

    @abstractmethod
    def clear(self, runner: RunnerChild) -> bool:
        """KILL all processes below a runner; return whether none is left and the runner lives."""

    @abstractmethod
    def kill(self, runner: RunnerChild) -> None:
        """KILL a runner and all processes below it; `reap` will return the runner."""

    @abstractmethod
    def reap(self) -> Sequence[RunnerChild]:
        """The runners that have ended; their trees are killed, see `cleared`."""

    def cleared(self) -> Sequence[RunnerChild]:
        """The runners that have ended, and whose trees are gone now; each once."""
        cleared, self._cleared = self._cleared, []
        return cleared

    @abstractmethod
    def late(self) -> Sequence[tuple[RunnerChild, str]]:
        """The ended runners whose trees do not die, and what is left; each is returned once."""

    @abstractmethod
    def renew(self) -> None:
        """Have new runners begin with the store's modules, because a task has used the store."""

    @abstractmethod
    def dismiss(self) -> None:
        """Let the waiting runners exit, because no task will follow."""

    def cut_off(self, runner: RunnerChild) -> bool:
        """Kill a runner that has sent an invalid message; return whether this call has done so."""
        if runner.link.fault is None or runner.cut_off:
            return False
        runner.cut_off = True
        _log.error("killing process %d: it has sent %s", runner.pid, runner.link.fault)
        self.kill(runner)
        return True

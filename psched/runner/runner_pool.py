"""The interface between a worker and its runners; subclasses decide how runners are created."""

import logging
import signal
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from psched.output.captured import Pipe
from psched.process.child import Child, Exit
from psched.process.link import Link
from psched.process.signals import Waitable
from psched.runner.messages import FROM_RUNNER
from psched.runner.progress import NOTHING
from psched.runner.stop_flags import Reason, StopFlags

if TYPE_CHECKING:
    from psched.process.cgroup import Cgroup


class RunnerChild(Child):
    """The worker's record of a runner.

    Args:
        pid: the pid of the runner.
        link: the worker's end of the link to the runner.
        now: the current time, seconds of the monotonic clock.
        stop_flags: the flags in memory that the worker shares with the runner.
        pipe: carries the output of the runner; None if its output is not collected.

    Attributes:
        stop_flags: tell the runner why its task is being stopped, and tell the worker whether the
            runner has begun its task.
        cgroup: the runner's own cgroup; None if the runner has no cgroup of its own.
        lost_server: whether the runner's fork server died while the runner was alive.
        used: whether the runner has run a task.
        killed: whether this process has sent SIGKILL to the runner.
        cpu_us: the CPU time of the cgroup during the last task that has ended, in microseconds;
            None if it is not known.
        oom_kills: the value of `RunnerPool.oom_kills` when the task of the runner was started.
    """

    def __init__(
        self,
        pid: int,
        link: Link,
        now: float,
        stop_flags: StopFlags,
        pipe: Pipe | None = None,
    ) -> None:
        super().__init__(pid, link, now)
        link.expects = FROM_RUNNER
        self.stop_flags = stop_flags
        self.pipe = pipe
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
        super().send(number)
        if number is signal.SIGKILL and self.exit is None:
            self.killed = True

    @override
    def reaped(self, how: Exit) -> None:
        super().reaped(how)
        self.stop_flags.close()


_log = logging.getLogger("psched.worker")

_QUIET = 10.0
"""Seconds without tasks after which runners exit that have run no task."""

_LONG_QUIET = 600.0
"""Seconds without tasks after which runners exit that have run tasks.

They stay longer, because what they have loaded, or their connections, may be needed at the next
full minute, or in five minutes.
"""


class RunnerPool(ABC):
    """Creates a worker's runners before they are needed, and ends them with all their processes.

    Subclasses create the runners, and append each new runner to `_idle`. When a runner ends, the
    subclass removes it from `_idle`. When all processes that the runner has left behind are dead,
    the subclass appends it to `_cleared`.
    """

    def __init__(self) -> None:
        self._idle: list[RunnerChild] = []
        self._held: set[RunnerChild] = set()
        self._cleared: list[RunnerChild] = []

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

        Args:
            count: how many tasks are to be started. If no runner is waiting, up to this many are
                created at once, because that costs less than to create them one by one.
            unused: whether the runner that `acquire` returns next must have run no task yet.

        Raises:
            OSError: the system has no process or memory left.
            RuntimeError: this process has a second thread.
        """

    @abstractmethod
    def order(self, count: int) -> None:
        """Have runners created meanwhile, until so many wait for a task; return at once.

        A failure is ignored, because the next call of `prepare` meets and reports it.
        """

    def acquire(self) -> RunnerChild:
        """Return a waiting runner for one task; `prepare` must be called before."""
        runner = self._idle.pop()
        # The flags are reset, because they might still describe the runner's previous task.
        runner.stop_flags.write(Reason.NONE)
        runner.stop_flags.begun = False
        runner.stop_flags.write_progress(NOTHING)
        runner.oom_kills = self.oom_kills()
        return runner

    def give_back(self, runner: RunnerChild) -> bool:
        """Keep a runner for another task if `clear` allows this; otherwise kill the runner.

        Returns:
            Whether the runner is kept. If not, `cleared` returns the runner once all its processes
            are dead.
        """
        clean = self.clear(runner)
        if clean:
            runner.used = True
            # The runner is inserted at the front. `acquire` takes a runner from the end, so that it
            # takes unused runners first.
            self._idle.insert(0, runner)
        else:
            self.kill(runner)
        return clean

    def hold(self, runner: RunnerChild) -> None:
        """Give a runner no further task until `unhold` is called; no effect if it is not idle."""
        if runner in self._idle:
            self._idle.remove(runner)
            self._held.add(runner)

    def unhold(self, runner: RunnerChild) -> None:
        """Allow further tasks for a runner that was held."""
        if runner in self._held:
            self._held.remove(runner)
            if runner.exit is None and not runner.link.closed:
                self._idle.insert(0, runner)

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

        After `_QUIET` seconds, all but one of the runners exit that have run no task. After
        `_LONG_QUIET` seconds, all but one of all waiting runners exit. A runner that has run a task
        stays rather than one that has not.

        Args:
            quiet: for how many seconds no task was claimed and none has ended.
        """
        if quiet <= _QUIET:
            return
        # `give_back` inserts used runners at the front, the last one first.
        idle = [runner for runner in self._idle if quiet > _LONG_QUIET or not runner.used]
        for runner in idle[1:]:
            self._idle.remove(runner)
            self._let_exit(runner)

    @abstractmethod
    def _let_exit(self, runner: RunnerChild) -> None:
        """Have a waiting runner exit; `reap` will return it."""

    @abstractmethod
    def dismiss(self) -> bool:
        """Let the waiting runners exit, because no task will follow.

        Returns:
            Whether runners that have run tasks still live.
        """

    def cut_off(self, runner: RunnerChild) -> bool:
        """Kill a runner if it has sent an invalid message.

        Returns:
            Whether this call has killed the runner.
        """
        if runner.link.fault is None or runner.cut_off:
            return False
        runner.cut_off = True
        _log.error("killing process %d: it has sent %s", runner.pid, runner.link.fault)
        self.kill(runner)
        return True

"""What a worker knows about one of its runners."""

import signal
from typing import TYPE_CHECKING

from typing_extensions import override

from psched.output.pipe import Pipe
from psched.process.child import Child, Exit
from psched.process.link import Link
from psched.runner.messages import FROM_RUNNER
from psched.runner.stop_flags import StopFlags

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

"""Runners that are not processes: a test decides what each runner does.

In a test, these runners replace the forked runners of a worker; see `psched.testing.worker_driver`.
"""

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from psched.base.clock import Clock
from psched.core.model import Occurrence
from psched.process.child import Exit
from psched.process.link import Link
from psched.process.signals import Waitable
from psched.runner.messages import TO_RUNNER, EndReport
from psched.runner.runner_pool import RunnerChild, RunnerPool
from psched.runner.stop_flags import Reason, StopFlagTable

_FIRST_PID = 2**22 + 1
"""The pid of the first runner; larger than the pid of any process, see PID_MAX_LIMIT in proc(5)."""

_REPORT = EndReport()

_LONGEST_PAYLOAD = 2**24
"""The largest number of bytes of a payload that a runner accepts."""


class ManualRunner(RunnerChild):
    """A runner that is not a process: the test decides which messages it sends, and when it ends.

    The worker and the runner send each other messages over a real `Link`.

    Args:
        pid: a number that is not the pid of a process.
        clock: the clock of the worker; gives the times of `signals`.

    Attributes:
        assignment: the task that the runner runs; None if it runs none.
        payload: the payload of the last task, as stored in the row; empty before the first task.
        answers: the worker's answers to `ask`, in the order of their arrival.
        signals: the signals that the runner has received, each with its time in seconds of the
            monotonic clock.
        hangs: whether the runner ignores the tasks that the worker sends; set by the test.
        unkillable: whether the runner survives KILL, like a process in uninterruptible sleep; set
            by the test.
        pending_exit: how the runner has ended; None if it has not ended. `ManualRunnerPool.reap`
            reports the end to the worker.
    """

    def __init__(self, pid: int, clock: Clock) -> None:
        ours, self._peer = Link.pair()
        self._peer.expects, self._peer.data_limit = TO_RUNNER, _LONGEST_PAYLOAD
        super().__init__(pid, ours, clock.monotonic(), StopFlagTable(1).at(0))
        self._clock = clock
        self.assignment: Mapping[str, Any] | None = None
        self.payload = b""
        self.answers: list[Mapping[str, Any]] = []
        self.signals: list[tuple[float, signal.Signals]] = []
        self.hangs = False
        self.unkillable = False
        self.pending_exit: Exit | None = None

    @property
    def occurrence(self) -> str:
        """The occurrence that the runner runs, as text; empty if it runs none."""
        if self.assignment is None:
            return ""
        return str(Occurrence(self.assignment["key"], self.assignment["scheduled_time"]))

    @property
    def stop_reason(self) -> str:
        """Why the worker asks the task to stop; empty if the worker does not ask for this."""
        reason = self.stop_flags.read()
        return "" if reason is Reason.NONE else reason.name.lower()

    def finish(
        self,
        failure: str | None = None,
        *,
        last: bool = False,
        report: EndReport = _REPORT,
    ) -> None:
        """Report to the worker that the handler has returned, or has raised an exception.

        Args:
            failure: the exception, in one line; None if the handler has returned.
            last: whether the runner exits instead of accepting further tasks.
            report: what else the runner tells about the task.
        """
        self.assignment = None
        self._peer.send(
            {
                "done": failure,
                "error": report.error,
                "exit": (report.exit_status, report.exit_signal),
                "used": (report.cpu_us or 0, report.peak_kb),
                "last": last,
                "store": False,
                "result": report.result,
            }
        )
        if last:
            self.exit_with(0)

    def ask(self, data: bytes = b"", **question: object) -> None:
        """Send a request of the task to the worker, such as ``ask(extend=True)``.

        `receive` appends the worker's answer to `answers`.
        """
        self._peer.send(question, data)

    def exit_with(self, status: int | None, number: int | None = None) -> None:
        """End the runner, as if by an exit status or by a signal.

        `ManualRunnerPool.reap` reports the end to the worker.
        """
        if self.exit is None and self.pending_exit is None:
            self.pending_exit = Exit(self.pid, status, number)

    def receive(self) -> None:
        """Receive the tasks and answers that the worker has sent."""
        for message in self._peer.receive():
            if "run" in message:
                if not self.hangs:
                    self.stop_flags.begun = True
                    self.assignment, self.payload = message["run"], message.get("data", b"")
            else:
                self.answers.append(message)

    def close(self) -> None:
        """Close both ends of the link between the worker and the runner."""
        self.link.close()
        self._peer.close()

    @override
    def send(self, number: signal.Signals) -> None:
        if self.exit is None and self.pending_exit is None:
            self.signals.append((self._clock.monotonic(), number))
            if number is signal.SIGKILL:
                self.killed = True
                if not self.unkillable:
                    self.exit_with(None, number)

    @override
    def reaped(self, how: Exit) -> None:
        super().reaped(how)
        self.assignment = None
        self.close()


class ManualRunnerPool(RunnerPool):
    """Creates the runners of a worker under test; these runners are not processes.

    Args:
        clock: the clock of the worker; each new runner lets it sleep for ``fork_takes``.

    Attributes:
        runners: all runners whose end has not been reported to the worker.
        fork_takes: seconds that the creation of a runner takes; set by the test.
        refuses: whether `prepare` raises an OSError instead of creating a runner, as if fork had
            failed; set by the test.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.runners: list[ManualRunner] = []
        self.fork_takes = 0.0
        self.refuses = False
        self._clock = clock
        self._made = 0

    def close(self) -> None:
        """Close the links to all runners. The pool cannot be used afterwards."""
        for runner in self.runners:
            runner.close()

    def receive(self) -> None:
        """Have all runners receive the messages that the worker has sent to them."""
        for runner in self.runners:
            runner.receive()

    @property
    @override
    def links(self) -> Sequence[Waitable]:
        return [runner.link for runner in self.runners]

    @property
    @override
    def wakes(self) -> float:
        pending = any(runner.pending_exit is not None for runner in self.runners)
        return 0.0 if pending else float("inf")

    @override
    def prepare(self, count: int = 1, *, unused: bool = False) -> None:
        if self._idle and not (unused and self._idle[-1].used):
            return
        if self.fork_takes:
            self._clock.sleep(self.fork_takes)
        if self.refuses:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._create()

    @override
    def order(self, count: int) -> None:
        while len(self._idle) < count and not self.refuses:
            self._create()

    @override
    def clear(self, runner: RunnerChild) -> bool:
        # A runner whose end was reported is not in `runners`, so it is not used again.
        return any(each is runner and each.pending_exit is None for each in self.runners)

    @override
    def kill(self, runner: RunnerChild) -> None:
        runner.send(signal.SIGKILL)

    @override
    def reap(self) -> Sequence[ManualRunner]:
        ended = []
        for runner in self.runners:
            if runner.pending_exit is not None:
                runner.reaped(runner.pending_exit)
                ended.append(runner)
        self.runners = [runner for runner in self.runners if runner not in ended]
        self._idle = [runner for runner in self._idle if runner not in ended]
        self._cleared += ended
        return ended

    @override
    def late(self) -> Sequence[tuple[RunnerChild, str]]:
        return []

    @override
    def renew(self) -> None:
        pass

    def _create(self) -> None:
        runner = ManualRunner(_FIRST_PID + self._made, self._clock)
        self._made += 1
        self.runners.append(runner)
        self._idle.append(runner)

    @override
    def _let_exit(self, runner: RunnerChild) -> None:
        for each in self.runners:
            if each is runner:
                each.exit_with(0)

    @override
    def dismiss(self) -> bool:
        for runner in self._idle:
            self._let_exit(runner)
        return False

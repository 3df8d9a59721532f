"""Runners that are not processes: a test decides what they do."""

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from psched.core.model import Occurrence
from psched.process.child import Exit
from psched.process.link import Link
from psched.process.signals import Waitable
from psched.runner.messages import TO_RUNNER
from psched.runner.runner_child import RunnerChild
from psched.runner.runner_pool import RunnerPool
from psched.runner.stop_flags import Reason, StopFlagTable
from psched.testing.manual_clock import ManualClock

_FIRST_PID = 2**22 + 1
"""No process on Linux has this pid or a higher one: see PID_MAX_LIMIT in proc(5)."""

_LONGEST_PAYLOAD = 2**24
"""Bytes."""


class ManualRunner(RunnerChild):
    """A runner whose messages and end a test decides. Its `Link` is a real one.

    Args:
        pid: a number that no process has.
        clock: tells when a signal arrived.

    Attributes:
        assignment: the task that it runs; None: it has none.
        payload: the task's data, as it is stored.
        answers: what the worker has answered to `ask`, in that order.
        signals: the signals that it was sent, each with seconds of the monotonic clock.
        hangs: it never begins the tasks that it is sent.
        unkillable: KILL does not end it, as in uninterruptible sleep.
        pending_exit: how it has ended; the worker is told by `ManualRunnerPool.reap`.
    """

    def __init__(self, pid: int, clock: ManualClock) -> None:
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
        """The occurrence that it runs; empty if it runs none."""
        if self.assignment is None:
            return ""
        return str(Occurrence(self.assignment["key"], self.assignment["scheduled_time"]))

    @property
    def stop_reason(self) -> str:
        """Why the task is asked to stop, as a handler is told; empty if it is not asked."""
        reason = self.stop_flags.read()
        return "" if reason is Reason.NONE else reason.name.lower()

    def finish(self, failure: str | None = None, *, last: bool = False) -> None:
        """Report that the handler has returned, or has raised.

        Args:
            failure: what it has raised, in one line.
            last: the runner takes no further task, and exits.
        """
        self.assignment = None
        self._peer.send({"done": failure, "last": last, "store": False})
        if last:
            self.exit_with(0)

    def ask(self, data: bytes = b"", **question: object) -> None:
        """Send the worker a task's question, such as ``ask(extend=True)``; see `answers`."""
        self._peer.send(question, data)

    def exit_with(self, status: int | None, number: int | None = None) -> None:
        """End the process, by an exit status or by a signal; the pool tells the worker."""
        if self.exit is None and self.pending_exit is None:
            self.pending_exit = Exit(self.pid, status, number)

    def receive(self) -> None:
        """Receive what the worker has sent."""
        for message in self._peer.receive():
            if "run" in message:
                if not self.hangs:
                    self.stop_flags.begun = True
                    self.assignment, self.payload = message["run"], message.get("data", b"")
            else:
                self.answers.append(message)

    def close(self) -> None:
        """Close both ends of the line."""
        self.link.close()
        self._peer.close()

    @override
    def send(self, number: signal.Signals) -> None:
        if self.exit is None and self.pending_exit is None:
            self.signals.append((self._clock.monotonic(), number))
            if number is signal.SIGKILL and not self.unkillable:
                self.exit_with(None, number)

    @override
    def reaped(self, how: Exit) -> None:
        super().reaped(how)
        self.assignment = None
        self.close()


class ManualRunnerPool(RunnerPool):
    """Makes runners that fork nothing.

    Args:
        clock: the test's; each new runner moves it on by ``fork_takes``.

    Attributes:
        runners: all that have not ended.
        fork_takes: seconds for which a new runner blocks the worker.
        refuses: there is no process to be had: `prepare` raises an OSError.
    """

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.runners: list[ManualRunner] = []
        self.fork_takes = 0.0
        self.refuses = False
        self._clock = clock
        self._made = 0

    def close(self) -> None:
        """Close the lines to all runners; the pool is not used any more."""
        for runner in self.runners:
            runner.close()

    def receive(self) -> None:
        """Have all runners receive what the worker has sent them."""
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
        self._clock.advance(self.fork_takes)
        if self.refuses:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        runner = ManualRunner(_FIRST_PID + self._made, self._clock)
        self._made += 1
        self.runners.append(runner)
        self._idle.append(runner)

    @override
    def clear(self, runner: RunnerChild) -> bool:
        # A runner that has ended is not here any more once the worker has been told.
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

    @override
    def dismiss(self) -> None:
        for runner in self.runners:
            if runner in self._idle:
                runner.exit_with(0)

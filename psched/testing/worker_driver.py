"""Runs a worker that starts no process and never sleeps; a test moves the worker's clock.

A test also decides what each runner does, which replaces a forked one.
"""

import errno
import os
import random
import signal
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from typing_extensions import override

from psched.base.clock import Clock
from psched.base.log import Log
from psched.config import from_mapping
from psched.core.history.recording import Recorder, StoreClock
from psched.core.model import Occurrence
from psched.core.store_protocol import Store
from psched.master.generation_spec import WorkerIdentity
from psched.master.messages import FROM_WORKER, LONGEST_PIECE
from psched.process.child import Exit
from psched.process.link import Link
from psched.process.signals import Waitable
from psched.runner.messages import TO_RUNNER
from psched.runner.runner_pool import RunnerChild, RunnerPool
from psched.runner.shared_memory import Reason, StopFlags
from psched.testing.manual_clock import ManualClock
from psched.worker.context import Context, KillTimer
from psched.worker.running_task import EndReport
from psched.worker.worker import Inbox, Worker

_FIRST_PID = 2**22 + 1
"""The pid of the first runner; larger than the pid of any process, see PID_MAX_LIMIT in proc(5)."""

_REPORT = EndReport()

_LONGEST_PAYLOAD = 2**24  # the largest number of bytes of a payload that a runner accepts


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
        super().__init__(pid, ours, clock.monotonic(), StopFlags())
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


_SHORTEST_STEP = 0.001
"""The shortest time between two ticks, in seconds.

Without this limit, `advance` would never end if every tick were followed by another tick at once.
"""

_MOST_RUNS = 10_000
"""The number of tasks after which one `WorkerDriver.run_due` ends.

Without this limit, the call would never end if a failed task were due again at once, every time.
"""


class ManualInbox(Inbox):
    """An inbox to which a test sends signals by a method, without the operating system."""

    def __init__(self) -> None:
        self._arrived: set[int] = set()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the worker; the worker receives it at the next tick."""
        self._arrived.add(number)

    @override
    def take(self) -> Collection[int]:
        arrived, self._arrived = self._arrived, set()
        return arrived

    @override
    def watch(self, links: Iterable[Waitable]) -> None:
        pass

    @override
    def sleep(self, timeout: float) -> bool:
        raise AssertionError("a worker that is driven does not sleep")


class ManualDeadMan(KillTimer):
    """A timer that records when the kernel would kill the worker, but does not kill it.

    Args:
        clock: the clock that the test moves.

    Attributes:
        at: when the timer fires, in seconds of the boot-time clock; None if the timer is not set.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.at: float | None = None
        self._clock = clock

    def check(self) -> None:
        """Check that the timer has not fired.

        Raises:
            AssertionError: the timer has fired: the kernel would have killed the worker.
        """
        fired = self.at is not None and self._clock.boottime() >= self.at
        assert not fired, f"the kernel has killed the worker at {self.at}"

    @override
    def set(self, at: float | None) -> None:
        self.check()
        self.at = at

    @override
    def hasten(self, at: float) -> None:
        self.check()
        self.at = at if self.at is None else min(self.at, at)


class WorkerDriver:
    """Runs a worker on a store.

    The driver runs the worker's real code. It replaces only the clock, the signals, the kernel's
    timer, and the runners, which are not processes. The store decides by its own clock which rows
    are due. So use a store that reads the driver's clock, such as a
    `psched.stores.plain.PlainStore` on a dict with a ``now`` that returns ``clock.wall()``. If the
    store has another clock, the test must move both clocks.

    ::

        with WorkerDriver(store, concurrency=2) as driver:
            driver.start()
            driver.advance(1)
            driver.tasks["report"].finish("ValueError: no")
            driver.advance(1)

    Args:
        store: the store that contains the schedules.
        clock: the clock that the test moves; None for a new clock.
        nonce: the text that identifies the worker in its leases.
        seed: the seed of all random delays (jitter).
        startup: returns an iterator; its steps are work in the store that the worker does before it
            claims rows. None if there are no such steps.
        settings: psched's settings, by name.

    Attributes:
        worker: the worker under test.
        clock: the clock that the worker reads.
        pool: the runners of the worker.
        inbox: the inbox by which the test sends signals to the worker.
        deadman: the timer that replaces the kernel's timer.
        messages: all messages that the worker has sent to its master.
        titles: all process titles that the worker has set.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: ManualClock | None = None,
        nonce: str = "nonce",
        seed: int = 1,
        startup: Callable[[], Iterator[None]] | None = None,
        **settings: object,
    ) -> None:
        self.clock = ManualClock() if clock is None else clock
        self.pool = ManualRunnerPool(self.clock)
        self.inbox = ManualInbox()
        self.deadman = ManualDeadMan(self.clock)
        self.messages: list[Mapping[str, Any]] = []
        self.titles: list[str] = []
        self._master, link = Link.pair()
        self._master.expects = FROM_WORKER
        self._master.data_limit = LONGEST_PIECE
        self._link = link
        context = Context(
            place=WorkerIdentity(0, 1, nonce),
            link=link,
            settings=from_mapping({"url": "sqlite:///unused.db", **settings}),
            store=store,
            pool=self.pool,
            deadman=self.deadman,
            clock=self.clock,
            rng=random.Random(seed),  # noqa: S311  # jitter
            recorder=Recorder(
                host=socket.gethostname(), generation=1, clock=StoreClock(self.clock)
            ),
            startup=startup,
        )
        log = Log(None, "worker")
        self.worker = Worker(context, inbox=self.inbox, log=log, show_title=self.titles.append)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the links to the master and to the runners; the test must close the store."""
        self._master.close()
        self._link.close()
        self.pool.close()

    @property
    def tasks(self) -> Mapping[str, ManualRunner]:
        """The runners that are running a task, by the key of the task's schedule."""
        return {
            runner.assignment["key"]: runner
            for runner in self.pool.runners
            if runner.assignment is not None
        }

    @property
    def exit_status(self) -> int | None:
        """The worker's exit status; None while it is running."""
        return self.worker.exit_status

    def start(self) -> None:
        """Start the worker, and send it the master's order to claim rows."""
        self.worker.begin()
        self.order(go=True)

    def order(self, **message: object) -> None:
        """Send the worker an order of the master, which the worker executes at the next tick."""
        self._master.send(message)

    def lose_master(self) -> None:
        """Close the master's end of the link, as if the master had died."""
        self._master.close()

    def tick(self) -> float:
        """Have the worker do everything that is due; return the seconds until the next tick."""
        self.deadman.check()
        timeout = self.worker.tick()
        self.pool.receive()
        self.messages += self._master.receive()
        return timeout

    def advance(self, seconds: float) -> None:
        """Move the clock; the worker ticks now, whenever something is due, and at the end.

        This returns early if the worker exits.
        """
        end = self.clock.monotonic() + seconds
        while True:
            timeout = self.tick()
            left = end - self.clock.monotonic()
            if left <= 0 or self.exit_status is not None:
                return
            self.clock.advance(min(max(timeout, _SHORTEST_STEP), left))

    def run_due(self, failures: Mapping[str, str] | None = None) -> list[str]:
        """Run all tasks that are due now; each ends at once. The clock does not move.

        Args:
            failures: for each task that is to fail, by its schedule's key, the error in one line.

        Returns:
            The occurrences that were run, in the order in which they were run.
        """
        run: list[str] = []
        self.tick()
        while (tasks := self.tasks) and len(run) < _MOST_RUNS:
            for key, runner in tasks.items():
                run.append(runner.occurrence)
                runner.finish((failures or {}).get(key))
            self.tick()
        return run

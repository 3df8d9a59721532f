"""Runs a worker that starts no process and never sleeps; a test moves the worker's clock."""

import random
import signal
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Self

from typing_extensions import override

from psched.base.log import Log
from psched.config import from_mapping
from psched.core.history.recording import Recorder, StoreClock
from psched.core.store_protocol import Store
from psched.master.generation_spec import WorkerIdentity
from psched.master.messages import FROM_WORKER, LONGEST_PIECE
from psched.process.link import Link
from psched.process.signals import Waitable
from psched.testing.manual_clock import ManualClock
from psched.testing.manual_runner_pool import ManualRunner, ManualRunnerPool
from psched.worker.context import Context, KillTimer
from psched.worker.worker import Inbox, Worker

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

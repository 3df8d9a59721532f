"""A worker that a test drives: no process, no sleep, and the test moves the clock."""

import random
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Self

from typing_extensions import override

from psched.base.log import Log
from psched.config import from_mapping
from psched.core.store_protocol import Store
from psched.master.generation_spec import WorkerIdentity
from psched.master.messages import FROM_WORKER
from psched.process.link import Link
from psched.process.signals import Waitable
from psched.testing.manual_clock import ManualClock
from psched.testing.manual_runner_pool import ManualRunner, ManualRunnerPool
from psched.worker.composition import make_worker
from psched.worker.task_guard import KillTimer
from psched.worker.worker import Inbox

_SHORTEST_STEP = 0.001
"""The least seconds between two ticks, so that a worker that ticks all the time terminates."""

_MOST_RUNS = 10_000
"""The most tasks that `WorkerDriver.run_due` runs, because failures may repeat at once."""


class ManualInbox(Inbox):
    """Signals that a test sends; no process receives them."""

    def __init__(self) -> None:
        self._arrived: set[int] = set()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the worker."""
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
    """The timer that kills a worker which does not guard its tasks; this one only records.

    Args:
        clock: the test's.

    Attributes:
        at: when it fires, seconds of the boot-time clock; None: never.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.at: float | None = None
        self._clock = clock

    def check(self) -> None:
        """Check that the timer has not fired.

        Raises:
            AssertionError: the kernel would have killed the worker by now.
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
    """Drives a worker on a store.

    Everything is the worker's own code, but for the clock, the signals, the kernel's timer, and
    the runners, which fork nothing. The store decides by its own clock what is due: a test brings
    one that asks the driver's, such as a `psched.stores.plain.PlainStore` on a dict with a ``now``
    that returns ``clock.wall()``. If the store has another clock, the test moves both.

    ::

        with WorkerDriver(store, concurrency=2) as driver:
            driver.start()
            driver.advance(1)
            driver.tasks["report"].finish("ValueError: no")
            driver.advance(1)

    Args:
        store: where the schedules are.
        clock: default: a new one.
        nonce: the worker's; its leases carry it.
        seed: of all jitter.
        startup: begins what is to be done in the store first.
        settings: psched's.

    Attributes:
        worker: the worker.
        clock: its clock.
        pool: its runners.
        inbox: its signals.
        deadman: the kernel's timer.
        messages: all that it has told its master.
        titles: the titles that it has given its process.
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
        self._link = link
        self.worker = make_worker(
            link,
            WorkerIdentity(0, 1, nonce),
            from_mapping({"url": "sqlite:///unused.db", **settings}),
            store=store,
            pool=self.pool,
            deadman=self.deadman,
            inbox=self.inbox,
            log=Log(None, "worker"),
            clock=self.clock,
            rng=random.Random(seed),  # noqa: S311  # jitter
            show_title=self.titles.append,
            startup=startup,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the lines to the master and to the runners. The store is the test's to close."""
        self._master.close()
        self._link.close()
        self.pool.close()

    @property
    def tasks(self) -> Mapping[str, ManualRunner]:
        """The runners that have a task, by their schedules' keys."""
        return {
            runner.assignment["key"]: runner
            for runner in self.pool.runners
            if runner.assignment is not None
        }

    @property
    def exit_status(self) -> int | None:
        """The worker's; None: it goes on."""
        return self.worker.exit_status

    def start(self) -> None:
        """Begin, and have the master admit the worker."""
        self.worker.begin()
        self.order(go=True)

    def order(self, **message: object) -> None:
        """Send the worker an order of its master's; it obeys at the next tick."""
        self._master.send(message)

    def lose_master(self) -> None:
        """Let the master die."""
        self._master.close()

    def tick(self) -> float:
        """Have the worker do what is due; return the seconds until something is due again."""
        self.deadman.check()
        timeout = self.worker.tick()
        self.pool.receive()
        self.messages += self._master.receive()
        return timeout

    def advance(self, seconds: float) -> None:
        """Let time pass; the worker ticks now, whenever something is due, and at the end."""
        end = self.clock.monotonic() + seconds
        while True:
            timeout = self.tick()
            left = end - self.clock.monotonic()
            if left <= 0 or self.exit_status is not None:
                return
            self.clock.advance(min(max(timeout, _SHORTEST_STEP), left))

    def run_due(self, failures: Mapping[str, str] | None = None) -> list[str]:
        """Run the tasks that are due at this instant, to their end.

        Args:
            failures: what the tasks of these keys raise, in one line.

        Returns:
            The occurrences that were run, in their order.
        """
        run: list[str] = []
        self.tick()
        while (tasks := self.tasks) and len(run) < _MOST_RUNS:
            for key, runner in tasks.items():
                run.append(runner.occurrence)
                runner.finish((failures or {}).get(key))
            self.tick()
        return run

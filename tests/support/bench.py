"""A worker without a store: real runners run handlers, and a ledger records their requests.

To be used in a function that runs isolated (see `support.isolated`), since runners are forked.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from psched.application import Dispatch
from psched.base import log
from psched.base.clock import SystemClock
from psched.base.lease_times import Deadlines
from psched.config import from_mapping
from psched.core.columns import encode
from psched.core.definition import parse_row
from psched.core.model import Row
from psched.core.policy import Run
from psched.master.generation_spec import WorkerIdentity
from psched.output.collection import OutputCollection
from psched.process.cgroup import Cgroup
from psched.process.deadman import DeadMan
from psched.service.worker_boot import make_runner_pool
from psched.worker.running_task import Lease, RunningTask
from psched.worker.task_table import TaskTable
from psched.worker.worker import prepare_process
from support.processes import children, title
from support.waiting import PATIENCE, wait_until
from support.worker import context

CLOCK = SystemClock()


class Ledger:
    """Stands in for the store: grants every request, and records it.

    Attributes:
        refuses: whether requests for new data are refused, as with a lost lease.
        extended: how often a lease was extended.
        data: the payloads that were written.
    """

    def __init__(self) -> None:
        self.refuses = False
        self.extended = 0
        self.data: list[str] = []

    def extend_now(self, _task: RunningTask) -> bool:
        """Record an extend; see `psched.worker.store_gateway.StoreGateway`."""
        self.extended += 1
        return True

    def update_data(self, _task: RunningTask, data: str) -> bool:
        """Record a payload; see `psched.worker.store_gateway.StoreGateway`."""
        self.data.append(data)
        return not self.refuses


class Bench:
    """Runs tasks as a worker does; at most one in this process.

    Args:
        handlers: the handlers, by the types of tasks.
        log_file: the log's file; default: standard error.
        cgroup: this process's, below which each runner is given one.
        open_schedules: opens the schedules for a task; default: none does.
        secrets: are hidden in output.
        hooks: has the hooks of each process of tasks.
        settings: psched's.

    Attributes:
        ledger: the requests to the store.
        output: collects what tasks print, unless the setting ``output`` is raw.
    """

    def __init__(
        self,
        handlers: Mapping[str, Any],
        *,
        log_file: str | None = None,
        cgroup: Cgroup | None = None,
        open_schedules: Callable[[], Any] | None = None,
        secrets: Iterable[str] = (),
        hooks: Dispatch | None = None,
        **settings: Any,
    ) -> None:
        self.log = log.start(None if log_file is None else Path(log_file), "info", "bench")
        self.inbox = prepare_process(self.log, WorkerIdentity(0, 1, "nonce"))
        self.ledger = Ledger()
        # Most tests look at what tasks print themselves.
        given = {"url": "sqlite:///unused.db", "concurrency": 1, "output": "raw", **settings}
        self._settings = from_mapping(given)
        self.output = None
        if self._settings.captures_output:
            self.output = OutputCollection(clock=CLOCK, secrets=secrets, log=self.log)
        self.pool = make_runner_pool(
            self._settings,
            handlers.get,
            open_schedules or _no_schedules,
            log=self.log,
            clock=CLOCK,
            cgroup=cgroup,
            output=self.output,
            hooks=hooks,
        )
        if self.output is not None:
            self.pool.start()
            self.output.start()
        self.tasks = TaskTable(
            context(
                CLOCK,
                self._settings,
                pool=self.pool,
                deadman=DeadMan(),
                output=self.output,
                handlers=handlers,
            )
        )

    def start(self, type: str, key: str | None = None, **data: object) -> RunningTask:  # noqa: A002
        """Start a task.

        Args:
            type: the type, which selects the handler.
            key: the schedule's key; default: the type.
            data: the payload.
        """
        return self.start_row(type, encode("data", data), key)

    def start_row(
        self,
        type: str,  # noqa: A002
        stored: str | bytes,
        key: str | None = None,
    ) -> RunningTask:
        """Start a task with this payload, as a store returns it; see `start`."""
        row = Row(
            key=type if key is None else key,
            type=type,
            data=stored,
            next_time=60,
            owner="nonce.1",
            fence=1,
            attempt=1,
        )
        self.pool.prepare()
        deadlines = Deadlines(CLOCK.boottime(), 300, 5.0)
        self.tasks.start(Lease(row, deadlines), Run(parse_row(row, self._settings), 60))
        self.tasks.send_starts()
        return self.tasks.running[row.key]

    @property
    def collector(self) -> int:
        """The pid of the collector."""
        return wait_until(lambda: self.collectors, what="the collector")[0]

    @property
    def collectors(self) -> list[int]:
        """The pids of all living collectors."""
        return [pid for pid in children(os.getpid()) if title(pid) == "psched collector"]

    def turn(self, timeout: float = 0.05) -> None:
        """Take one turn of a worker's loop, at most so many seconds long."""
        self.tasks.receive(self.ledger)
        wakes = self.tasks.guard() - CLOCK.monotonic()
        self.inbox.wait(max(0, min(timeout, wakes)), self.tasks.links)

    def until(self, condition: Callable[[], object]) -> None:
        """Work until something is so."""
        end = CLOCK.monotonic() + PATIENCE
        while not condition():
            assert CLOCK.monotonic() < end, "waited in vain"
            self.turn()

    @property
    def server(self) -> int:
        """The pid of the fork server."""
        return self.pool.start().pid

    def close(self) -> None:
        """Dismiss the runners and the fork server, and wait for their ends."""
        self.pool.dismiss()
        collector = [] if self.output is None else self.output.links
        self.until(lambda: [*self.tasks.links] == collector)
        self.tasks.close()

    def finish(self, task: RunningTask) -> str:
        """Run the loop until nothing is left of a task; return how its lease would be settled."""
        self.until(lambda: task.empty)
        self.tasks.remove(task.row.key)
        return str(task.conclusion)

    def run(self, type: str, key: str | None = None, **data: object) -> str:  # noqa: A002
        """Run a task to its end; return how its lease would be settled."""
        return self.finish(self.start(type, key, **data))


def _no_schedules() -> Any:
    raise AssertionError("no handler here opens its schedules")

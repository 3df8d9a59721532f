"""A master whose time, signals and processes a test controls."""

import itertools
import random
import signal
from collections.abc import Mapping
from typing import Any

from psched.master.generation_spec import GenerationSpec
from psched.master.master import Master
from psched.master.messages import FROM_MASTER
from psched.master.nonce_file import NonceFile
from psched.master.respawn import Respawn
from psched.master.sd_notify import Notifier
from psched.master.status import Status
from psched.master.status_socket import StatusSocket
from psched.master.worker_child import WorkerChild
from psched.master.workers import Workers
from psched.testing.manual_clock import ManualClock
from psched.testing.manual_spawner import ManualChild, ManualSpawner

_LEAST = 0.001
"""The least seconds between two ticks."""


class MasterDriver:
    """Drives a `psched.master.master.Master` without a process, a signal or a second of waiting.

    ::

        with contextlib.closing(MasterDriver(processors=2)) as driver:
            driver.boot()
            driver.worker(1).dies()
            driver.tick()
            assert driver.worker(1).lives  # another one

    A worker that was made ready sends a sign of life whenever time passes, until `silence` stops
    it. The test decides everything else that happens to workers; see `ManualChild`.

    Args:
        processors: how many workers a generation has; may be changed before a restart.
        spawner: makes the workers; None: a `ManualSpawner`.
        limits: seconds of `GenerationSpec`: ``start_timeout``, ``heartbeat_limit``,
            ``graceful_timeout``, ``kill_limit``.

    Attributes:
        clock: the master's clock.
        spawner: the spawner that creates the workers.
        master: the master under test.
        workers: the master's table of children.
        spec_error: the error that `read_spec` raises; None: `read_spec` succeeds.
        reopened: how often the master has reopened its log.
        title: the master's process title: generation, state, what is wrong.
    """

    def __init__(
        self, *, processors: int = 1, spawner: ManualSpawner | None = None, **limits: float
    ) -> None:
        self.clock = ManualClock()
        self.spawner = ManualSpawner() if spawner is None else spawner
        self.processors = processors
        self.spec_error: Exception | None = None
        self.reopened = 0
        self.title = ""
        self._limits = {
            "start_timeout": 60.0,
            "heartbeat_limit": 60.0,
            "graceful_timeout": 10.0,
            "kill_limit": 5.0,
            **limits,
        }
        self._talking: set[int] = set()
        numbers = itertools.count(1)
        self.workers = Workers(
            self.clock,
            self.spawner,
            draw_nonce=lambda: f"nonce-{next(numbers)}",
            keep=lambda: (),
            cgroup=None,
            nonce_file=NonceFile(None, "", None, self.clock),
            inherited=(),
        )
        self.master = Master(
            self.read_spec,
            self.workers,
            clock=self.clock,
            respawn=Respawn(random.Random(0)),  # noqa: S311  # jitter
            reopen_logs=self._reopen,
            status=Status(
                notifier=Notifier({}),
                socket=StatusSocket([], self.clock),
                set_title=self.set_title,
                recent=[],
                clock=self.clock,
            ),
            on_terminal=False,
        )

    def close(self) -> None:
        """Close the links that are open."""
        for worker in self.workers:
            worker.link.close()
        self.spawner.close()

    # --- what happens ----------------------------------------------------------------

    def tick(self) -> float:
        """Let the master do what is due; return the seconds until something is due again."""
        timeout = self.master.tick()
        for child in self.spawner.living:
            child.link.expects = FROM_MASTER
            child.receive()
        return timeout

    def advance(self, seconds: float) -> None:
        """Let time pass, with a tick whenever the master wants one, until it has stopped."""
        left = seconds
        while True:
            for child in self.spawner.living:
                if child.pid in self._talking:
                    child.say(tasks=0, away=None, enough="")
            timeout = max(self.tick(), _LEAST)
            if left <= 0 or self.master.has_stopped:
                return
            self.clock.advance(min(timeout, left))
            left -= timeout

    def send(self, *numbers: signal.Signals) -> None:
        """Send the master signals that arrive at the same time, and let it act on them."""
        self.master.obey(numbers)
        self.tick()

    def ready(self, child: ManualChild, reported: Mapping[str, Any] | None = None) -> None:
        """Report that a worker has loaded its handlers; if it is admitted, it polls for due rows.

        Args:
            child: the worker.
            reported: settings that only it could read.
        """
        child.say(ready=reported)
        self.tick()
        if {"go": True} in child.received:
            self._talking.add(child.pid)
            child.say(looked=True)
            self.tick()

    def silence(self, child: ManualChild) -> None:
        """Let a worker hang: it gives no sign of life any more."""
        self._talking.discard(child.pid)

    def boot(self) -> None:
        """Let the master start, or restart, and have all workers of the generation ready."""
        self.tick()
        while waiting := [
            child
            for child in self.spawner.living
            if not self.record(child).ready and not self.record(child).draining
        ]:
            for child in waiting:
                self.ready(child)

    # --- what there is ---------------------------------------------------------------

    def record(self, child: ManualChild) -> WorkerChild:
        """The master's record of a child that it has not reaped."""
        return next(worker for worker in self.workers if worker.pid == child.pid)

    def found(self) -> dict[tuple[int, int], ManualChild]:
        """The living workers, by generation and number; if two share a number, the younger."""
        found = {}
        for child in self.spawner.living:
            identity = self.record(child).identity
            found[identity.generation, identity.number] = child
        return found

    def worker(self, number: int, generation: int | None = None) -> ManualChild:
        """A living worker; -1 is the cleaner.

        Args:
            number: the worker's.
            generation: None: the latest that has such a worker.
        """
        found = self.found()
        latest = max((g for g, n in found if n == number), default=0)
        return found[latest if generation is None else generation, number]

    # --- what the master calls -------------------------------------------------------

    def read_spec(self, reported: Mapping[str, Any] | None) -> GenerationSpec:
        """The configuration, read again; a subclass may return something else.

        Args:
            reported: see `psched.master.generation_spec.ReadSpec`.
        """
        del reported
        if self.spec_error is not None:
            raise self.spec_error
        return GenerationSpec(
            processors=self.processors,
            work=lambda _link, _identity: 0,
            clean_up=lambda _link, _identity, _nonces: 0,
            start_timeout=self._limits["start_timeout"],
            heartbeat_limit=self._limits["heartbeat_limit"],
            graceful_timeout=self._limits["graceful_timeout"],
            kill_limit=self._limits["kill_limit"],
            about={},
        )

    def set_title(self, text: str) -> None:
        """Show a process title."""
        self.title = text

    def _reopen(self) -> None:
        self.reopened += 1

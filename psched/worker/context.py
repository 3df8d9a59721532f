"""What the parts of one worker share."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from psched.base.clock import Clock
from psched.config import Config
from psched.core.history.recording import Recorder
from psched.core.store_protocol import Store
from psched.handlers.exec import Program
from psched.master.generation_spec import WorkerIdentity
from psched.output.collection import OutputCollection
from psched.process.link import Link
from psched.runner.runner_pool import RunnerPool


class KillTimer(Protocol):
    """Kills this process at the time that was set; see `psched.process.deadman.DeadMan`."""

    def set(self, at: float | None) -> None:
        """Set the time at which this process is killed, in seconds of the boot-time clock.

        None switches the timer off.
        """
        ...

    def hasten(self, at: float) -> None:
        """Set the time at which this process is killed, unless an earlier time is set already."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the parts of one worker share.

    Attributes:
        place: the worker's number, generation and nonce, which identifies it in its leases.
        link: the connection to the master.
        settings: the installation's settings.
        store: where the schedules are.
        pool: creates and kills the runners.
        deadman: kills this process if it does not guard its tasks in time.
        clock: measures all that is due.
        rng: the source of random pauses, so that workers do not all do the same at the same time.
        recorder: creates the records of the run history; it has the store's clock and the counts.
        output: collects what tasks print; None if nobody does.
        handlers: the handlers by type that are psched's own, which a worker may ask for the program
            that a program runner executes.
        program: such a handler of all other types, which the setting ``exec`` names; None if there
            is none.
        startup: returns an iterator over the work in the store that precedes the first claim, see
            `psched.worker.chores`; None if there is none.
    """

    place: WorkerIdentity
    link: Link
    settings: Config
    store: Store
    pool: RunnerPool
    deadman: KillTimer
    clock: Clock
    rng: random.Random
    recorder: Recorder
    output: OutputCollection | None = None
    handlers: Mapping[str, Any] = field(default_factory=dict)
    program: type[Program] | None = None
    startup: Callable[[], Iterator[None]] | None = None

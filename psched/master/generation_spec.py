"""The definition of a generation of workers; the master knows nothing else about their work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psched.process.cgroup import Cgroup
from psched.process.deadman import Deadline
from psched.process.link import Link

DRAINED = 0
"""Exit status of a worker that holds no lease; after any other status, it may hold leases."""

BAD_HANDLERS = 65
"""Exit status: handlers cannot be loaded (sysexits.h: EX_DATAERR)."""

BAD_CONFIG = 78
"""Exit status: the configuration cannot be used (sysexits.h: EX_CONFIG)."""

FATAL = {
    BAD_HANDLERS: "its handlers cannot be loaded",
    BAD_CONFIG: "its configuration cannot be used",
}
"""Exit statuses that another try would only repeat, each with its meaning for a log line."""


CLEANER = -1
"""The worker number of a cleaner, a process that runs `GenerationSpec.clean_up`."""


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The number of a worker, and the resources that its master created for it before the fork.

    Attributes:
        number: counts from 0; a replacement receives the number of the worker that it replaces.
        generation: the number of its generation; every restart increases it.
        nonce: a random text that no other process uses; the store records it in the worker's
            leases.
        cgroup: the worker's own cgroup; None: the worker runs in the cgroup of its master.
        deadline: shared memory in which the worker writes when its lease timer will kill it;
            None: a cleaner, which has no lease timer.
    """

    number: int
    generation: int
    nonce: str
    cgroup: Cgroup | None = None
    deadline: Deadline | None = None

    @property
    def name(self) -> str:
        """The process in a log line: "cleaner", or "worker" and its number."""
        return "cleaner" if self.number == CLEANER else f"worker {self.number}"

    def __str__(self) -> str:
        return f"{self.name} (gen {self.generation})"


def nothing() -> None:
    """Do nothing; the default of callbacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSpec:
    """The parameters of one generation of workers.

    Attributes:
        processors: the number of workers.
        work: the main function of a worker process; returns the exit status.
        clean_up: the main function of a cleaner, a process that only releases the leases of dead
            workers. Its last argument is the nonces of those workers. The master forks a cleaner
            when no living worker can release the leases.
        start_timeout: seconds until a worker must have reported that it is ready.
        heartbeat_limit: seconds for which a ready worker may be silent.
        graceful_timeout: seconds for which running tasks may continue after a shutdown has begun.
        kill_limit: seconds from the end of ``graceful_timeout`` until all processes of tasks that
            still run are killed.
        about: the database and the handlers of the generation, for ``psched status``.
        adopt: called in the master when the generation begins to serve.
    """

    processors: int
    work: Callable[[Link, WorkerIdentity], int]
    clean_up: Callable[[Link, WorkerIdentity, Sequence[str]], int]
    start_timeout: float
    heartbeat_limit: float
    graceful_timeout: float
    kill_limit: float
    about: Mapping[str, str]
    adopt: Callable[[], object] = nothing


ReadSpec = Callable[[Mapping[str, Any] | None], GenerationSpec]
"""Reads the configuration anew and returns the next generation.

The argument of the first call is None. A Python program can define the settings, but the master
does not load it. The first worker loads it and reports the settings before it claims a task. The
master then calls the function again, with that report."""


class SpecError(Exception):
    """No generation can be started from the configuration; the text is for the log.

    Attributes:
        status: the master's exit status if there is no earlier generation.
    """

    def __init__(self, text: str, status: int = BAD_CONFIG) -> None:
        super().__init__(text)
        self.status = status

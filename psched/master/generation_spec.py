"""What a generation of workers is made of; the master knows nothing else about their work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psched.process.cgroup import Cgroup
from psched.process.deadman import Deadline
from psched.process.link import Link

DRAINED = 0
"""Exit status of a worker that has left no lease; after any other status there may be some."""

BAD_HANDLERS = 65
"""Exit status: handlers cannot be loaded (sysexits.h: EX_DATAERR)."""

BAD_CONFIG = 78
"""Exit status: the configuration cannot be used (sysexits.h: EX_CONFIG)."""

FATAL = {
    BAD_HANDLERS: "its handlers cannot be loaded",
    BAD_CONFIG: "its configuration cannot be used",
}
"""Exit statuses after which another try would fail, too, and what they mean."""


CLEANER = -1
"""The number of a process that is not a worker; see `GenerationSpec.clean_up`."""


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Which worker a process is, and what was made for it before it was forked.

    Attributes:
        number: from 0; a replacement has the number of its predecessor.
        generation: grows with every restart.
        nonce: drawn for this process alone; its leases carry it.
        cgroup: made for this process alone; None: it has none.
        deadline: shared memory in which the process notes when its lease timer will kill it.
    """

    number: int
    generation: int
    nonce: str
    cgroup: Cgroup | None = None
    deadline: Deadline | None = None

    @property
    def name(self) -> str:
        """For people."""
        return "cleaner" if self.number == CLEANER else f"worker {self.number}"

    def __str__(self) -> str:
        return f"{self.name} (gen {self.generation})"


def nothing() -> None:
    """Do nothing; the default of callbacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSpec:
    """One generation.

    Attributes:
        processors: the number of workers.
        work: a worker's whole life, in its own process; returns its exit status.
        clean_up: the whole life of a process that only releases the leases of dead workers, which
            are named by their nonces. It is forked when no worker is left that could do it.
        start_timeout: seconds until a worker must have reported that it is ready.
        heartbeat_limit: seconds for which a ready worker may be silent.
        graceful_timeout: seconds that running tasks are given at a shutdown.
        kill_limit: seconds from then until everything that is left is killed.
        about: what it serves, for ``psched status``.
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

Only the first worker of a generation can read the settings of a program. It reports them before it
begins, and the function is called again with that report. The first call is made with None."""


class SpecError(Exception):
    """The configuration does not make a generation; the text is for people.

    Attributes:
        status: the master's exit status if there is no earlier generation.
    """

    def __init__(self, text: str, status: int = BAD_CONFIG) -> None:
        super().__init__(text)
        self.status = status

"""What a generation of workers is made of; all that a master knows of their work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psched.process.cgroup import Cgroup
from psched.process.deadman import Deadline
from psched.process.link import Link

DRAINED = 0
"""Exit status of a worker that holds nothing any more; every other leaves something behind."""

BAD_HANDLERS = 65
"""Exit status: handlers cannot be loaded (sysexits.h: EX_DATAERR)."""

BAD_CONFIG = 78
"""Exit status: the configuration cannot be used (sysexits.h: EX_CONFIG)."""

HOPELESS = {
    BAD_HANDLERS: "its handlers cannot be loaded",
    BAD_CONFIG: "its configuration cannot be used",
}
"""What exit statuses mean, for people, after which trying again would not help."""


CLEANER = -1
"""The number of a process that is no worker; see `GenerationSpec.clean_up`."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker stands.

    Attributes:
        number: from 0; a replacement takes its predecessor's.
        generation: grows with every restart.
        nonce: drawn for this very process; its leases carry it.
        cgroup: made for this very process, if one could be.
        deadline: where it tells when its lease timer kills it.
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
    """Nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSpec:
    """One generation.

    Attributes:
        processors: how many workers.
        work: a worker's whole life, in its own process; returns its exit status.
        clean_up: the same for a process that only releases what dead workers still hold, named
            by their nonces; for a shutdown that has nobody else left to do it.
        start_timeout: seconds a worker may take until it says that it is ready.
        heartbeat_limit: seconds it may be silent after that.
        graceful_timeout: seconds that running tasks are given at a shutdown.
        kill_limit: seconds after that, until all that is left is killed.
        about: what it serves, for ``psched status``.
        adopt: called in the master when the generation begins to serve.
    """

    processors: int
    work: Callable[[Link, Place], int]
    clean_up: Callable[[Link, Place, Sequence[str]], int]
    start_timeout: float
    heartbeat_limit: float
    graceful_timeout: float
    kill_limit: float
    about: Mapping[str, str]
    adopt: Callable[[], object] = nothing


Plan = Callable[[Mapping[str, Any] | None], GenerationSpec]
"""Reads the configuration anew. It is called again with what the first worker of a generation
reports, if that worker knows settings which only it could read (those of a script), before that
worker begins."""


class PlanError(Exception):
    """No generation can be made of the configuration; the text is for people.

    Attributes:
        status: the exit status that says so, if this is the first generation.
    """

    def __init__(self, text: str, status: int = BAD_CONFIG) -> None:
        super().__init__(text)
        self.status = status

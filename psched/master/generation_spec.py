"""The parameters that define a generation of workers.

A generation is a set of workers that use one reading of the configuration and of the handler code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psched.master.reports.health import Limits
from psched.process.cgroup import Cgroup
from psched.process.deadman import Deadline
from psched.process.link import Link

DRAINED = 0
"""Exit status of a worker that has released all its leases.

A worker that ends in any other way might still hold leases, so the master has them released."""

BAD_HANDLERS = 65  # exit status: the handlers cannot be loaded (EX_DATAERR in sysexits.h)
BAD_CONFIG = 78  # exit status: the configuration cannot be used (EX_CONFIG in sysexits.h)

FATAL = {
    BAD_HANDLERS: "its handlers cannot be loaded",
    BAD_CONFIG: "its configuration cannot be used",
}
"""Exit statuses after which a new worker would fail in the same way, so that none is started.

The values are the reasons, as texts for the log."""


CLEANER = -1
"""The worker number of a cleaner: a process that only releases the leases of dead workers."""


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The number of a worker, and the resources that its master created for it before the fork."""

    # The worker's number in its generation, from 0; `CLEANER` for a cleaner. A worker that replaces
    # a dead worker receives the dead worker's number.
    number: int
    generation: int  # the number of the worker's generation. Each restart increases the number by 1
    # A random text that no other process uses; the store records it in the worker's leases.
    nonce: str
    # The worker's own cgroup. None if the worker runs in the cgroup of its master.
    cgroup: Cgroup | None = None
    # Shared memory to which the worker writes the time at which its lease timer will kill it. None
    # for a cleaner, because a cleaner has no lease timer.
    deadline: Deadline | None = None

    @property
    def name(self) -> str:
        """The process's name in log lines: "cleaner", or "worker" and the worker's number."""
        return "cleaner" if self.number == CLEANER else f"worker {self.number}"

    def __str__(self) -> str:
        return f"{self.name} (gen {self.generation})"


def nothing() -> None:
    """Do nothing; the default value of callbacks."""


@dataclass(frozen=True, slots=True)
class MonitorSpec:
    """What a generation says about its monitor; see `psched.master.monitor_child`."""

    # The main function of a monitor process. It is called with the link to the master and with the
    # cgroup that the process must enter, if there is one. It returns the exit status of the
    # process.
    main: Callable[[Link, Cgroup | None], int]
    # The most seconds between two messages of the monitor, and from its fork to the first.
    limit: float
    # When this master is still ready. The monitor is told whether it is, and what the workers have
    # counted.
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSpec:
    """The parameters of one generation of workers."""

    processors: int  # the number of workers
    # The main function of a worker process. It returns the exit status of the process.
    work: Callable[[Link, WorkerIdentity], int]
    # The main function of a cleaner, a process that only releases the leases of dead workers. The
    # function's last argument is the nonces of the dead workers; it returns the exit status. The
    # master forks a cleaner when no living worker can release the leases.
    clean_up: Callable[[Link, WorkerIdentity, Sequence[str]], int]
    # Seconds after the fork of a worker within which the worker must report that it is ready.
    # Otherwise, the master kills the worker.
    start_timeout: float
    # The most seconds between two messages of a ready worker. The master kills a worker that is
    # silent for longer.
    heartbeat_limit: float
    # Seconds for which running tasks are allowed to continue after a shutdown has begun.
    graceful_timeout: float
    # Seconds after the end of ``graceful_timeout`` at which the worker kills all processes of the
    # tasks that still run.
    kill_limit: float
    # What ``psched status`` shows about the generation: its database and table, and the programs
    # and triggers that rows of the table can use. Empty if they are not known yet.
    about: Mapping[str, str]
    # A function that the master calls when the generation replaces the one before it.
    adopt: Callable[[], object] = nothing
    monitor: MonitorSpec | None = None  # how its monitor is run; None if it has no monitor
    # Tells its table from others in the name of the socket for hints that rows may be due; see
    # `psched.master.waking`. None if the master has no such socket.
    wake_code: str | None = None


ReadSpec = Callable[[Mapping[str, Any] | None], GenerationSpec]
"""A function that reads the configuration and returns the parameters of the next generation.

The master calls it with None to start a generation. If a Python program defines the settings, the
master cannot read them, because it does not run the program. Instead, the generation's first worker
runs the program and reports the settings before it claims a task. The master then calls the
function a second time, with the reported settings as the argument."""


class SpecError(Exception):
    """No generation can be started from the configuration. The master logs the error's text."""

    def __init__(self, text: str, status: int = BAD_CONFIG) -> None:
        super().__init__(text)
        # The exit status with which the master exits if no earlier generation runs. If an earlier
        # generation runs, the master continues.
        self.status = status

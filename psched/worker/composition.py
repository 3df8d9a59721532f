"""Creates the objects of which a worker consists, and connects them."""

import random
from collections.abc import Callable, Iterator

from psched.base.clock import Clock
from psched.base.log import Log
from psched.config import Config
from psched.core.store_protocol import Store
from psched.master.generation_spec import WorkerIdentity
from psched.process.link import Link
from psched.process.titles import set_title
from psched.runner.runner_pool import RunnerPool
from psched.worker.claimer import Claimer
from psched.worker.janitor import Janitor
from psched.worker.lease_loop import LeaseLoop
from psched.worker.recycling import Recycling
from psched.worker.startup_steps import StartupSteps
from psched.worker.store_backoff import Slowness, StoreBackoff
from psched.worker.store_gateway import StoreGateway
from psched.worker.task_guard import KillTimer, TaskGuard
from psched.worker.task_table import TaskTable
from psched.worker.trigger_helpers import TriggerHelpers
from psched.worker.unstarted_leases import UnstartedLeases
from psched.worker.worker import Inbox, Worker

_LONGEST_PAUSE = 5.0
"""The most seconds between two tries to reach a store that does not answer; fewer if leases are
short."""


def make_worker(
    link: Link,
    place: WorkerIdentity,
    settings: Config,
    *,
    store: Store,
    pool: RunnerPool,
    deadman: KillTimer,
    inbox: Inbox,
    log: Log,
    clock: Clock,
    rng: random.Random,
    show_title: Callable[[str], object] = set_title,
    startup: Callable[[], Iterator[None]] | None = None,
) -> Worker:
    """Create a worker with all its parts.

    Args:
        link: the connection to the master.
        place: the worker's number, generation and nonce.
        settings: the settings of the installation.
        store: where the schedules are.
        pool: the processes in which tasks run.
        deadman: kills this process if it does not guard its tasks in time.
        inbox: where the signals to this process arrive.
        log: the log of this process.
        clock: the clock of all parts; only the store has another clock.
        rng: draws all jitter.
        show_title: shows in the list of processes what the worker does.
        startup: returns the work in the store that precedes the first claims, as steps; None if
            there is no such work; see `StartupSteps`.
    """
    tasks = make_task_table(settings, pool=pool, deadman=deadman, clock=clock)
    loop = make_lease_loop(
        store,
        settings,
        nonce=place.nonce,
        tasks=tasks,
        pool=pool,
        clock=clock,
        rng=rng,
        startup=startup,
    )
    return Worker(
        link,
        place,
        settings,
        store=store,
        tasks=tasks,
        lease_loop=loop,
        recycling=Recycling(settings, rng, clock.monotonic()),
        inbox=inbox,
        log=log,
        clock=clock,
        show_title=show_title,
    )


def make_task_table(
    settings: Config, *, pool: RunnerPool, deadman: KillTimer, clock: Clock
) -> TaskTable:
    """Create the table of a worker's tasks, and the guard that stops them."""
    guard = TaskGuard(settings, pool=pool, clock=clock, deadman=deadman)
    return TaskTable(pool, guard, clock)


def make_lease_loop(
    store: Store,
    settings: Config,
    *,
    nonce: str,
    tasks: TaskTable,
    pool: RunnerPool,
    clock: Clock,
    rng: random.Random,
    startup: Callable[[], Iterator[None]] | None = None,
) -> LeaseLoop:
    """Create a worker's lease loop and its parts.

    The arguments are those of `make_worker`, except ``nonce``, which identifies the worker in its
    leases, and ``tasks``, which owns the running tasks.
    """
    slowness = Slowness(settings, clock)
    backoff = StoreBackoff(
        clock=clock,
        rng=rng,
        longest_pause=min(_LONGEST_PAUSE, settings.alive_time / 20),
        slowness=slowness,
    )
    unstarted = UnstartedLeases()
    gateway = StoreGateway(store, backoff, settings, clock=clock, tasks=tasks, unstarted=unstarted)
    triggers = TriggerHelpers(tasks, pool, settings, clock)
    claimer = Claimer(
        store,
        gateway,
        settings,
        nonce=nonce,
        tasks=tasks,
        unstarted=unstarted,
        triggers=triggers,
        slowness=slowness,
        clock=clock,
        rng=rng,
    )
    return LeaseLoop(
        store,
        settings,
        tasks=tasks,
        unstarted=unstarted,
        backoff=backoff,
        gateway=gateway,
        triggers=triggers,
        claimer=claimer,
        startup=StartupSteps(startup, gateway),
        janitor=Janitor(store, gateway, clock=clock, rng=rng),
        clock=clock,
    )

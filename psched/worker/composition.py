"""Which objects a worker consists of, and what each of them is given."""

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
"""Seconds between two tries to reach a store that is away; less if leases are short."""


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
    """A worker with all its parts.

    Args:
        link: to the master.
        place: its number, its generation and its nonce.
        settings: the installation's.
        store: where the schedules are.
        pool: where tasks run.
        deadman: kills this process if it does not guard its tasks in time.
        inbox: this process's signals.
        log: this process's log.
        clock: the time of everything but what the store decides.
        rng: draws all jitter.
        show_title: shows what the worker does, in the list of processes.
        startup: begins what is to be done in the store first; see `StartupSteps`.
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
    """The tasks of a worker, with their guard."""
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
    """A worker's lease loop with its parts; the arguments are those of `make_worker`."""
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

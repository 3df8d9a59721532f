"""Creates a worker: creates its parts, and passes to each part the other parts that it uses."""

import random
import socket
from collections.abc import Callable, Iterator, Sequence

from psched.base.clock import Clock
from psched.base.log import Log
from psched.config import Config
from psched.core.history.recording import Recorder
from psched.core.history.store_clock import StoreClock
from psched.core.store_protocol import Store
from psched.master.generation_spec import WorkerIdentity
from psched.output.collection import OutputCollection
from psched.process.kernel import set_title
from psched.process.link import Link
from psched.runner.runner_pool import RunnerPool
from psched.worker.chores.backlog_watch import BacklogWatch
from psched.worker.chores.history_keeper import HistoryKeeper
from psched.worker.chores.janitor import Janitor
from psched.worker.chores.output_keeper import OutputKeeper
from psched.worker.chores.run_reporter import RunReporter
from psched.worker.claimer import Claimer
from psched.worker.claims.extra_runs import ExtraRuns
from psched.worker.claims.prefetch import Prefetch
from psched.worker.claims.unknown_claims import UnknownClaims
from psched.worker.lease_loop import LeaseLoop
from psched.worker.startup_steps import StartupSteps
from psched.worker.store_backoff import Slowness, StoreBackoff
from psched.worker.store_gateway import StoreGateway
from psched.worker.task_guard import KillTimer, TaskGuard
from psched.worker.task_table import TaskTable
from psched.worker.trigger_helpers import TriggerHelpers
from psched.worker.unstarted_leases import UnstartedLeases
from psched.worker.worker import Inbox, Recycling, Worker

_LONGEST_PAUSE = 5.0
"""The longest pause, in seconds, between two attempts to reach an unavailable store. If a twentieth
of the setting ``alive_time`` is shorter, it is used instead.
"""


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
    host: str | None = None,
    output: OutputCollection | None = None,
    types: Sequence[str] | None = None,
) -> Worker:
    """Create a worker with all its parts."""
    recorder = Recorder(
        host=host or socket.gethostname(),
        generation=place.generation,
        clock=StoreClock(clock),
        types=types,
    )
    tasks = make_task_table(
        settings,
        pool=pool,
        deadman=deadman,
        clock=clock,
        recorder=recorder,
        output=output,
        reporter=RunReporter(link) if settings.monitor else None,
    )
    loop = make_lease_loop(
        store,
        settings,
        nonce=place.nonce,
        tasks=tasks,
        pool=pool,
        clock=clock,
        rng=rng,
        startup=startup,
        recorder=recorder,
        number=place.number,
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
        counts=recorder.counts,
    )


def make_task_table(
    settings: Config,
    *,
    pool: RunnerPool,
    deadman: KillTimer,
    clock: Clock,
    recorder: Recorder,
    output: OutputCollection | None = None,
    reporter: RunReporter | None = None,
) -> TaskTable:
    """Create the table of a worker's tasks, and the guard that enforces their limits."""
    guard = TaskGuard(settings, pool=pool, clock=clock, deadman=deadman)
    return TaskTable(pool, guard, clock, recorder, output, reporter=reporter)


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
    recorder: Recorder,
    number: int = 0,
) -> LeaseLoop:
    """Create a worker's lease loop with its parts.

    ``nonce`` is the random text that identifies the worker in its leases, ``tasks`` is the result
    of `make_task_table`, and ``number`` is the worker's number. `make_worker` describes the other
    arguments.
    """
    slowness = Slowness(settings, clock)
    backoff = StoreBackoff(
        clock=clock,
        rng=rng,
        longest_pause=min(_LONGEST_PAUSE, settings.alive_time / 20),
        slowness=slowness,
        counts=recorder.counts,
    )
    unstarted = UnstartedLeases()
    gateway = StoreGateway(store, backoff, settings, clock=clock, tasks=tasks, unstarted=unstarted)
    triggers = TriggerHelpers(tasks, pool, settings, clock)
    history = HistoryKeeper(
        store,
        gateway,
        settings,
        nonce=nonce,
        number=number,
        recorder=recorder,
        clock=clock,
        rng=rng,
    )
    unknown = UnknownClaims(
        store,
        gateway,
        settings.driver_timeout,
        clock=clock,
        tasks=tasks,
        unstarted=unstarted,
        store_clock=recorder.clock,
    )
    claimer = Claimer(
        store,
        gateway,
        settings,
        nonce=nonce,
        tasks=tasks,
        unstarted=unstarted,
        triggers=triggers,
        unknown=unknown,
        extra_runs=ExtraRuns(store, gateway, unknown=unknown, tasks=tasks, unstarted=unstarted),
        prefetch=Prefetch(settings, clock, tasks, unstarted),
        slowness=slowness,
        clock=clock,
        rng=rng,
        recorder=recorder,
        history=history,
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
        history=history,
        output=OutputKeeper(
            store,
            gateway,
            settings,
            tasks=tasks,
            number=number,
            recorder=recorder,
            clock=clock,
            rng=rng,
        ),
        backlog=BacklogWatch(store, gateway, settings, clock=clock),
        recorder=recorder,
        clock=clock,
    )

"""Turns a process that the master has forked into a worker or a cleaner."""

import logging
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from psched.app import CLOCK, load_store, make_store, open_in_worker
from psched.application.dispatch import Dispatch, Router
from psched.base.clock import Clock
from psched.base.errors import ConfigError, LoadError
from psched.base.log import Log, attach
from psched.base.texts import brief, cut, visible
from psched.client.collection import preload
from psched.config import Config, withhold
from psched.config.monitoring import NO_EXPECTATIONS
from psched.config.remarks import remarks
from psched.config.urls import MEMORY as MEMORY_URL
from psched.config.urls import file_of
from psched.core.history.recording import Recorder, StoreClock
from psched.core.remote_policy import answer_request
from psched.core.schedule import Schedules
from psched.core.store_protocol import Store
from psched.handlers.configured import (
    built_in_handlers,
    handled_types,
    leaves_programs,
    program_of,
)
from psched.handlers.permissions import describe_programs, describe_triggers
from psched.master.generation_spec import BAD_CONFIG, BAD_HANDLERS, DRAINED, WorkerIdentity
from psched.memory import MEMORY
from psched.output.collection import OutputCollection
from psched.process import kernel
from psched.process.cgroup import Cgroup
from psched.process.deadman import DeadMan
from psched.process.inheritance import UserDescriptors
from psched.process.link import Link
from psched.process.signals import SignalInbox
from psched.process.spawn import CRASHED, interpreter_options
from psched.runner.forker import Origin, forked_with
from psched.runner.runner import Runner
from psched.runner.runner_pool import ForkingRunnerPool
from psched.runner.shared_memory import StopFlagTable
from psched.runner.stop import Stop
from psched.service.functions import App
from psched.service.lean_server import HandlerProcesses, run_confined
from psched.worker.chores import create_missing_table, renew_times
from psched.worker.context import Context
from psched.worker.worker import Worker, clean_up

preload()

_log = logging.getLogger("psched.worker")

MASTER_NUMBERS = (
    "processors",
    "start_timeout",
    "child_heartbeat_limit",
    "graceful_timeout",
    "graceful_kill_limit",
)
"""The names of the numeric settings that a master needs."""


_LOADING = 0.8
"""The part of ``start_timeout`` after which the stack of a process is logged that still loads the
handlers. After all of it, the master kills the worker."""


@dataclass(frozen=True, slots=True)
class WorkerBoot:
    """The data that a newly forked process receives from the master.

    `serve` turns the process into a worker, or into a cleaner, which only releases the leases of
    dead workers.
    """

    link: Link
    place: WorkerIdentity
    inbox: SignalInbox
    log: Log
    master: int  # the pid of the process that has forked this one
    nonces: Sequence[str] | None  # those of the dead workers; None if this becomes a worker
    own: frozenset[int]  # the descriptors that were open before the user's code was run

    def serve(
        self,
        settings: Config,
        dispatch: Dispatch | None,
        *,
        report: bool,
        prepare: Callable[[Store], Iterator[None]] | None = None,
    ) -> int:
        """Run this process as a worker or a cleaner; return the exit status when its work ends."""
        if os.getppid() != self.master:
            _log.error("the master has died")
            return DRAINED
        # Now, because what psched opens from now on is its own.
        opened = UserDescriptors(self.own)
        attach(self.log)
        withhold(settings.withheld)
        if report and self.place.number == 0:
            given = {
                "metrics are not shown": settings.metrics,
                "pings are not sent": settings.pings,
                "hooks are not told": settings.hooks,
                "what other hosts announce is not heard": settings.wake == "notify",
                "nothing that is expected is judged": settings.expect != NO_EXPECTATIONS,
            }
            for what in (each for each, value in given.items() if value):
                _log.warning("%s: a master of a program keeps no monitor", what)
            for remark in remarks(settings):
                _log.warning("%s", remark)
        try:
            if settings.url == MEMORY_URL:
                MEMORY.join(self.master)
            redirect_log(self.log, settings.log, settings.log_level, settings.log_format)
            for number in self.inbox.take_over():
                _log.error(
                    "a module has replaced the handler of %s, which psched needs", number.name
                )
            if self.nonces is not None:
                work = partial(clean_up, make_store(settings), settings, self.nonces)
            else:
                worker = self._worker(settings, dispatch, prepare, opened)
                work = partial(worker.run, settings_report(settings) if report else None)
        except ConfigError as error:
            return self.cannot_start(error, BAD_CONFIG)
        except (LoadError, EOFError) as error:
            died = isinstance(error, EOFError)
            logged = dispatch is None and not died
            return self.cannot_start(error, CRASHED if died else BAD_HANDLERS, logged=logged)
        try:
            return work()
        finally:
            MEMORY.leave()

    def cannot_start(self, error: Exception, status: int, *, logged: bool = False) -> int:
        """Log why this process cannot start and tell the master; return the exit status."""
        attach(self.log)
        if not logged:  # by the process that could not load the handlers
            _log.error("%s", error)
        self.link.send({"failed": brief(str(error))})
        return status

    def _worker(
        self,
        settings: Config,
        dispatch: Dispatch | None,
        prepare: Callable[[Store], Iterator[None]] | None,
        opened: UserDescriptors,
    ) -> Worker:
        """Create the worker and start its runner pool."""
        output = None
        if settings.captures_output:
            output = OutputCollection(clock=CLOCK, secrets=settings.secrets, log=self.log)
        pool, types, programs = self._start_pool(settings, dispatch, output, opened)
        can_run = programs and settings.task_signals != "own"
        # The handler that the setting ``exec`` makes is psched's; those of a program are not.
        own = program_of(settings.exec) if can_run and settings.exec and dispatch is None else None
        store = make_store(settings)
        # Disconnect the store before each fork, because a child must not inherit a connection. With
        # SQLite, a child would inherit the list of locks, but not the locks themselves, and would
        # assume that it holds them:
        # https://sqlite.org/howtocorrupt.html#_carrying_an_open_database_connection_across_a_fork
        pool.before_server_fork = store.disconnect
        if output is not None:
            output.before_fork = store.disconnect
        context = Context(
            place=self.place,
            link=self.link,
            settings=settings,
            store=store,
            pool=pool,
            deadman=DeadMan(self.place.deadline),
            clock=CLOCK,
            rng=random.Random(),  # noqa: S311  # jitter; created after the fork, so workers differ
            recorder=Recorder(
                host=settings.this_host,
                generation=self.place.generation,
                clock=StoreClock(CLOCK),
                types=types,
            ),
            output=output,
            handlers=built_in_handlers(settings) if can_run else {},
            program=own,
            startup=partial(_startup_steps, store, settings, prepare, self.place.number),
        )
        return Worker(context, inbox=self.inbox, log=self.log)

    def _start_pool(
        self,
        settings: Config,
        dispatch: Dispatch | None,
        output: OutputCollection | None,
        opened: UserDescriptors,
    ) -> tuple[ForkingRunnerPool, Sequence[str] | None, bool]:
        """Create the runner pool, and start its fork server.

        Also return the types that have a handler, and whether program runners may run programs.
        """
        is_first = self.place.number == 0  # it warns; the others have opened the same
        cgroup = None if settings.cgroup == "off" else self.place.cgroup
        if dispatch is None:
            handlers = HandlerProcesses(
                settings,
                log=self.log,
                master=self.master,
                collects=output is not None,
                is_first=is_first,
                options=interpreter_options(sys.orig_argv),
            )
            make = partial(pool_for, origin=handlers.origin, fall_back=handlers.fall_back)
        else:
            if isinstance(dispatch, App):
                dispatch.use(partial(open_in_worker, settings))
            make = partial(
                make_runner_pool,
                find=Router(dispatch, built_in_handlers(settings)).find,
                open_schedules=partial(open_in_worker, settings),
                log=self.log,
                inherited=opened.inherited,
                hooks=dispatch,
            )
        pool = make(settings, clock=CLOCK, cgroup=cgroup, output=output)
        types = handled_types(dispatch)
        programs = dispatch is not None and leaves_programs(dispatch)
        try:
            # Start the pool before the store is created, because runners must not inherit the
            # store.
            if dispatch is None:
                server = pool.load(_LOADING * settings.start_timeout)
                types, programs = server.types, server.leaves_programs
            else:
                pool.start()
            if output is not None:
                output.start()
        except RuntimeError as error:
            raise LoadError(str(error)) from None
        except OSError:
            pass  # the worker tries again before each claim, and then logs a failure
        if is_first and dispatch is not None:
            for text in opened.lost():
                _log.warning("%s", text)
        return pool, types, programs


def _startup_steps(
    store: Store,
    settings: Config,
    prepare: Callable[[Store], Iterator[None]] | None,
    number: int,
) -> Iterator[None]:
    """Do the work that follows a worker's start, in steps."""
    if settings.create_table:
        yield from create_missing_table(store, file_of(settings.url))
    if prepare is not None:
        yield from prepare(store)
    if number == 0:
        yield from renew_times(store, settings)


def make_runner_pool(
    settings: Config,
    find: Callable[[str], Any],
    open_schedules: Callable[[], Schedules],
    *,
    log: Log,
    clock: Clock,
    cgroup: Cgroup | None = None,
    output: OutputCollection | None = None,
    inherited: Callable[[], Sequence[int]] = tuple,
    hooks: Dispatch | None = None,
) -> ForkingRunnerPool:
    """Create a worker's pool of runners, without forking a runner."""
    runner = Runner(
        find=find,
        log=log,
        open_schedules=open_schedules,
        judge=partial(answer_request, settings=settings),
        tasks=settings.max_tasks_per_child,
        hooks=hooks or Dispatch(),
        stop=Stop(),
    )
    run = partial(run_confined, runner) if settings.task_signals == "own" else runner.run

    def origin(flags: StopFlagTable) -> Origin:
        return forked_with(
            partial(run, flags),
            keep=[*log.descriptors, *inherited()],
            before_fork=partial(runner.before_fork, collects=output is not None),
            load_store=partial(load_store, settings),
        )

    return pool_for(settings, origin, clock=clock, cgroup=cgroup, output=output)


def pool_for(
    settings: Config,
    origin: Callable[[StopFlagTable], Origin],
    *,
    clock: Clock,
    cgroup: Cgroup | None = None,
    output: OutputCollection | None = None,
    fall_back: Callable[[], object] = list,
) -> ForkingRunnerPool:
    """Create a worker's pool of runners, whose fork servers have this origin."""
    if settings.task_signals == "own" and not kernel.can_confine_signals():
        raise ConfigError("task_signals: own needs Linux 6.12 with Landlock; set any")
    return ForkingRunnerPool(
        origin,
        fall_back=fall_back,
        clock=clock,
        concurrency=settings.concurrency,
        # Allow a fork to block the worker for as long as a request to the store can, because the
        # deadlines of leases leave enough time for one request.
        hold_up=settings.driver_timeout,
        patience=settings.child_heartbeat_limit / 2,
        cgroup=cgroup,
        output=output,
    )


def redirect_log(journal: Log, path: Path | None, level: str, format_: str) -> None:
    """Set a log's file, level and format."""
    try:
        journal.redirect(path)
    except OSError as error:
        raise ConfigError(f"log: cannot be opened: {error}") from None
    journal.json = format_ == "json"
    journal.setLevel(level.upper())
    # User code can want more in a log of its own.
    logging.root.setLevel(min(logging.root.level, journal.level))


def settings_report(settings: Config) -> dict[str, Any]:
    """The settings that a master needs, as a message of the shape `master.messages.SETTINGS`."""
    named = (*MASTER_NUMBERS, "log_level", "log_format", "cgroup", "wake")
    values = {name: getattr(settings, name) for name in named}
    paths = {"log": settings.log, "pid_file": settings.pid_file}
    texts = {name: path and str(path) for name, path in paths.items()}
    return values | texts | {"about": service_description(settings)}


def service_description(settings: Config) -> dict[str, str]:
    """For ``psched status`` and other users of this host, a description of a service.

    It contains the table in use, the path of the configuration file (empty if there is none), and
    which programs and triggers the rows of the table can use; it contains no secrets.
    """
    return {
        "url": settings.safe_url,
        "table": settings.table,
        # A message can carry no path that is not UTF-8, so the path is escaped.
        "config": cut(visible(str(settings.origin or ""))),
        "programs": cut(describe_programs(settings)),
        "triggers": cut(describe_triggers(settings)),
    }

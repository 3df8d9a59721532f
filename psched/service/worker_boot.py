"""Turns a process that the master has forked into a worker or a cleaner."""

import logging
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from psched.app import CLOCK, make_store, open_schedules
from psched.application.dispatch import Dispatch
from psched.application.router import Router
from psched.base.clock import Clock
from psched.base.errors import ConfigError, LoadError
from psched.base.log import Log
from psched.base.texts import cut
from psched.config import Config, withhold
from psched.config.urls import MEMORY as MEMORY_URL
from psched.core.remote_policy import answer_request
from psched.core.schedule import Schedules
from psched.core.store_protocol import Store
from psched.handlers.configured import built_in_handlers
from psched.handlers.permissions import describe_programs, describe_triggers
from psched.master.generation_spec import BAD_CONFIG, BAD_HANDLERS, DRAINED, WorkerIdentity
from psched.memory import MEMORY
from psched.process.cgroup import Cgroup
from psched.process.deadman import DeadMan
from psched.process.link import Link
from psched.process.signals import SignalInbox
from psched.runner.forking_runner_pool import ForkingRunnerPool
from psched.runner.runner import Runner
from psched.worker.composition import make_worker
from psched.worker.worker import Worker, clean_up

_log = logging.getLogger("psched.worker")

MASTER_NUMBERS = (
    "processors",
    "start_timeout",
    "child_heartbeat_limit",
    "graceful_timeout",
    "graceful_kill_limit",
)
"""The numeric settings that a master needs."""


@dataclass(frozen=True, slots=True)
class WorkerBoot:
    """The data that a newly forked process has from the master, and the start of its work.

    Attributes:
        link: the connection to the master.
        place: the worker's number, generation, nonce and cgroup.
        inbox: the process's signals.
        log: the process's log.
        master: the master's pid; the master may have died since.
        nonces: None: the process becomes a worker; otherwise, it becomes a cleaner, which only
            releases the leases of the dead workers with these nonces.
    """

    link: Link
    place: WorkerIdentity
    inbox: SignalInbox
    log: Log
    master: int
    nonces: Sequence[str] | None

    def serve(
        self,
        settings: Config,
        dispatch: Dispatch | None,
        *,
        report: bool,
        prepare: Callable[[Store], Iterator[None]] | None = None,
    ) -> int:
        """Run as a worker or cleaner until it stops; returns the exit status.

        Args:
            settings: the generation's settings.
            dispatch: the user's routes; None: only the built-in types have handlers.
            report: send the settings to the master, which cannot read those of a program.
            prepare: returns an iterator whose steps prepare the store before any task is run; None:
                nothing is to be prepared.
        """
        if os.getppid() != self.master:
            _log.error("the master has died")
            return DRAINED
        withhold(settings.withheld)
        try:
            if settings.url == MEMORY_URL:
                MEMORY.join(self.master)
            redirect_log(self.log, settings.log, settings.log_level)
            for number in self.inbox.take_over():
                _log.error(
                    "a module has replaced the handler of %s, which psched needs", number.name
                )
            if self.nonces is not None:
                work = partial(clean_up, make_store(settings), settings, self.nonces)
            else:
                worker = self._worker(settings, dispatch, prepare)
                work = partial(worker.run, settings_report(settings) if report else None)
        except ConfigError as error:
            _log.error("%s", error)
            return BAD_CONFIG
        except LoadError as error:
            _log.error("%s", error)
            return BAD_HANDLERS
        try:
            return work()
        finally:
            MEMORY.leave()

    def _worker(
        self,
        settings: Config,
        dispatch: Dispatch | None,
        prepare: Callable[[Store], Iterator[None]] | None,
    ) -> Worker:
        """Make the worker and start its runners.

        Raises:
            ConfigError: the settings cannot be used.
            LoadError: the runners cannot be forked, because this process has a second thread.
        """
        pool = make_runner_pool(
            settings,
            Router(dispatch, built_in_handlers(settings)).find,
            partial(open_schedules, settings),
            log=self.log,
            clock=CLOCK,
            cgroup=None if settings.cgroup == "off" else self.place.cgroup,
        )
        try:
            # The pool is made before the store, because runners must not inherit the store.
            pool.start()
        except RuntimeError as error:
            raise LoadError(str(error)) from None
        except OSError:
            pass  # the worker tries again before each claim, and logs a failure then
        store = make_store(settings)
        # The store is disconnected before a fork, because no child may inherit a connection:
        # with SQLite, a child would inherit the list of open
        # files and locks, but not the locks, and would believe that it holds them:
        # https://sqlite.org/howtocorrupt.html#_carrying_an_open_database_connection_across_a_fork
        pool.before_server_fork = store.disconnect
        return make_worker(
            self.link,
            self.place,
            settings,
            store=store,
            pool=pool,
            deadman=DeadMan(self.place.deadline),
            inbox=self.inbox,
            log=self.log,
            clock=CLOCK,
            rng=random.Random(),  # noqa: S311  # jitter; made after the fork: workers differ
            startup=None if prepare is None else partial(prepare, store),
        )


def make_runner_pool(
    settings: Config,
    find: Callable[[str], Any],
    open_schedules: Callable[[], Schedules],
    *,
    log: Log,
    clock: Clock,
    cgroup: Cgroup | None = None,
) -> ForkingRunnerPool:
    """Make a worker's pool of runners, without forking any runner.

    Args:
        settings: the settings, such as the number of runners and their time limits.
        find: returns the handler of a type; None: the type has no handler.
        open_schedules: opens the schedules of the worker's store, for a task that asks for them.
        log: the log of this process and of the runners.
        clock: measures the time limits of runners.
        cgroup: the worker's cgroup, below which each runner gets its own; None: runners get none.
    """
    runner = Runner(
        find=find,
        log=log,
        open_schedules=open_schedules,
        judge=partial(answer_request, settings=settings),
        tasks=settings.max_tasks_per_child,
    )
    return ForkingRunnerPool(
        runner.run,
        keep=log.descriptors,
        clock=clock,
        concurrency=settings.concurrency,
        # A fork may block the worker as long as a request, because the deadlines of leases leave
        # time for one.
        hold_up=settings.driver_timeout,
        patience=settings.child_heartbeat_limit / 2,
        cgroup=cgroup,
        before_fork=log.follow,
    )


def redirect_log(journal: Log, path: Path | None, level: str) -> None:
    """Set a log's file and level; if ``path`` is None, the log is written to standard error.

    Raises:
        ConfigError: the file cannot be opened.
    """
    try:
        journal.redirect(path)
    except OSError as error:
        raise ConfigError(f"log: cannot be opened: {error}") from None
    logging.getLogger().setLevel(level.upper())


def settings_report(settings: Config) -> dict[str, Any]:
    """The message with the settings that a master needs, in the form `master.messages.SETTINGS`."""
    values = {name: getattr(settings, name) for name in (*MASTER_NUMBERS, "log_level", "cgroup")}
    paths = {"log": settings.log, "pid_file": settings.pid_file}
    texts = {name: path and str(path) for name, path in paths.items()}
    return values | texts | {"about": service_description(settings)}


def service_description(settings: Config) -> dict[str, str]:
    """The served table, and the programs and triggers that its rows may choose; without secrets."""
    return {
        "url": settings.safe_url,
        "table": settings.table,
        "programs": cut(describe_programs(settings)),
        "triggers": cut(describe_triggers(settings)),
    }

"""A process that the master has forked, before it is a worker."""

import logging
import os
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
from psched.client.collection import ScheduleCollection
from psched.config import Config, withhold
from psched.config.urls import MEMORY as MEMORY_URL
from psched.core.remote_policy import answer_request
from psched.core.store_protocol import Store
from psched.handlers.builtin import built_in
from psched.handlers.exec_type import who_can_run_code, who_is_called
from psched.master.generation_spec import BAD_CONFIG, BAD_HANDLERS, DRAINED, Place
from psched.memory import MEMORY
from psched.process.cgroup import Cgroup
from psched.process.link import Link
from psched.process.signals import SignalInbox
from psched.runner.pool import RunnerPool
from psched.runner.runner import Runner
from psched.worker.worker import Worker, clean_up

_log = logging.getLogger("psched.worker")

NUMBERS = (
    "processors",
    "start_timeout",
    "child_heartbeat_limit",
    "graceful_timeout",
    "graceful_kill_limit",
)
"""The settings that a master goes by."""

_PATHS = ("log", "pid_file")


@dataclass(frozen=True, slots=True)
class WorkerBoot:
    """The process.

    Attributes:
        link: to the master.
        place: where it stands.
        inbox: its signals.
        log: its log.
        master: that one's pid; it may have died since.
        nonces: dead workers to clean up after, if that is all it is for.
    """

    link: Link
    place: Place
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
        """Be a worker; the exit status.

        Args:
            settings: what this generation goes by.
            dispatch: the user's routes.
            report: the master does not know the settings yet.
            prepare: what is to be done in the store first, step by step.
        """
        if os.getppid() != self.master:
            _log.error("the master has died")
            return DRAINED
        withhold(settings.withheld)
        try:
            if settings.url == MEMORY_URL:
                MEMORY.join(self.master)
            log_by(self.log, settings.log, settings.log_level)
            for number in self.inbox.take_over():
                _log.error("a module has changed what %s does: psched needs it", number.name)
            if self.nonces is not None:
                work = partial(clean_up, make_store(settings), settings, self.nonces)
            else:
                worker = self._worker(settings, dispatch, prepare)
                work = partial(worker.run, report_of(settings) if report else None)
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
        """Make it.

        Raises:
            ConfigError: the settings cannot be used.
            LoadError: this process must not fork.
        """
        runners = self._runners(settings, dispatch)
        try:
            # Before there is a store, which runners do without.
            runners.start()
        except RuntimeError as error:
            raise LoadError(str(error)) from None
        except OSError:
            pass  # it is tried again, and told, before each claim
        store = make_store(settings)
        return Worker(
            self.link,
            self.place,
            settings=settings,
            runners=runners,
            store=store,
            inbox=self.inbox,
            log=self.log,
            clock=CLOCK,
            prepare=None if prepare is None else partial(prepare, store),
        )

    def _runners(self, settings: Config, dispatch: Dispatch | None) -> RunnerPool:
        return make_runners(
            settings,
            Router(dispatch, built_in(settings)).find,
            partial(open_schedules, settings),
            log=self.log,
            clock=CLOCK,
            cgroup=None if settings.cgroup == "off" else self.place.cgroup,
        )


def make_runners(
    settings: Config,
    find: Callable[[str], Any],
    open_schedules: Callable[[], ScheduleCollection],
    *,
    log: Log,
    clock: Clock,
    cgroup: Cgroup | None = None,
) -> RunnerPool:
    """A worker's runners, none of them forked yet.

    Args:
        settings: the installation's.
        find: the handler of a type; None: there is none.
        open_schedules: opens a collection on the worker's store, for a task.
        log: this process's log.
        clock: this host's clocks.
        cgroup: see `RunnerPool`.
    """
    runner = Runner(
        find=find,
        log=log,
        open_schedules=open_schedules,
        judge=partial(answer_request, settings=settings),
        tasks=settings.max_tasks_per_child,
    )
    return RunnerPool(
        runner.run,
        keep=log.descriptors,
        clock=clock,
        concurrency=settings.concurrency,
        # For which a lease's deadlines allow, as for a request.
        hold_up=settings.driver_timeout,
        patience=settings.child_heartbeat_limit / 2,
        cgroup=cgroup,
        before_fork=log.follow,
    )


def log_by(journal: Log, path: Path | None, level: str) -> None:
    """Log where and what the settings say.

    Raises:
        ConfigError: the file cannot be opened.
    """
    try:
        journal.redirect(path)
    except OSError as error:
        raise ConfigError(f"log: cannot be opened: {error}") from None
    logging.getLogger().setLevel(level.upper())


def report_of(settings: Config) -> dict[str, Any]:
    """What the master goes by, as a message; `message_shapes.SETTINGS` is its shape."""
    numbers = {name: getattr(settings, name) for name in (*NUMBERS, "log_level", "cgroup")}
    paths = {name: getattr(settings, name) for name in _PATHS}
    strings = {name: path and str(path) for name, path in paths.items()}
    return numbers | strings | {"about": about(settings)}


def about(settings: Config) -> dict[str, str]:
    """What is served, and what its rows can run; no secret is in it."""
    return {
        "url": settings.safe_url,
        "table": settings.table,
        "programs": cut(who_can_run_code(settings)),
        "triggers": cut(who_is_called(settings)),
    }

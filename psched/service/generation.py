"""The two sources of the settings of a generation: a configuration file, or a user's program.

Each source creates a `GenerationSpec` for the master. The master itself reads a configuration file.
A program is user code, which the master must not run. Therefore each worker runs the program, and
the first worker of a generation reports the settings to the master. Every restart reads the file
again, or runs the program again.
"""

import logging
import os
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from psched.app import ConfigLike, read_config
from psched.base.errors import ConfigError, LoadError
from psched.base.log import Log
from psched.config import SETTINGS, Config, withhold
from psched.config.references import current_folder
from psched.config.urls import wake_code
from psched.handlers.configured import load_handlers
from psched.master.generation_spec import (
    BAD_HANDLERS,
    GenerationSpec,
    MonitorSpec,
    SpecError,
    WorkerIdentity,
    nothing,
)
from psched.master.reports.health import Limits
from psched.process.inheritance import open_descriptors
from psched.process.link import Link
from psched.service.monitor_boot import check_metrics, run_monitor
from psched.service.worker_boot import (
    MASTER_NUMBERS,
    WorkerBoot,
    allow_basic_config,
    attach,
    redirect_log,
    service_description,
)
from psched.worker.worker import prepare_process

_log = logging.getLogger("psched.worker")


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """Creates a `GenerationSpec` from a configuration that the master reads.

    Attributes:
        given: the configuration, for example the path of a file.
        environment: the section of the configuration file. None means the default section.
        overrides: the settings of the command line, which replace those of ``given``.
        log: the log of the master and of its workers.
    """

    given: ConfigLike
    environment: str | None
    overrides: Mapping[str, object]
    log: Log

    def read_spec(self, _reported: Mapping[str, Any] | None) -> GenerationSpec:
        """Read the configuration, and return the parameters of a new generation.

        The master calls this method as its `psched.master.generation_spec.ReadSpec`.
        """
        try:
            settings = read_config(self.given, self.environment, self.overrides)
            check_metrics(settings)
        except ConfigError as error:
            raise SpecError(str(error)) from error
        numbers = {name: getattr(settings, name) for name in MASTER_NUMBERS}
        about = service_description(settings)
        adopt = partial(
            _adopt, self.log, settings.log, settings.log_level, settings.log_format, about
        )
        boot = partial(self._boot, settings)
        return _generation_spec(
            numbers,
            boot,
            self.log,
            adopt=adopt,
            about=about,
            monitor=self._monitor(settings),
            wake_code=_wake_code(settings.wake, about),
        )

    def _monitor(self, settings: Config) -> MonitorSpec | None:
        if not settings.monitor:
            return None
        main = partial(run_monitor, settings, self.log, os.getpid())
        limits = Limits.for_polls(settings.poll_interval)
        return MonitorSpec(main, settings.child_heartbeat_limit, limits)

    def _boot(self, settings: Config, worker: WorkerBoot) -> int:
        # Withhold secrets from tasks here, in the worker, and not in the master, because the master
        # needs the secrets to read the configuration of the next generation.
        withhold(settings.withheld)
        try:
            dispatch = load_handlers(settings)
        except LoadError as error:
            return worker.cannot_start(error, BAD_HANDLERS)
        return worker.serve(settings, dispatch, report=False)


@dataclass(frozen=True, slots=True)
class ProgramSource:
    """Creates a `GenerationSpec` from a program that calls `psched.Worker.run` or `psched.start`.

    Attributes:
        name: the path of the program's file, or the name of its module.
        is_module: True if ``name`` is the name of a module, as for ``python -m``; False if it is a
            path.
        safe_path: True if the program's folder (for a module, the current folder) must not be added
            to ``sys.path``, as for ``python -P``.
        arguments: the program's ``sys.argv[1:]``.
        log: the log of the master and of its workers.
    """

    name: str
    is_module: bool
    safe_path: bool
    arguments: Sequence[str]
    log: Log

    def read_spec(self, reported: Mapping[str, Any] | None) -> GenerationSpec:
        """Return the parameters of a generation with the reported settings.

        If ``reported`` is None, return the parameters of a generation with one worker, which runs
        the program and reports its settings. The master calls this method as its
        `psched.master.generation_spec.ReadSpec`.
        """
        if reported is None:
            defaults = {name: SETTINGS[name].default for name in MASTER_NUMBERS}
            return _generation_spec({**defaults, "processors": 1}, self._boot, self.log)
        path = Path(reported["log"]) if reported["log"] else None
        about = reported["about"]
        adopt = partial(
            _adopt, self.log, path, reported["log_level"], reported["log_format"], about
        )
        code = _wake_code(reported["wake"], about)
        return _generation_spec(
            reported, self._boot, self.log, adopt=adopt, about=about, wake_code=code
        )

    def _boot(self, worker: WorkerBoot) -> int:
        global _current  # noqa: PLW0603  # psched.Worker.run and psched.start read _current
        _current = (os.getpid(), worker)
        sys.argv = [self.name, *self.arguments]
        if not self.safe_path:
            # Without -P, Python adds this folder when it runs a program. runpy does not, so add it
            # here.
            sys.path.insert(0, str(current_folder() if self.is_module else Path(self.name).parent))
        try:
            if self.is_module:
                runpy.run_module(self.name, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(self.name, run_name="__main__")
        except SystemExit as leaving:
            if isinstance(leaving, WorkerExit):
                return leaving.status
            attach(worker.log)
            _log.error("%s has called sys.exit(%r)", self.name, leaving.code)
        except BaseException:  # noqa: BLE001  # a user's program can raise any exception
            attach(worker.log)
            _log.exception("%s cannot be run", self.name)
        else:
            attach(worker.log)
            _log.error("%s has ended without calling psched.Worker.run or psched.start", self.name)
        return BAD_HANDLERS


class WorkerExit(SystemExit):
    """Ends the user's program after its worker has stopped, so that no more of its lines are run.

    Attributes:
        status: the worker's exit status.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


_current: tuple[int, WorkerBoot] | None = None
"""The pid of a worker that runs a user's program, and the worker's `WorkerBoot`.

None in a process that is not such a worker."""


def current_worker_boot() -> WorkerBoot | None:
    """The `WorkerBoot` of this process; None if it is not a worker that runs a user's program."""
    # Compare the pid, because a child of the worker inherits `_current`, but is not the worker. The
    # child might import the program under another name and thereby call this function.
    return _current[1] if _current is not None and _current[0] == os.getpid() else None


def _adopt(
    journal: Log, path: Path | None, level: str, format_: str, about: Mapping[str, str]
) -> None:
    """Set the master's log file, level and format to those of a new generation.

    Also log which programs and triggers the rows of its table can use.
    """
    try:
        redirect_log(journal, path, level, format_)
    except ConfigError as error:
        _log.error("%s; the master keeps its log", error)
    _log.info("%s", about["programs"])
    _log.info("%s", about["triggers"])


def _wake_code(wake: str, about: Mapping[str, str]) -> str | None:
    """See `GenerationSpec.wake_code`."""
    return None if wake == "off" else wake_code(about["url"], about["table"])


def _generation_spec(
    numbers: Mapping[str, Any],
    boot: Callable[[WorkerBoot], int],
    log: Log,
    *,
    adopt: Callable[[], object] = nothing,
    about: Mapping[str, str] = MappingProxyType({}),
    monitor: MonitorSpec | None = None,
    wake_code: str | None = None,
) -> GenerationSpec:
    master = os.getpid()

    def work(link: Link, place: WorkerIdentity, nonces: Sequence[str] | None = None) -> int:
        inbox = prepare_process(log, place)
        allow_basic_config(log)
        return boot(WorkerBoot(link, place, inbox, log, master, nonces, open_descriptors()))

    return GenerationSpec(
        processors=numbers["processors"],
        work=work,
        clean_up=work,
        start_timeout=numbers["start_timeout"],
        heartbeat_limit=numbers["child_heartbeat_limit"],
        graceful_timeout=numbers["graceful_timeout"],
        kill_limit=numbers["graceful_kill_limit"],
        about=about,
        adopt=adopt,
        monitor=monitor,
        wake_code=wake_code,
    )

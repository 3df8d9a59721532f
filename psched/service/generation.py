"""Where a generation of workers comes from: a configuration file, or a program of the user's.

Both make a `GenerationSpec` for the master. The difference is who can read the settings. A file is
read by the master. A program is the user's code: it runs in each worker, and the first worker
of a generation tells the master what it found. So the master stays clean of user code, and
every restart reads all of it anew.
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

from psched.app import Configuration, read_config
from psched.base.errors import ConfigError, LoadError
from psched.base.log import Log
from psched.config import SETTINGS, Config, withhold
from psched.handlers.configured import load_handlers
from psched.master.generation_spec import (
    BAD_HANDLERS,
    GenerationSpec,
    SpecError,
    WorkerIdentity,
    nothing,
)
from psched.process.link import Link
from psched.service.worker_boot import NUMBERS, WorkerBoot, about, log_by
from psched.worker.worker import prepare_process

_log = logging.getLogger("psched.worker")


@dataclass(frozen=True, slots=True)
class FromFile:
    """A generation made of a configuration.

    Attributes:
        given: where the settings come from.
        environment: which section of a file.
        overrides: settings from the command line.
        log: the process's log; workers go on with it.
    """

    given: Configuration
    environment: str | None
    overrides: Mapping[str, object]
    log: Log

    def read_spec(self, _reported: Mapping[str, Any] | None) -> GenerationSpec:
        """See `psched.master.generation_spec.ReadSpec`."""
        try:
            settings = read_settings(self.given, self.environment, self.overrides)
        except ConfigError as error:
            raise SpecError(str(error)) from error
        numbers = {name: getattr(settings, name) for name in NUMBERS}
        told = about(settings)
        adopt = partial(_adopt, self.log, settings.log, settings.log_level, told)
        live = partial(self._live, settings)
        return _spec(numbers, live, self.log, adopt=adopt, about=told)

    def _live(self, settings: Config, seat: WorkerBoot) -> int:
        # In this process alone: the master reads the settings again for the next generation.
        withhold(settings.withheld)
        try:
            dispatch = load_handlers(settings)
        except LoadError as error:
            # With the traceback of the user's code, if it is that which raised.
            _log.error("%s", error, exc_info=error.__cause__)
            return BAD_HANDLERS
        return seat.serve(settings, dispatch, report=False)


@dataclass(frozen=True, slots=True)
class FromProgram:
    """A generation made by a program that calls `psched.Worker.run`.

    Attributes:
        name: the program: its path, or its module's name.
        is_module: it is a module's name (``python -m``).
        safe_path: its folder, or for a module the current one, is not searched for modules.
        arguments: its ``sys.argv[1:]``.
        log: the process's log; workers go on with it.
    """

    name: str
    is_module: bool
    safe_path: bool
    arguments: Sequence[str]
    log: Log

    def read_spec(self, reported: Mapping[str, Any] | None) -> GenerationSpec:
        """See `psched.master.generation_spec.ReadSpec`."""
        if reported is None:
            return _spec({**_defaults(), "processors": 1}, self._live, self.log)
        path = Path(reported["log"]) if reported["log"] else None
        about = reported["about"]
        adopt = partial(_adopt, self.log, path, reported["log_level"], about)
        return _spec(reported, self._live, self.log, adopt=adopt, about=about)

    def _live(self, seat: WorkerBoot) -> int:
        global _seat  # noqa: PLW0603  # the program reaches it by a call without arguments
        _seat = (os.getpid(), seat)
        sys.argv = [self.name, *self.arguments]
        if not self.safe_path:
            # As the interpreter does.
            sys.path.insert(0, str(Path.cwd() if self.is_module else Path(self.name).parent))
        try:
            if self.is_module:
                runpy.run_module(self.name, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(self.name, run_name="__main__")
        except SystemExit as leaving:
            if isinstance(leaving, Served):
                return leaving.status
            _log.error("%s has called sys.exit(%r)", self.name, leaving.code)
        except BaseException:  # noqa: BLE001  # whatever a program raises
            _log.exception("%s cannot be run", self.name)
        else:
            _log.error("%s has ended without calling psched.Worker.run or psched.start", self.name)
        return BAD_HANDLERS


class Served(SystemExit):
    """The program's worker has ended: the rest of the program is not to run.

    Attributes:
        status: the exit status.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


_seat: tuple[int, WorkerBoot] | None = None


def current_worker_boot() -> WorkerBoot | None:
    """The seat of this process, if it runs a program for a master."""
    # A process that this one has forked may import the program once more, under another name.
    return _seat[1] if _seat is not None and _seat[0] == os.getpid() else None


def read_settings(
    given: Configuration, environment: str | None, overrides: Mapping[str, object]
) -> Config:
    """The settings as they are now, with those of the command line on top.

    Raises:
        ConfigError: they cannot be used.
    """
    changes: dict[str, Any] = {**overrides}
    return read_config(given, environment).with_settings(**changes)


def _adopt(journal: Log, path: Path | None, level: str, about: Mapping[str, str]) -> None:
    """Have the master follow a generation's log, and tell there what rows can run."""
    try:
        log_by(journal, path, level)
    except ConfigError as error:
        _log.error("%s; the master goes on where it was", error)
    _log.info("%s", about["programs"])
    _log.info("%s", about["triggers"])


def _spec(
    numbers: Mapping[str, Any],
    live: Callable[[WorkerBoot], int],
    log: Log,
    *,
    adopt: Callable[[], object] = nothing,
    about: Mapping[str, str] = MappingProxyType({}),
) -> GenerationSpec:
    master = os.getpid()

    def sit(link: Link, place: WorkerIdentity, nonces: Sequence[str] | None = None) -> int:
        return live(WorkerBoot(link, place, prepare_process(log, place), log, master, nonces))

    return GenerationSpec(
        processors=numbers["processors"],
        work=sit,
        clean_up=sit,
        start_timeout=numbers["start_timeout"],
        heartbeat_limit=numbers["child_heartbeat_limit"],
        graceful_timeout=numbers["graceful_timeout"],
        kill_limit=numbers["graceful_kill_limit"],
        about=about,
        adopt=adopt,
    )


def _defaults() -> dict[str, Any]:
    return {name: SETTINGS[name].default for name in NUMBERS}

"""Programs of users that are services: ``psched.Worker.run``, and what it shares with `start`.

A program is user code, which the master must not run. So the program's process executes a master,
whose workers run the program again. The first worker of a generation reports the program's settings
to the master. Every restart runs the program again.
"""

import logging
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from psched.app import ConfigLike, read_config
from psched.application.dispatch import Dispatch, instance
from psched.base.errors import ConfigError, LoadError
from psched.base.log import Log, attach
from psched.config import SETTINGS, Config
from psched.config.references import current_folder
from psched.master.generation_spec import BAD_CONFIG, BAD_HANDLERS, GenerationSpec
from psched.process import early_signals
from psched.process.spawn import flush_output, interpreter_options, is_launched
from psched.service.generation import generation_spec
from psched.service.worker_boot import MASTER_NUMBERS, WorkerBoot

_log = logging.getLogger("psched.worker")


class Worker:
    """Turns a user's program into a service: a master, and workers that run tasks.

    Use it in the main thread: the process becomes a master. When a worker runs the program again,
    the program must have no other thread by then, because the worker forks.
    """

    @staticmethod
    def run(
        dispatch: type[Dispatch] | Dispatch,
        config_loader: ConfigLike,
    ) -> NoReturn:
        """Run the tasks of the schedules until a signal stops the service; this call never returns.

        The process becomes a master. The master runs the program again, from its first line, in
        each of its workers. A restart (HUP, USR1) starts new workers, which therefore read the
        program, its modules and the configuration again.

        Args:
            dispatch: maps the types of tasks to the handlers that run the tasks.
            config_loader: a `psched.config.Config`, a mapping of settings, or the path of a
                configuration file; or a function that returns one of these. Each worker calls the
                function and reads the file.

        Raises:
            RuntimeError: the workers cannot run the program again, because it is neither a file
                nor a module, or because this call is in a module that psched imports.
        """
        boot = current_worker_boot()
        if boot is None:
            become_master()
        raise WorkerExit(_serve(boot, dispatch, config_loader))


def _serve(
    boot: WorkerBoot,
    dispatch: type[Dispatch] | Dispatch,
    config_loader: ConfigLike,
) -> int:
    try:
        settings = read_config(config_loader)
    except ConfigError as error:
        _log.error("%s", error)
        return BAD_CONFIG
    except Exception:  # noqa: BLE001  # a user's loader can raise any exception
        _log.exception("the configuration cannot be loaded")
        return BAD_CONFIG
    try:
        settings = with_program_folder(settings)
        return boot.serve(settings, instance(dispatch, "the dispatch"), report=True)
    except LoadError as error:
        _log.error("%s", error)
        return BAD_HANDLERS


@dataclass(frozen=True, slots=True)
class ProgramSource:
    """Creates a `GenerationSpec` from a program that calls `psched.Worker.run` or `psched.start`.

    ``safe_path`` says that the program's folder (for a module, the current folder) must not be
    added to ``sys.path``, as for ``python -P``. ``arguments`` are the program's ``sys.argv[1:]``.
    """

    name: str
    is_module: bool
    safe_path: bool
    arguments: Sequence[str]
    log: Log

    def read_spec(self, reported: Mapping[str, Any] | None) -> GenerationSpec:
        """The parameters of a generation with the reported settings.

        If nothing is reported yet, they are those of one worker, which runs the program and reports
        its settings. The master calls this as its `ReadSpec`.
        """
        if reported is None:
            numbers = {name: SETTINGS[name].default for name in MASTER_NUMBERS}
            reported = {**numbers, "processors": 1}
        return generation_spec(reported, self._boot, self.log)

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
    """Ends the program after its worker has stopped, so that no more of its lines are run."""

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


def become_master() -> NoReturn:
    """Execute a master of the user's program in this process, which has run the program so far."""
    command = master_command()
    flush_output()
    # Keep signals pending until the master has installed its handlers.
    early_signals.hold()
    os.execv(sys.executable, command)  # noqa: S606  # no shell is needed


def with_program_folder(settings: Config) -> Config:
    """Add the program's folder, if it is searched, to ``load_path``, for triggers in it."""
    is_module, name = _program()
    folder = str(current_folder() if is_module else Path(name).parent)
    # Python resolves links in the path of the folder before it adds the folder.
    is_searched = {folder, os.path.realpath(folder)} & {*sys.path}
    if not is_searched or folder in settings.load_path:
        return settings
    return settings.with_settings(load_path=[*settings.load_path, folder])


def master_command(*options: str) -> list[str]:
    """The command line that starts a master of the program that this process runs."""
    is_module, name = _program()
    program = ["--module", name, "--"] if is_module else ["--", name]
    interpreter = interpreter_options(sys.orig_argv)
    # -P keeps the program's folder out of the master's search path, because a module of the program
    # might have the name of a module that the master imports.
    master = [*interpreter, "-P", "-m", "psched.cli.daemon.master", *options]
    if sys.flags.safe_path:
        master.append("--safe-path")
    return [sys.executable, *master, *program, *sys.argv[1:]]


def program_name() -> str:
    """The program's name: the name of its module, or of its file without the suffix."""
    is_module, name = _program()
    return name if is_module else Path(name).stem


def _program() -> tuple[bool, str]:
    """Whether the program is a module, and its module's name or its file's path."""
    if is_launched() and current_worker_boot() is None:
        raise RuntimeError(
            "psched.Worker.run and psched.start cannot be called in a module that psched imports"
            " for its handlers or triggers; put the call below if __name__ == '__main__':"
        )
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name == "__main__":
        # The program is the __main__.py of a folder or archive. Return the path of the folder or
        # archive, which is sys.argv[0].
        return False, _as_written(sys.argv[0])
    if spec is not None:
        # For `python -m package`, the spec's name is `package.__main__`.
        return True, spec.name.removesuffix(".__main__")
    if file is not None:
        return False, _as_written(file)
    raise RuntimeError(
        "psched.Worker.run and psched.start must be called from a program in a file or module"
    )


def _as_written(file: str) -> str:
    """The absolute path of the program's file, through the links by which its user has named it.

    Python resolves links in the path of the current folder, and a restart should follow them.
    """
    with suppress(OSError):
        written = current_folder() / sys.argv[0]
        if written.samefile(file):
            return str(written)
    return str(Path(file).absolute())

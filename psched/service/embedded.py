"""A program of the user's that becomes a service: ``psched.Worker.run``."""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from psched.app import Configuration, read_config
from psched.application.dispatch import Dispatch
from psched.application.router import instance
from psched.base.errors import ConfigError, LoadError
from psched.config import Config
from psched.master.generation_spec import BAD_CONFIG, BAD_HANDLERS
from psched.process import early_signals
from psched.process.spawn import is_launched
from psched.service.generation import Served, current_worker_boot
from psched.service.worker_boot import WorkerBoot

_log = logging.getLogger("psched.worker")


class Worker:
    """Runs workers, supervised, from a program."""

    @staticmethod
    def run(
        dispatch: type[Dispatch] | Dispatch,
        config_loader: Configuration | Callable[[], Configuration],
    ) -> NoReturn:
        """Serve the schedules until told to stop; the rest of the program is never reached.

        The process becomes a master, which runs the program anew, from its first line, in each
        of its workers. A restart (HUP, USR1) starts new workers, and so reads the program, what
        it imports and the configuration again.

        Args:
            dispatch: the routes from types to handlers.
            config_loader: settings, a mapping of some, or the path of a file; or a function that
                returns one of these, and is called in each worker. A file is read in each worker.

        Raises:
            RuntimeError: the program is neither a file nor a module and cannot be run anew.
        """
        seat = current_worker_boot()
        if seat is None:
            become_master()
        raise Served(_serve(seat, dispatch, config_loader))


def _serve(
    seat: WorkerBoot,
    dispatch: type[Dispatch] | Dispatch,
    config_loader: Configuration | Callable[[], Configuration],
) -> int:
    try:
        given = config_loader() if callable(config_loader) else config_loader
        settings = read_config(given)
    except ConfigError as error:
        _log.error("%s", error)
        return BAD_CONFIG
    except Exception:  # noqa: BLE001  # whatever a loader raises
        _log.exception("the configuration cannot be loaded")
        return BAD_CONFIG
    try:
        settings = with_program(settings)
        return seat.serve(settings, instance(dispatch, "the dispatch"), report=True)
    except LoadError as error:
        _log.error("%s", error)
        return BAD_HANDLERS


def become_master() -> NoReturn:
    """Replace this process, which has run user code by now, by a master of its program.

    Raises:
        RuntimeError: see `program_command`.
    """
    command = program_command()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # It has handlers for them once it is there.
    early_signals.hold()
    os.execv(sys.executable, command)  # noqa: S606  # no shell, by intent


def with_program(settings: Config) -> Config:
    """Settings of the program that is running: modules beside it may be triggers, too."""
    is_module, name = _program()
    folder = str(Path.cwd() if is_module else Path(name).parent)
    if folder not in sys.path or folder in settings.load_path:
        return settings
    return settings.with_settings(load_path=[*settings.load_path, folder])


def program_command() -> list[str]:
    """The command line of a master of the program that is running.

    Raises:
        RuntimeError: it is neither a file nor a module, and cannot be run anew.
    """
    is_module, name = _program()
    program = ["--module", name, "--"] if is_module else ["--", name]
    interpreter_options = sys.orig_argv[1 : _program_at(sys.orig_argv)]
    # -P: what the master imports is not to be looked for among the program's modules.
    master = [*interpreter_options, "-P", "-m", "psched.cli.daemon.master"]
    if sys.flags.safe_path:
        master.append("--safe-path")
    return [sys.executable, *master, *program, *sys.argv[1:]]


def program_name() -> str:
    """The name of the program that is running, for people: its module's, or its file's.

    Raises:
        RuntimeError: see `program_command`.
    """
    is_module, name = _program()
    return name if is_module else Path(name).stem


def _program() -> tuple[bool, str]:
    """Whether the program that is running is a module; and that one's name, or its file's path."""
    if is_launched() and current_worker_boot() is None:
        raise RuntimeError(
            "psched.Worker.run and psched.start cannot be called in a module that psched imports"
            " for its handlers or triggers; put the call below if __name__ == '__main__':"
        )
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name == "__main__":
        # A folder or an archive that holds a __main__.py.
        return False, str(Path(sys.argv[0]).absolute())
    if spec is not None:
        # A package is run as its __main__.
        return True, spec.name.removesuffix(".__main__")
    if file is not None:
        return False, str(Path(file).absolute())
    raise RuntimeError(
        "psched.Worker.run and psched.start must be called from a program in a file or module"
    )


def _program_at(command: list[str]) -> int:
    """Where in the interpreter's command line its options end."""
    at = 1
    while at < len(command) and command[at].startswith("-") and command[at] not in ("-", "--"):
        if command[at] == "-m":
            break
        # These take a value of their own, in the same word or in the next.
        at += 2 if command[at] in ("-X", "-W", "--check-hash-based-pycs") else 1
    return at

"""The program that this process runs (its ``__main__``), and how a master runs it again."""

import os
import sys
from pathlib import Path
from typing import NoReturn

from psched.config import Config
from psched.process import early_signals
from psched.process.spawn import is_launched
from psched.service.generation import current_worker_boot


def become_master() -> NoReturn:
    """Replace this process, which has run user code, by a master of its program.

    Raises:
        RuntimeError: the program cannot be run again; see `master_command`.
    """
    command = master_command()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # Signals are held until the master has installed its handlers.
    early_signals.hold()
    os.execv(sys.executable, command)  # noqa: S606  # no shell, by intent


def with_program_folder(settings: Config) -> Config:
    """The settings with the program's folder in ``load_path``: its modules may define triggers."""
    is_module, name = _program()
    folder = str(Path.cwd() if is_module else Path(name).parent)
    if folder not in sys.path or folder in settings.load_path:
        return settings
    return settings.with_settings(load_path=[*settings.load_path, folder])


def master_command() -> list[str]:
    """The command line of a master of this program.

    Raises:
        RuntimeError: the program is neither a file nor a module, and cannot be run again.
    """
    is_module, name = _program()
    program = ["--module", name, "--"] if is_module else ["--", name]
    interpreter_options = sys.orig_argv[1 : _program_index(sys.orig_argv)]
    # With -P, the master does not import the program's modules in place of its own.
    master = [*interpreter_options, "-P", "-m", "psched.cli.daemon.master"]
    if sys.flags.safe_path:
        master.append("--safe-path")
    return [sys.executable, *master, *program, *sys.argv[1:]]


def program_name() -> str:
    """The program's name, for people: the module's, or the file's without its suffix.

    Raises:
        RuntimeError: the program cannot be run again; see `master_command`.
    """
    is_module, name = _program()
    return name if is_module else Path(name).stem


def _program() -> tuple[bool, str]:
    """Whether the program is a module, and the module's name or the file's path."""
    if is_launched() and current_worker_boot() is None:
        raise RuntimeError(
            "psched.Worker.run and psched.start cannot be called in a module that psched imports"
            " for its handlers or triggers; put the call below if __name__ == '__main__':"
        )
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name == "__main__":
        # A folder or an archive that contains a __main__.py.
        return False, str(Path(sys.argv[0]).absolute())
    if spec is not None:
        # Python runs a package as the package's __main__.
        return True, spec.name.removesuffix(".__main__")
    if file is not None:
        return False, str(Path(file).absolute())
    raise RuntimeError(
        "psched.Worker.run and psched.start must be called from a program in a file or module"
    )


def _program_index(command: list[str]) -> int:
    """The index at which the interpreter's own options end in its command line."""
    at = 1
    while at < len(command) and command[at].startswith("-") and command[at] not in ("-", "--"):
        if command[at] == "-m":
            break
        # These options have a value, in the same argument or in the next.
        at += 2 if command[at] in ("-X", "-W", "--check-hash-based-pycs") else 1
    return at

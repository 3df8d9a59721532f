"""The program that this process runs (``__main__``), and the command by which it is run again."""

import os
import sys
from pathlib import Path
from typing import NoReturn

from psched.config import Config
from psched.process import early_signals
from psched.process.spawn import is_launched
from psched.service.generation import current_worker_boot


def become_master() -> NoReturn:
    """Replace this process, which has run the user's program, by a master of that program.

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
    """Add the program's folder to ``load_path``, because modules in it may define triggers."""
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
    # -P keeps the program's folder out of the master's search path, because a module of the program
    # may have the name of a module that the master imports.
    master = [*interpreter_options, "-P", "-m", "psched.cli.daemon.master"]
    if sys.flags.safe_path:
        master.append("--safe-path")
    return [sys.executable, *master, *program, *sys.argv[1:]]


def program_name() -> str:
    """The program's name: the name of its module, or of its file without the suffix.

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
        # Python runs the __main__.py of a folder or archive, whose path is sys.argv[0].
        return False, str(Path(sys.argv[0]).absolute())
    if spec is not None:
        # For `python -m package`, the spec's name is `package.__main__`.
        return True, spec.name.removesuffix(".__main__")
    if file is not None:
        return False, str(Path(file).absolute())
    raise RuntimeError(
        "psched.Worker.run and psched.start must be called from a program in a file or module"
    )


def _program_index(command: list[str]) -> int:
    """The index of the first argument after the interpreter's options in its command line."""
    at = 1
    while at < len(command) and command[at].startswith("-") and command[at] not in ("-", "--"):
        if command[at] == "-m":
            break
        # These options have a value, in the same argument or in the next.
        at += 2 if command[at] in ("-X", "-W", "--check-hash-based-pycs") else 1
    return at

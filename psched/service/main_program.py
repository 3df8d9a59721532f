"""Finds the program that this process runs (``__main__``), and lets a master run it again."""

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from psched.config import Config
from psched.config.references import current_folder
from psched.process import early_signals
from psched.process.spawn import flush_output, is_launched
from psched.service.generation import current_worker_boot


def become_master() -> NoReturn:
    """Execute a master of the user's program in this process, which has run the program so far."""
    command = master_command()
    flush_output()
    # Keep signals pending until the master has installed its handlers.
    early_signals.hold()
    os.execv(sys.executable, command)  # noqa: S606  # no shell is needed


def with_program_folder(settings: Config) -> Config:
    """Add the program's folder to ``load_path``, because its modules might define triggers.

    The settings are returned unchanged if their ``load_path`` already contains the folder, or if
    the folder is not in ``sys.path``.
    """
    is_module, name = _program()
    folder = str(current_folder() if is_module else Path(name).parent)
    # Python resolves links in the path of the folder before it adds the folder.
    is_searched = {folder, os.path.realpath(folder)} & {*sys.path}
    if not is_searched or folder in settings.load_path:
        return settings
    return settings.with_settings(load_path=[*settings.load_path, folder])


def master_command() -> list[str]:
    """The command line that starts a master of the program that this process runs."""
    is_module, name = _program()
    program = ["--module", name, "--"] if is_module else ["--", name]
    options = interpreter_options(sys.orig_argv)
    # -P keeps the program's folder out of the master's search path, because a module of the program
    # might have the name of a module that the master imports.
    master = [*options, "-P", "-m", "psched.cli.daemon.master"]
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


def interpreter_options(command: Sequence[str]) -> list[str]:
    """The interpreter's own options in its command line, except ``-m`` and ``-c``."""
    options: list[str] = []
    arguments = iter(command[1:])
    for argument in arguments:
        if not argument.startswith("-") or argument in ("-", "--"):
            break
        if argument.startswith("--"):
            options.append(argument)
            has_value = argument == "--check-hash-based-pycs"
        else:
            # One argument can hold several short options. The first one with a value ends it; the
            # value follows in the same argument or in the next: -Bm program, -BWignore.
            found = re.fullmatch("-([^cmWX]*)([cmWX]?)(.*)", argument)
            flags, letter, value = found.groups() if found else ("", "", "")
            if letter in ("c", "m"):
                options += [f"-{flags}"] if flags else []
                break
            options.append(argument)
            has_value = bool(letter) and not value
        if has_value:
            options.append(next(arguments, ""))
    return options

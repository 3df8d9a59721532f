"""Checks whether a row is allowed to run its program; describes what rows are allowed to run.

The setting ``exec_type`` restricts programs, because anybody who can insert a row of type ``exec``
chooses the program that it runs. If ``exec_type`` is a list of programs, a row can choose
only a program of the list, its arguments and its standard input. It cannot choose a shell, because
a shell runs any program. It cannot choose the environment (``LD_PRELOAD``, ``PATH``, ``PYTHONPATH``
and many more) or the working folder, because either can make a harmless program run another one.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psched.base.errors import NotAllowedError
from psched.base.file_rights import refusal_of_file, user_name

if TYPE_CHECKING:
    from psched.config import Config

_REFUSED = ("shell", "env", "cwd")
"""Fields of the data that a row must not use if ``exec_type`` is a list of programs."""


def check_enabled(allowed: bool | Sequence[str]) -> None:  # noqa: FBT001  # the setting's value
    """Refuse every program if ``exec_type`` is off."""
    if allowed is False:
        raise NotAllowedError(
            "exec_type is off: rows of type exec run nothing here; set exec_type to on, or to a"
            " list of programs (without it, it is on only if nobody else may add rows)"
        )


def check_fields(data: Mapping[str, Any]) -> None:
    """Refuse a row's data that could make a listed program run another program."""
    for name in _REFUSED:
        if data.get(name):
            raise NotAllowedError(
                f'"{name}" is refused, because exec_type is a list of programs: a row chooses only'
                " a program, its arguments and its standard input; write a program that sets the"
                " rest, and add it to the list"
            )


def find_listed(command: str, programs: Sequence[str]) -> str:
    """The listed program that a row's command names.

    Symbolic links are resolved before files are compared. A link with another name than the listed
    link is another program, although both lead to one file, because the behaviour of BusyBox and
    similar programs depends on the name under which they are run.
    """
    asked = _which(command)
    if asked is None:
        raise NotAllowedError(
            f"exec_type is a list of programs, and {command!r} is no executable program on this"
            " host"
        )
    file = Path(os.path.realpath(asked))
    for program in programs:
        path = _which(program)
        if path is None or os.path.realpath(path) != str(file):
            continue
        if Path(path).name in (Path(asked).name, file.name):
            if reason := refusal_of_file(Path(path), owner=False):
                raise NotAllowedError(f"exec_type lists {program}, but {reason}")
            return path
    raise NotAllowedError(
        f"exec_type does not list {command!r}, which is {file}: rows may run {', '.join(programs)}"
    )


def find_missing(programs: Sequence[str]) -> list[str]:
    """Those of the listed programs that do not exist on this host or are not executable."""
    return [program for program in programs if _which(program) is None]


def describe_programs(settings: "Config") -> str:
    """Describe in one line which programs rows are allowed to run, for the log and for commands."""
    user, allowed = user_name(), settings.allowed_programs
    if settings.only and "exec" not in settings.only:
        return (
            "rows cannot choose a program: type exec is left to other workers, because the setting"
            " only does not name it"
        )
    if allowed is True:
        why = "exec_type is on" if settings.exec_type else "only this user may add rows (exec_type)"
        return f"rows may run any program as user {user}: {why}"
    if allowed is False:
        why = ""
        if settings.exec_type is None and (settings.exec or settings.script):
            why = ", because one handler serves every type"
        elif settings.exec_type is None:
            why = f", because others than user {user} may add rows; set it to on, or to a list"
        return f"rows cannot choose a program: exec_type is off{why}"
    return f"rows may run these programs as user {user}: {', '.join(allowed)} (exec_type)"


def describe_triggers(settings: "Config") -> str:
    """Describe in one line which trigger classes rows can choose, for the log and for commands."""
    if settings.triggers is not None:
        names, where = settings.triggers, "these modules and their submodules (triggers)"
    else:
        names, where = settings.load_path, "modules in these folders (load_path)"
    if not names:
        empty = "load_path" if settings.triggers is None else "triggers"
        return f"rows cannot choose a trigger class: {empty} is empty"
    return f"rows may call trigger classes as user {user_name()}, from {where}: {', '.join(names)}"


def _which(program: str) -> str | None:
    """The absolute path of an executable program; None if this host has no such program."""
    from shutil import which  # noqa: PLC0415  # few rows need it

    try:
        path = which(program)
    except ValueError:  # the name contains a NUL
        return None
    return None if path is None else str(Path(path).absolute())

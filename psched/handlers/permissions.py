"""What rows may run: the setting ``exec_type``, and in short ``triggers``.

Whoever may insert a row chooses the program that type ``exec`` runs. With a list of programs a row
chooses one of these, its arguments and its standard input, and nothing else: a shell runs any
program, and an environment (``LD_PRELOAD``, ``PATH``, ``PYTHONPATH`` and many more) or a working
folder can make a harmless program run something else.
"""

import os
import pwd
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from psched.base.errors import NotAllowedError
from psched.config import Config

_REFUSED = ("shell", "env", "cwd")
"""Fields of the data that a row must not use beside a list of programs."""


def check_allowed(allowed: bool | Sequence[str]) -> None:  # noqa: FBT001  # the setting's value
    """Refuse to run any program if ``exec_type`` is off.

    Raises:
        NotAllowedError: it is.
    """
    if allowed is False:
        raise NotAllowedError(
            "exec_type is off: rows of type exec run nothing here; set exec_type to on, or to a"
            " list of programs"
        )


def check_fields(data: Mapping[str, Any]) -> None:
    """Refuse what would let a row run something else than a listed program.

    Args:
        data: the row's.

    Raises:
        NotAllowedError: a field is used that only ``exec_type: on`` allows.
    """
    for name in _REFUSED:
        if data.get(name):
            raise NotAllowedError(
                f'"{name}" is refused, because exec_type is a list of programs: a row chooses one'
                " of them, its arguments and its standard input; write a program that does the"
                " rest, and list that"
            )


def listed(command: str, programs: Sequence[str]) -> str:
    """The program of the list that a command means.

    The files are compared that symbolic links lead to. A link whose name differs from that of a
    listed link is another program, although both lead to one file: BusyBox and its like act by
    the name under which they are run.

    Args:
        command: the program that a row asks for: a path, or a name that is looked for in $PATH.
        programs: the list, in the same form.

    Returns:
        The absolute path of the listed program, and not the row's: whatever lies there now.

    Raises:
        NotAllowedError: it is not in the list, or not on this host.
    """
    asked = _found(command)
    if asked is None:
        raise NotAllowedError(
            f"exec_type is a list of programs, and {command!r} is none that can be run on this host"
        )
    file = Path(os.path.realpath(asked))
    for program in programs:
        path = _found(program)
        if path is None or os.path.realpath(path) != str(file):
            continue
        if Path(path).name in (Path(asked).name, file.name):
            return path
    raise NotAllowedError(
        f"exec_type does not list {command!r}, which is {file}: rows may run {', '.join(programs)}"
    )


def missing(programs: Sequence[str]) -> list[str]:
    """Those of the list that are not on this host."""
    return [program for program in programs if _found(program) is None]


def who_can_run_code(settings: Config) -> str:
    """What rows can make this service run, in a line for the log and for ``psched check``."""
    user, allowed = _user(), settings.allowed_programs
    if settings.only and "exec" not in settings.only:
        return (
            "rows can run no program of their choice: the setting only leaves type exec to other"
            " workers"
        )
    if allowed is True:
        return f"rows may run any program as user {user}: exec_type is on"
    if allowed is False:
        why = "" if settings.exec_type is False else ", because one handler serves every type"
        return f"rows can run no program of their choice: exec_type is off{why}"
    return f"rows may run these programs as user {user}: {', '.join(allowed)} (exec_type)"


def who_is_called(settings: Config) -> str:
    """Which classes rows can have this service import and call, in a line like the one above."""
    if settings.triggers is not None:
        names, where = settings.triggers, "these modules, and those below them (triggers)"
    else:
        names, where = settings.load_path, "modules that are found in these folders (load_path)"
    if not names:
        missing_ = "triggers is empty" if settings.triggers is not None else "load_path is empty"
        return f"rows can name no trigger class of their choice: {missing_}"
    return f"rows may call trigger classes as user {_user()}, of {where}: {', '.join(names)}"


def _found(program: str) -> str | None:
    """The absolute path of a program that can be run; None: there is none."""
    try:
        path = shutil.which(program)
    except ValueError:  # it holds a NUL
        return None
    return None if path is None else str(Path(path).absolute())


def _user() -> str:
    number = os.geteuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)

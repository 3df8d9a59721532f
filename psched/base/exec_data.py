"""The payload of the built-in type ``exec``: its fields, and the rules that they follow.

The rules are checked when a client declares a schedule, so that the author of a mistake sees it.
The handler checks them again at each run, because plain SQL can write any payload.
"""

from collections.abc import Callable, Mapping
from typing import Any

from psched.base.errors import InvalidError
from psched.base.texts import brief

EXEC_TYPE = "exec"
"""The type whose built-in handler runs the program that a payload names."""

_LARGEST_STATUS = 255
"""The largest exit status of a program."""

_SIMILARITY = 0.4
"""The least similarity (see `difflib`) of a field that an error suggests: ``environment`` leads to
``env``."""


def check_declared_exec(data: Mapping[str, Any]) -> None:
    """Check the payload of a schedule that a client declares.

    Unknown fields are refused, because most of them are misspelt. Fields that are meant for the
    program stand under ``data``.
    """
    for name in data:
        if name not in _FIELDS:
            from difflib import get_close_matches  # noqa: PLC0415  # rarely needed

            near = get_close_matches(str(name), _FIELDS, 1, cutoff=_SIMILARITY)
            hint = f'; did you mean "{near[0]}"?' if near else "."
            raise _invalid(
                f"{brief(repr(name))} is not a field of type exec{hint} The fields are"
                f" {', '.join(_FIELDS)}; put values for the program under data"
            )
    check_exec(data)


def check_exec(data: Mapping[str, Any]) -> None:
    """Check the fields that the handler reads. Other fields are for the program.

    A field that is None counts as missing.
    """
    for name, check in _FIELDS.items():
        if data.get(name) is not None:
            check(name, data[name])
    command, shell = data.get("command"), data.get("shell")
    if command is None:
        raise _invalid(
            '"command" is missing; give the program and its arguments as a list of texts'
        )
    if shell and not isinstance(command, str):
        raise _invalid('"command" must be a text when "shell" is true; for a list, omit "shell"')
    if not shell and isinstance(command, str):
        raise _invalid(
            '"command" must be a list of texts, such as ["program", "argument"]; one text needs'
            ' "shell": true'
        )


def _check_command(name: str, value: object) -> None:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(map(_is_text, texts)):
        raise _invalid(f'"{name}" must be a list of texts, without NUL')
    if not texts or not texts[0]:
        raise _invalid(f'"{name}" is empty; name a program')


def _check_flag(name: str, value: object) -> None:
    # SQLite's json_object() writes true as 1.
    if not isinstance(value, int) or value not in {0, 1}:
        raise _invalid(f'"{name}" must be true or false')


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise _invalid(f'"{name}" must be a text')


def _check_path(name: str, value: object) -> None:
    if not _is_text(value) or not value:
        raise _invalid(f'"{name}" must be the path of a folder, a text')


def _check_environment(name: str, value: object) -> None:
    if not isinstance(value, Mapping) or not all(map(_is_text, [*value, *value.values()])):
        raise _invalid(f'"{name}" must map names to texts; put numbers in quotes')
    if not all(value) or any("=" in variable for variable in value):
        raise _invalid(f'"{name}" has a name that is empty or contains "="')


def _check_statuses(name: str, value: object) -> None:
    statuses = value if isinstance(value, list | tuple) else ()
    if not statuses or not all(map(_is_exit_status, statuses)):
        raise _invalid(
            f'"{name}" must be a list of exit statuses from 0 to {_LARGEST_STATUS}, such as [0, 1]'
        )


def _accept(_name: str, _value: object) -> None:
    """Accept any value, because only the program reads it."""


_FIELDS: Mapping[str, Callable[[str, Any], None]] = {
    "command": _check_command,
    "shell": _check_flag,
    "env": _check_environment,
    "cwd": _check_path,
    "append_key": _check_flag,
    "stdin": _check_text,
    "ok_exit": _check_statuses,
    "data": _accept,
}
"""For each field: a function that checks its value, and raises InvalidError if it is invalid."""


def _is_exit_status(value: object) -> bool:
    # bool is a subclass of int.
    return type(value) is int and 0 <= value <= _LARGEST_STATUS


def _is_text(value: object) -> bool:
    """Whether a value is a text that a process can get, so one without NUL."""
    return isinstance(value, str) and "\0" not in value


def _invalid(problem: str) -> InvalidError:
    return InvalidError("data", problem)

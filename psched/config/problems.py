"""The problems of a configuration, and the error that reports them.

No error text of this package quotes an invalid value, because the value can be a secret that the
user wrote in the wrong place.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from psched.base.errors import ConfigError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


class InvalidValueError(Exception):
    """A value cannot be used. The error's text says why, and what can be used instead."""


class Problem(NamedTuple):
    """One problem of a configuration: what is wrong, and how the user can fix it."""

    text: str
    key: str | None = None  # the setting; None if it is known elsewhere, or there is none
    line: int | None = None
    path: tuple[object, ...] = ()  # of the part of the value that is wrong


class InvalidPartsError(InvalidValueError):
    """Some parts of a value cannot be used; `parts` lists them."""

    def __init__(self, parts: Sequence[Problem]) -> None:
        super().__init__("; ".join(f"{_path(part.path)}: {part.text}" for part in parts))
        self.parts = parts


def safe_name(key: object) -> str:
    """Return the text that messages show for a key: the key itself, if it has the form of a name.

    For any other key, a fixed text is returned, because a malformed file can turn a url with its
    password into a key.
    """
    if isinstance(key, str) and _NAME.fullmatch(key):
        return key
    return "(not a name)"


def config_error(problems: Iterable[Problem], origin: Path | None = None) -> ConfigError:
    """Return an error that reports all `problems`, one ``FILE:LINE: key: text`` per line."""
    # Duplicates are removed: if other sections merge (<<) a section that has a problem, the problem
    # is found once in each of these sections.
    in_order = sorted(dict.fromkeys(problems), key=lambda problem: problem.line or 0)
    return ConfigError("\n".join(_message(problem, origin) for problem in in_order))


def _path(keys: Iterable[object]) -> str:
    return ".".join(map(safe_name, keys))


def _message(problem: Problem, origin: Path | None) -> str:
    place = None if origin is None else str(origin)
    if place is not None and problem.line is not None:
        place = f"{place}:{problem.line}"
    key = None if problem.key is None else _path((problem.key, *problem.path))
    return ": ".join(part for part in (place, key, problem.text) if part is not None)

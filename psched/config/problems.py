"""The problems of a configuration, and the error that reports them.

No text in this package quotes a value, because users may write a secret where it does not belong.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from psched.base.errors import ConfigError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


class InvalidValueError(Exception):
    """A value cannot be used. The text gives the reason, and what can be used instead."""


class InvalidPart(NamedTuple):
    """A part of a value that cannot be used.

    Attributes:
        path: the keys that lead to the part.
        text: why the part cannot be used, and what can be used instead.
        line: the line of the part's key; None if it was not read from a file.
    """

    path: tuple[object, ...]
    text: str
    line: int | None = None


class InvalidPartsError(InvalidValueError):
    """Some parts of a value cannot be used; `parts` lists them."""

    def __init__(self, parts: Sequence[InvalidPart]) -> None:
        super().__init__("; ".join(f"{_path(part.path)}: {part.text}" for part in parts))
        self.parts = parts


class Problem(NamedTuple):
    """One thing to fix.

    Attributes:
        text: what is wrong, and how to fix it.
        key: the name of the setting; None if the problem is not about one setting.
        line: the line of the problem in the file; None if no line is known.
        path: the keys that lead from the setting to the wrong part of its value; empty: the
            problem is about the whole value.
    """

    text: str
    key: str | None = None
    line: int | None = None
    path: tuple[object, ...] = ()


def safe_name(key: object) -> str:
    """Return a key if it has the form of a name; otherwise a text that replaces it in messages.

    Other keys are not shown, because in a malformed file a url with its password can be read as a
    key.
    """
    if isinstance(key, str) and _NAME.fullmatch(key):
        return key
    return "(not a name)"


def config_error(problems: Iterable[Problem], origin: Path | None = None) -> ConfigError:
    """Return an error that reports all `problems`, one ``FILE:LINE: key: text`` per line."""
    # Duplicates are removed, because a problem in a section is found again in each section that
    # merges it.
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

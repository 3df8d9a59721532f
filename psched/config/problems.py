"""What is wrong with a configuration, told so that it can be mended and shown to anyone.

No text here or in the modules beside it quotes a value: any value may be a secret that
stands in the wrong place.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from psched.base.errors import ConfigError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


class InvalidValueError(Exception):
    """A value cannot be used; the text tells why and what would do."""


class Part(NamedTuple):
    """A part of a value, and why it cannot be used.

    Attributes:
        path: the keys that lead to it.
        text: see `InvalidValueError`.
        line: of its key, if that is in a file.
    """

    path: tuple[object, ...]
    text: str
    line: int | None = None


class InvalidPartsError(InvalidValueError):
    """Parts of a value cannot be used."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__("; ".join(f"{_path(part.path)}: {part.text}" for part in parts))
        self.parts = parts


class Problem(NamedTuple):
    """One thing to mend.

    Attributes:
        text: what is wrong.
        key: of which setting.
        line: of its key, if that is in a file.
        path: the keys that lead from there to the part of its value that is wrong.
    """

    text: str
    key: str | None = None
    line: int | None = None
    path: tuple[object, ...] = ()


def named(key: object) -> str:
    """A key for a message, as long as it is a name.

    In a broken file anything can come to stand where a key should, a url with its
    password too.
    """
    if isinstance(key, str) and _NAME.fullmatch(key):
        return key
    return "(not a name)"


def failure(problems: Iterable[Problem], origin: Path | None = None) -> ConfigError:
    """The exception that reports all of `problems`, one ``FILE:LINE: key: text`` per line."""
    # A section that several others merge brings its problems along with each of them.
    in_order = sorted(dict.fromkeys(problems), key=lambda problem: problem.line or 0)
    return ConfigError("\n".join(_sentence(problem, origin) for problem in in_order))


def _path(keys: Iterable[object]) -> str:
    return ".".join(map(named, keys))


def _sentence(problem: Problem, origin: Path | None) -> str:
    place = None if origin is None else str(origin)
    if place is not None and problem.line is not None:
        place = f"{place}:{problem.line}"
    key = None if problem.key is None else _path((problem.key, *problem.path))
    return ": ".join(part for part in (place, key, problem.text) if part is not None)

"""The kinds of value that a setting can have, and how each is read.

A kind describes itself once; its errors, and the documentation, say it in those words.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Protocol

from psched.config import references
from psched.config.problems import InvalidValueError
from psched.config.references import Context
from psched.triggers.zone import zone_names

_LARGEST = 10**9
"""More than thirty years of seconds: a larger number is a slip, and too much for a timer."""


class Kind(Protocol):
    """What all kinds of value have in common."""

    def describe(self) -> str:
        """What a value must be, in words that follow "must be"."""
        ...

    def read(self, value: object, around: Context) -> object:
        """The value as psched uses it.

        Raises:
            RefusedError: it is not of this kind, or a reference in it leads nowhere.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number within bounds.

    Attributes:
        unit: what it counts, in the plural; empty: nothing.
        whole: whether a fraction is refused.
        least: the smallest that is accepted.
        above: if given, instead of `least`: a number that is just too small.
        most: the largest that is accepted.
    """

    unit: str = "seconds"
    whole: bool = False
    least: float = 0
    above: float | None = None
    most: float = _LARGEST

    def describe(self) -> str:
        """See `Kind.describe`."""
        counted = f" of {self.unit}" if self.unit else ""
        number = f"a {'whole ' if self.whole else ''}number{counted}"
        if self.above is not None:
            return f"{number} above {self.above:.15g} and up to {self.most:.15g}"
        return f"{number} from {self.least:.15g} to {self.most:.15g}"

    def read(self, value: object, around: Context) -> int | float:
        """See `Kind.read`. Text is a number only if it comes from a reference."""
        if isinstance(value, str) and references.occur_in(value):
            value = _as_number(references.expand(value, around))
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise unlike(self, value)
        if not self._is_within(value) or (self.whole and value != int(value)):
            raise InvalidValueError(f"must be {self.describe()}")
        return int(value) if self.whole else float(value)

    def _is_within(self, value: float) -> bool:
        # Not a number is within nothing: every comparison with it is false.
        if self.above is not None:
            return self.above < value <= self.most
        return self.least <= value <= self.most


class Choice:
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def describe(self) -> str:
        """See `Kind.describe`."""
        *others, last = self.words
        return f"{', '.join(others)} or {last}" if others else last

    def read(self, value: object, around: Context) -> str:
        """See `Kind.read`."""
        word = text(self, value, around)
        if word not in self.words:
            raise InvalidValueError(f"must be {self.describe()}")
        return word


@dataclass(frozen=True, slots=True)
class Word:
    """Text of a certain form.

    Attributes:
        form: the form in words.
        pattern: the form, for the whole of the text.
    """

    form: str
    pattern: re.Pattern[str]

    def describe(self) -> str:
        """See `Kind.describe`."""
        return self.form

    def read(self, value: object, around: Context) -> str:
        """See `Kind.read`."""
        word = text(self, value, around)
        if not self.pattern.fullmatch(word):
            raise InvalidValueError(f"must be {self.form}")
        return word


class Zone:
    """The name of a timezone that is known here."""

    def describe(self) -> str:
        """See `Kind.describe`."""
        return "the name of a timezone, such as UTC or Europe/Berlin"

    def read(self, value: object, around: Context) -> str:
        """See `Kind.read`."""
        name = text(self, value, around)
        if name not in zone_names():
            raise InvalidValueError(f"must be {self.describe()}")
        return name


class File:
    """A file or folder, made absolute: a daemon leaves the folder it was started in."""

    def describe(self) -> str:
        """See `Kind.describe`."""
        return "the path of a file"

    def read(self, value: object, around: Context) -> Path:
        """See `Kind.read`."""
        return around.cwd / text(self, value, around)


class Folders:
    """A list of folders, made absolute. They are text, as ``sys.path`` wants them."""

    def describe(self) -> str:
        """See `Kind.describe`."""
        return "the path of a folder, or a list of such"

    def read(self, value: object, around: Context) -> tuple[str, ...]:
        """See `Kind.read`."""
        return tuple(str(around.cwd / text(self, item, around)) for item in _items(value))


class Modules:
    """A list of modules' names and of Python files; the files are made absolute.

    What holds a slash is a file, whose ``.py`` may be left out.
    """

    def describe(self) -> str:
        """See `Kind.describe`."""
        return "the name of a module or the path of a Python file, or a list of such"

    def read(self, value: object, around: Context) -> tuple[str, ...]:
        """See `Kind.read`."""
        modules = (text(self, item, around) for item in _items(value))
        return tuple(
            f"{str(around.cwd / m).removesuffix('.py')}.py" if "/" in m or m.endswith(".py") else m
            for m in modules
        )


class ModuleNames:
    """A list of modules' names."""

    def describe(self) -> str:
        """See `Kind.describe`."""
        return "the name of a module, such as myapp.triggers, or a list of such"

    def read(self, value: object, around: Context) -> tuple[str, ...]:
        """See `Kind.read`."""
        names = tuple(text(self, item, around) for item in _items(value))
        parts = [part for name in names for part in name.split(".")]
        if not all(map(str.isidentifier, parts)) or any(name.endswith(".py") for name in names):
            raise InvalidValueError(f"must be {self.describe()}")
        return names


class Names:
    """A list of names, such as those of types."""

    def describe(self) -> str:
        """See `Kind.describe`."""
        return "the name of a type, or a list of such"

    def read(self, value: object, around: Context) -> tuple[str, ...]:
        """See `Kind.read`."""
        return tuple(text(self, item, around) for item in _items(value))


class Programs:
    """Whether rows may run programs: any, none, or a list; YAML reads ``on`` as true."""

    def describe(self) -> str:
        """See `Kind.describe`."""
        return "on, off or a list of programs"

    def read(self, value: object, around: Context) -> bool | tuple[str, ...]:
        """See `Kind.read`. What names a file is made absolute; a bare name stays one."""
        if isinstance(value, bool):
            return value
        if isinstance(value, str):
            word = text(self, value, around)
            if word not in ("on", "off"):
                raise InvalidValueError(f"must be {self.describe()}; one program is a list, too")
            return word == "on"
        if not isinstance(value, list | tuple):
            raise unlike(self, value)
        if not value:
            raise InvalidValueError("is an empty list; write off")
        programs = (text(self, item, around) for item in value)
        return tuple(str(around.cwd / p) if "/" in p else p for p in programs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program and its arguments; what names a file is made absolute.

    Attributes:
        script: the program is a file wherever it is; else a bare name is looked for in $PATH.
    """

    script: bool = False

    def describe(self) -> str:
        """See `Kind.describe`."""
        what = "a .py file" if self.script else "a program"
        return f"the path of {what}, or a list of that and of its arguments"

    def read(self, value: object, around: Context) -> tuple[str, ...]:
        """See `Kind.read`. What an argument holds is nobody's business but the program's."""
        items = _items(value)
        if not items:
            raise InvalidValueError(f"must be {self.describe()}, not an empty list")
        program = text(self, items[0], around)
        if self.script or "/" in program:
            program = str(around.cwd / program)
        for item in items[1:]:
            if not isinstance(item, str):
                raise InvalidValueError(f"must be {self.describe()}; put each argument in quotes")
        arguments = (references.expand(str(item), around) for item in items[1:])
        return (program, *arguments)


def text(kind: Kind, value: object, around: Context, *, encode: range = range(0)) -> str:
    """The text of a value of some `kind`, with its references expanded.

    Args:
        kind: for the error's text.
        value: as it was written, or a path from a Python program.
        around: where references lead.
        encode: see `references.expand`.

    Raises:
        RefusedError: it is no text, empty, not printable, or a reference leads nowhere.
    """
    if isinstance(value, PurePath):
        value = str(value)
    if not isinstance(value, str):
        raise unlike(kind, value)
    expanded = references.expand(value, around, encode=encode)
    if not expanded:
        raise InvalidValueError(f"is empty; it must be {kind.describe()}")
    if not expanded.isprintable():
        raise InvalidValueError("holds a line break or another character that cannot be printed")
    return expanded


def _items(value: object) -> list[object]:
    """One value or many, as a list; nothing is an empty one."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _as_number(digits: str) -> int | float | str:
    for convert in (int, float):
        with suppress(ValueError):
            return convert(digits)
    return digits


def unlike(kind: Kind, value: object) -> InvalidValueError:
    """What a value must be, and what it is instead."""
    match value:
        case None:
            found = "nothing"
        case bool():
            found = "true or false"
        case int() | float():
            found = "a number"
        case str():
            found = "text"
        case Mapping():
            found = "a mapping"
        case list() | tuple():
            found = "a list"
        case _:
            found = f"a {type(value).__name__}"
    return InvalidValueError(f"must be {kind.describe()}, not {found}")

"""The kinds of value that a setting can have, and how each is read.

A kind describes itself once; its errors and the documentation use that description.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from typing_extensions import override

from psched.config import references
from psched.config.problems import InvalidValueError
from psched.config.references import Context
from psched.config.store_kinds import STORE_KINDS
from psched.triggers.zone import zone_names

V = TypeVar("V")

_LARGEST = 10**9
"""The largest number that is accepted by default. In seconds it is more than thirty years. A larger
number is refused, because it is a mistake and too large for a timer."""


class RawValue(NamedTuple):
    """A value as it was written, and the line of its key; the line is None if there is no file."""

    value: object
    line: int | None = None


def without_lines(value: object) -> object:
    """Return a value with every `RawValue` in it replaced by the plain value."""
    if isinstance(value, RawValue):
        value = value.value
    if isinstance(value, Mapping):
        return {name: without_lines(each) for name, each in value.items()}
    return value


class Kind(ABC):
    """Base class of all kinds of value."""

    @property
    @abstractmethod
    def description(self) -> str:
        """A phrase that says which values are valid; messages put it after "must be"."""

    @abstractmethod
    def read(self, value: object, context: Context) -> object:
        """Check a value as it was written, and return it as psched uses it.

        Raises:
            InvalidValueError: the value is not of this kind, or a reference in it cannot be
                resolved.
        """

    def text(self, value: object, context: Context, *, encode: range = range(0)) -> str:
        """Return the text of a value, with its references expanded.

        Args:
            value: the value as it was written, or a path object from a Python program.
            context: the environment variables that the references refer to.
            encode: see `references.expand`.

        Raises:
            InvalidValueError: the value is not text, its text is empty or not printable, or a
                reference in it cannot be resolved.
        """
        if isinstance(value, PurePath):
            value = str(value)
        if not isinstance(value, str):
            raise self.mismatch(value)
        expanded = references.expand(value, context, encode=encode)
        if not expanded:
            raise InvalidValueError(f"is empty; it must be {self.description}")
        if not expanded.isprintable():
            raise InvalidValueError(
                "holds a line break or another character that cannot be printed"
            )
        return expanded

    def mismatch(self, value: object) -> InvalidValueError:
        """Return the error for a value of the wrong type; it gives the expected and actual type."""
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
        return InvalidValueError(f"must be {self.description}, not {found}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Number(Kind):
    """A number within bounds.

    Attributes:
        unit: the plural noun after "a number of", such as seconds; empty for a number without a
            unit.
        whole: whether a fraction is refused.
        least: the smallest number that is accepted; ignored if `above` is given.
        above: the number must be larger than this. None: `least` is the lower bound.
        most: the largest number that is accepted.
    """

    unit: str = "seconds"
    whole: bool = False
    least: float = 0
    above: float | None = None
    most: float = _LARGEST

    @property
    @override
    def description(self) -> str:
        counted = f" of {self.unit}" if self.unit else ""
        number = f"a {'whole ' if self.whole else ''}number{counted}"
        if self.above is not None:
            return f"{number} above {self.above:.15g} and up to {self.most:.15g}"
        return f"{number} from {self.least:.15g} to {self.most:.15g}"

    @override
    def read(self, value: object, context: Context) -> int | float:
        # A text with a reference is converted, because environment variables and files hold only
        # text. Any other text is refused, even one of digits.
        if isinstance(value, str) and references.occur_in(value):
            value = _as_number(references.expand(value, context))
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.mismatch(value)
        if not self._is_within(value) or (self.whole and value != int(value)):
            raise InvalidValueError(f"must be {self.description}")
        return int(value) if self.whole else float(value)

    def _is_within(self, value: float) -> bool:
        # NaN is outside all bounds, because every comparison with NaN is false.
        if self.above is not None:
            return self.above < value <= self.most
        return self.least <= value <= self.most


class Choice(Kind):
    """One of a few words.

    Args:
        words: the words that are accepted.
        removed: words that earlier versions accepted and that are refused now. The error
            recommends the first of ``words`` instead.
    """

    def __init__(self, *words: str, removed: Sequence[str] = ()) -> None:
        self.words = words
        self._removed = removed

    @property
    @override
    def description(self) -> str:
        *others, last = self.words
        return f"{', '.join(others)} or {last}" if others else last

    @override
    def read(self, value: object, context: Context) -> str:
        word = self.text(value, context)
        if word in self._removed:
            raise InvalidValueError(
                f"{word} was removed; set it to {self.words[0]}, or delete the line"
            )
        if word not in self.words:
            raise InvalidValueError(f"must be {self.description}")
        return word


class MatchingText(Kind):
    """Text that matches a pattern.

    Args:
        description: the valid texts, as in `Kind.description`.
        pattern: a regular expression that must match the whole text.
    """

    description = ""  # each kind of text has a description of its own

    def __init__(self, description: str, pattern: re.Pattern[str]) -> None:
        self.description = description
        self._pattern = pattern

    @override
    def read(self, value: object, context: Context) -> str:
        word = self.text(value, context)
        if not self._pattern.fullmatch(word):
            raise InvalidValueError(f"must be {self.description}")
        return word


class SecretText(Kind):
    """Text that is never shown."""

    description = "a text"

    @override
    def read(self, value: object, context: Context) -> str:
        return self.text(value, context)


class ZoneName(Kind):
    """The name of a time zone in psched's zone data."""

    description = "the name of a timezone, such as UTC or Europe/Berlin"

    @override
    def read(self, value: object, context: Context) -> str:
        name = self.text(value, context)
        if name not in zone_names():
            raise InvalidValueError(f"must be {self.description}")
        return name


class File(Kind):
    """The path of a file or folder. It is made absolute, because daemons change their folder."""

    description = "the path of a file"

    @override
    def read(self, value: object, context: Context) -> Path:
        return context.cwd / self.text(value, context)


class Folders(Kind):
    """A list of absolute paths of folders. Each is text, because ``sys.path`` requires text."""

    description = "the path of a folder, or a list of such"

    @override
    def read(self, value: object, context: Context) -> tuple[str, ...]:
        return tuple(str(context.cwd / self.text(item, context)) for item in _items(value))


class Modules(Kind):
    """A list of module names and paths of Python files. The paths are made absolute.

    An item with a slash is a path, and may omit the ending ``.py``.
    """

    description = "the name of a module or the path of a Python file, or a list of such"

    @override
    def read(self, value: object, context: Context) -> tuple[str, ...]:
        modules = (self.text(item, context) for item in _items(value))
        return tuple(
            f"{str(context.cwd / m).removesuffix('.py')}.py" if "/" in m or m.endswith(".py") else m
            for m in modules
        )


class ModuleNames(Kind):
    """A list of module names."""

    description = "the name of a module, such as myapp.triggers, or a list of such"

    @override
    def read(self, value: object, context: Context) -> tuple[str, ...]:
        names = tuple(self.text(item, context) for item in _items(value))
        parts = [part for name in names for part in name.split(".")]
        if not all(map(str.isidentifier, parts)) or any(name.endswith(".py") for name in names):
            raise InvalidValueError(f"must be {self.description}")
        return names


class TypeNames(Kind):
    """A list of types of task."""

    description = "the name of a type, or a list of such"

    @override
    def read(self, value: object, context: Context) -> tuple[str, ...]:
        return tuple(self.text(item, context) for item in _items(value))


class Programs(Kind):
    """The programs that rows may run: any (on), none (off), or those in a list.

    A boolean is accepted, because YAML reads ``on`` as true and ``off`` as false.
    """

    description = "on, off or a list of programs"

    @override
    def read(self, value: object, context: Context) -> bool | tuple[str, ...]:
        if isinstance(value, bool):
            return value
        if isinstance(value, str):
            word = self.text(value, context)
            if word not in ("on", "off"):
                raise InvalidValueError(f"must be {self.description}; one program is a list, too")
            return word == "on"
        if not isinstance(value, list | tuple):
            raise self.mismatch(value)
        if not value:
            raise InvalidValueError("is an empty list; write off")
        programs = (self.text(item, context) for item in value)
        # A path is made absolute. A bare name stays, because it is searched for in $PATH later.
        return tuple(str(context.cwd / p) if "/" in p else p for p in programs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Kind):
    """A program and its arguments; the program's path is made absolute.

    Attributes:
        script: whether the program is a Python file, and therefore always a path. False: a name
            without a slash is searched for in $PATH.
    """

    script: bool = False

    @property
    @override
    def description(self) -> str:
        what = "a .py file" if self.script else "a program"
        return f"the path of {what}, or a list of that and of its arguments"

    @override
    def read(self, value: object, context: Context) -> tuple[str, ...]:
        items = _items(value)
        if not items:
            raise InvalidValueError(f"must be {self.description}, not an empty list")
        program = self.text(items[0], context)
        if self.script or "/" in program:
            program = str(context.cwd / program)
        for item in items[1:]:
            if not isinstance(item, str):
                raise InvalidValueError(f"must be {self.description}; put each argument in quotes")
        # Arguments are not checked by `text`, because some programs accept arguments that are empty
        # or unprintable.
        arguments = (references.expand(str(item), context) for item in items[1:])
        return (program, *arguments)


class StoreType(Kind):
    """One of psched's kinds of store, or the import path of a user's class."""

    @property
    @override
    def description(self) -> str:
        return f"{', '.join(STORE_KINDS)}, or module:Class, the import path of a store of your own"

    @override
    def read(self, value: object, context: Context) -> str:
        word = self.text(value, context)
        if word not in STORE_KINDS and not re.fullmatch(r"\w[\w.]*:\w+", word):
            raise InvalidValueError(f"must be {self.description}")
        return word


class FrozenMapping(Mapping[str, V]):
    """A mapping that cannot be changed, and is hashable."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, V] = MappingProxyType({})) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> V:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values))


class StoreOptions(FrozenMapping[object]):
    """The options in the configuration for a user's own store class."""

    __slots__ = ()

    def __repr__(self) -> str:
        # Only the names are shown, because the values may be secrets.
        return f"<{', '.join(self)}>"


NO_OPTIONS = StoreOptions()


class Options(Kind):
    """`StoreOptions`: values of any type, by name. References in texts are expanded.

    References in nested lists and mappings are not expanded.
    """

    description = "a mapping from names to values"

    @override
    def read(self, value: object, context: Context) -> StoreOptions:
        if value is None:
            return NO_OPTIONS
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise self.mismatch(value)
        plain = {name: without_lines(each) for name, each in value.items()}
        return StoreOptions(
            {
                name: references.expand(each, context) if isinstance(each, str) else each
                for name, each in plain.items()
            }
        )


def _items(value: object) -> list[object]:
    """Convert one value or a list of values to a list; None to an empty list."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _as_number(digits: str) -> int | float | str:
    for convert in (int, float):
        with suppress(ValueError):
            return convert(digits)
    return digits

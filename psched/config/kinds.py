"""The kinds of value that a setting can have, and how a value of each kind is read and checked.

Each kind has one description, which its error texts and the documentation use.
"""

import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_type_hints

from typing_extensions import override

from psched.base.file_rights import refusal_of_file
from psched.base.quantities import QUANTITIES
from psched.base.texts import HOST_NAME
from psched.config import references
from psched.config.problems import InvalidPartsError, InvalidValueError, Problem
from psched.config.references import Context

V = TypeVar("V")

_LARGEST = 10**9
"""The default upper bound of a `Number`. In seconds, it is more than thirty years. A larger number
is refused, because it is probably a mistake, and can be too large for a timer."""


class RawValue(NamedTuple):
    """A value as the user wrote it, and the line number of its key (None if there is no file)."""

    value: object
    line: int | None = None


def without_lines(value: object) -> object:
    """Return a value with every `RawValue` in it replaced by the plain value."""
    if isinstance(value, RawValue):
        value = value.value
    if isinstance(value, Mapping):
        return {name: without_lines(each) for name, each in value.items()}
    return value


def read_parts(
    value: Mapping[Any, object], read: Callable[[object, object], tuple[str, V]]
) -> dict[str, V]:
    """Read each part of a mapping; one `InvalidPartsError` names all that cannot be used.

    ``read`` gets the name and the value of a part, and returns those that belong into the result.
    """
    invalid: list[Problem] = []
    found: dict[str, V] = {}
    for name, given in value.items():
        raw = given if isinstance(given, RawValue) else RawValue(given)
        try:
            key, part = read(name, raw.value)
        except InvalidPartsError as error:
            invalid += (
                each._replace(path=(name, *each.path), line=each.line or raw.line)
                for each in error.parts
            )
        except InvalidValueError as error:
            invalid.append(Problem(str(error), line=raw.line, path=(name,)))
        else:
            found[key] = part
    if invalid:
        raise InvalidPartsError(invalid)
    return found


class Kind(ABC):
    """Base class of all kinds of value that a setting can have."""

    @property
    @abstractmethod
    def description(self) -> str:
        """A phrase that says which values are valid. Error texts put it after "must be"."""

    @abstractmethod
    def read(self, value: object, context: Context) -> object:
        """Check a value as the user wrote it, and return it in the form that psched uses."""

    def text(self, value: object, context: Context, *, encode: range = range(0)) -> str:
        """Return the text of a value, with its references expanded."""
        if isinstance(value, PurePath):
            value = str(value)
        if not isinstance(value, str):
            is_scalar = value is not None and not isinstance(value, Mapping | list | tuple)
            raise self.mismatch(value, "; put text in quotes" if is_scalar else "")
        expanded = references.expand(value, context, encode=encode)
        if not expanded:
            raise InvalidValueError(f"is empty; it must be {self.description}")
        if not expanded.isprintable():
            raise InvalidValueError(
                "holds a line break or another character that cannot be printed"
            )
        return expanded

    def mismatch(self, value: object, fix: str = "") -> InvalidValueError:
        """Return an error: which values are valid, of which type ``value`` is, and the fix."""
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
        return InvalidValueError(f"must be {self.description}, not {found}{fix}")


def kinds_of(record: type) -> dict[str, Kind]:
    """The kind of each field of a record, whose annotations are ``Annotated[TYPE, KIND, …]``."""
    hints = get_type_hints(record, include_extras=True)
    return {name: get_args(hint)[1] for name, hint in hints.items()}


class Number(Kind):
    """A number within bounds.

    A number of seconds or bytes can be written as a text with a unit, such as ``5m`` or ``16M``;
    a number of seconds can also be a `timedelta`. The bounds apply to the converted number. The
    ``unit`` is a plural noun, or empty. ``above`` is a lower bound that is itself refused, in place
    of ``least``. ``auto`` returns the number that replaces the word auto.
    """

    def __init__(
        self,
        *,
        unit: str = "seconds",
        whole: bool = False,
        least: float = 0,
        above: float | None = None,
        most: float = _LARGEST,
        auto: Callable[[], int] | None = None,
    ) -> None:
        self.unit = unit
        self.whole = whole
        self.least = least
        self.above = above
        self.most = most
        self.auto = auto

    @property
    @override
    def description(self) -> str:
        counted = f" of {self.unit}" if self.unit else ""
        number = f"a {'whole ' if self.whole else ''}number{counted}"
        if self.above is not None:
            bounded = f"{number} above {self.above:.15g} and up to {self.most:.15g}"
        else:
            bounded = f"{number} from {self.least:.15g} to {self.most:.15g}"
        quantity = QUANTITIES.get(self.unit)
        if quantity is not None:
            bounded += f" (or with a unit: {quantity.forms})"
        return f"{bounded}, or auto" if self.auto is not None else bounded

    @override
    def read(self, value: object, context: Context) -> int | float:
        # A text with a reference is converted to a number, because environment variables and files
        # contain only text. Any other text without a unit is refused, even if it consists of
        # digits.
        if isinstance(value, str) and references.occur_in(value):
            value = _as_number(references.expand(value, context))
        if value == "auto" and self.auto is not None:
            return self.auto()
        if self.unit in QUANTITIES:
            value = QUANTITIES[self.unit].convert(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.mismatch(value)
        if not self._is_within(value) or (self.whole and value != int(value)):
            raise InvalidValueError(f"must be {self.description}")
        return int(value) if self.whole else float(value)

    def _is_within(self, value: float) -> bool:
        # NaN needs no check of its own: it is refused, because every comparison with NaN is false.
        if self.above is not None:
            return self.above < value <= self.most
        return self.least <= value <= self.most


class Choice(Kind):
    """One of a few words. YAML reads the words on and off as true and false, so these mean them.

    The error for a word that was removed recommends the first of ``words`` instead.
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
        if isinstance(value, bool) and {"on", "off"} & {*self.words}:
            value = "on" if value else "off"
        word = self.text(value, context)
        if word in self._removed:
            raise InvalidValueError(
                f"{word} was removed; set it to {self.words[0]}, or delete the line"
            )
        if word not in self.words:
            raise InvalidValueError(f"must be {self.description}")
        return word


class Text(Kind):
    """A text. ``convert`` makes the value of it, or returns None if it is refused."""

    description = ""  # overrides the abstract property; __init__ sets the real description

    def __init__(
        self,
        description: str,
        convert: Callable[[str, Context], object] = lambda text, _context: text,
    ) -> None:
        self.description = description
        self._convert = convert

    @override
    def read(self, value: object, context: Context) -> Any:
        found = self._convert(self.text(value, context), context)
        if found is None:
            raise InvalidValueError(f"must be {self.description}")
        return found


class MatchingText(Text):
    """A text that matches a pattern as a whole."""

    def __init__(self, description: str, pattern: re.Pattern[str]) -> None:
        super().__init__(
            description, lambda text, _context: text if pattern.fullmatch(text) else None
        )


class Texts(Text):
    """A text, or a list of texts."""

    @override
    def read(self, value: object, context: Context) -> tuple[Any, ...]:
        if value is None:
            return ()
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(super(Texts, self).read(item, context) for item in items)


def names(what: str) -> Texts:
    """A list of names; ``what`` has them, for example ``a type``."""
    return Texts(f"the name of {what}, or a list of such")


def _module(text: str, context: Context) -> str:
    """The name of a module; or the absolute path of a file, if it contains a slash or ``.py``."""
    is_path = "/" in text or text.endswith(".py")
    return f"{context.absolute(text.removesuffix('.py'))}.py" if is_path else text


def _module_name(text: str, _context: Context) -> str | None:
    is_name = all(map(str.isidentifier, text.split("."))) and not text.endswith(".py")
    return text if is_name else None


def _zone_name(text: str, _context: Context) -> str | None:
    from psched.triggers.zone import zone_names  # noqa: PLC0415  # most configurations name no zone

    return text if text in zone_names() else None


def _field_name(text: str, _context: Context) -> str | None:
    # Several names in one text are a mistake: nothing would be hidden.
    name = text.strip()
    return None if not name or set(name) & set(",;:=\"'[]{}") else name


class _HostLabels(Texts):
    """A list of names of hosts that is not too long."""

    @override
    def read(self, value: object, context: Context) -> tuple[Any, ...]:
        labels = super().read(value, context)
        if len(labels) > MOST_HOST_LABELS:
            raise InvalidValueError(f"must be at most {MOST_HOST_LABELS} labels")
        return labels


def _host_name(text: str, _context: Context) -> str | None:
    return text.lower() if HOST_NAME.fullmatch(text.lower()) else None


MOST_HOST_LABELS = 6
"""With two lanes of its name, they are the most lanes of a host, see `psched.core.hosts`."""

_A_HOST = "letters, digits, dots, hyphens and underscores, at most 63"
HOST = Text(f"the name of a host: {_A_HOST}", _host_name)
HOST_LABELS = _HostLabels(f"a label of hosts, or a list of such: {_A_HOST}", _host_name)
SECRET = Text("a text")
ZONE_NAME = Text("the name of a timezone, such as UTC or Europe/Berlin", _zone_name)
# Paths are made absolute, because a daemon changes its current folder.
FILE = Text("the path of a file", lambda text, context: context.absolute(text))
FOLDERS = Texts(
    "the path of a folder, or a list of such",
    lambda text, context: str(context.absolute(text)),  # a text, as `sys.path` requires
)
MODULES = Texts("the name of a module or the path of a Python file, or a list of such", _module)
MODULE_NAMES = Texts(
    "the name of a module, such as myapp.triggers, or a list of such", _module_name
)
FIELD_NAMES = Texts(
    "the name of a field, in which * stands for any characters, or a list of such, as in"
    ' [password, "*token*"]',
    _field_name,
)


class AllOrSome(Kind):
    """All of something (on), none (off), or those in a list.

    A boolean is accepted, because YAML reads ``on`` as true and ``off`` as false.
    """

    noun = ""
    all: object = True
    none: object = False

    @override
    def read(self, value: object, context: Context) -> Any:
        if isinstance(value, str):
            word = self.text(value, context)
            if word not in ("on", "off"):
                raise InvalidValueError(
                    f"must be {self.description}; one {self.noun} is a list, too"
                )
            value = word == "on"
        if isinstance(value, bool):
            return self.all if value else self.none
        if not isinstance(value, list | tuple):
            raise self.mismatch(value)
        return tuple(self.item(each, context) for each in value)

    @abstractmethod
    def item(self, value: object, context: Context) -> object:
        """Check an item of a list."""


class Programs(AllOrSome):
    """The programs that tasks are allowed to run."""

    description = "on, off or a list of programs"
    noun = "program"

    @override
    def read(self, value: object, context: Context) -> bool | tuple[str, ...]:
        found: bool | tuple[str, ...] = super().read(value, context)
        if found == ():
            raise InvalidValueError("is an empty list; write off")
        return found

    @override
    def item(self, value: object, context: Context) -> str:
        # A program with a slash is a path, which is made absolute. A name without a slash is left
        # unchanged, because the program is searched for in $PATH when a task runs it.
        program = self.text(value, context)
        return str(context.absolute(program)) if "/" in program else program


class Flag(Kind):
    """True or false."""

    description = "true or false"

    @override
    def read(self, value: object, context: Context) -> bool:
        # The text of a reference is accepted too, as in create_table: ${CREATE_TABLE}.
        words = {"true": True, "false": False}
        found = words.get(self.text(value, context)) if isinstance(value, str) else value
        if not isinstance(found, bool):
            raise InvalidValueError(f"must be {self.description}")
        return found


class Command(Kind):
    """A program and its arguments; the program's path is made absolute.

    A ``script``, a Python file, is always a path. For other programs, a name without a slash is
    left unchanged, and is searched for in $PATH when it is run.
    """

    def __init__(self, *, script: bool = False) -> None:
        self.script = script

    @property
    @override
    def description(self) -> str:
        what = "a .py file" if self.script else "a program"
        return f"the path of {what}, or a list of that and of its arguments"

    @override
    def read(self, value: object, context: Context) -> tuple[str, ...]:
        items = [] if value is None else value
        if not isinstance(items, list | tuple):
            items = [items]
        if not items:
            raise InvalidValueError(f"must be {self.description}, not an empty list")
        program = self.text(items[0], context)
        if self.script or "/" in program:
            program = str(context.absolute(program))
        for item in items[1:]:
            if not isinstance(item, str):
                raise InvalidValueError(f"must be {self.description}; put each argument in quotes")
        # The arguments are not checked by `text`, which would refuse empty and unprintable ones,
        # because some programs accept such arguments.
        arguments = (references.expand(str(item), context) for item in items[1:])
        return (program, *arguments)


_CREDENTIALS = "${CREDENTIALS_DIRECTORY}"


class InputFile(Kind):
    """The path of a file that psched can read. A relative path is made absolute.

    In a value of this kind, ``${CREDENTIALS_DIRECTORY}/NAME`` means the path of the file ``NAME``.
    In values of all other kinds, it is replaced by the content of that file.

    A file is refused if every user of the host is allowed to change it; a ``private`` one, which
    contains a secret, also if they are allowed to read it. One that only the service needs is not
    ``needed`` now, so that other users can still use the configuration.
    """

    def __init__(self, *, private: bool = False, needed: bool = True) -> None:
        self._private = private
        self._needed = needed

    description = "the path of a file"

    @override
    def read(self, value: object, context: Context) -> Path:
        folder = Path()
        if isinstance(value, str) and value.startswith(f"{_CREDENTIALS}/") and not context.literal:
            folder /= self.text(_CREDENTIALS, context)
            value = value.removeprefix(f"{_CREDENTIALS}/")
        file = context.absolute(folder / self.text(value, context))
        if self._needed:
            _content(file, private=self._private)
        return file


def read_password(file: Path) -> str:
    """Return the password in a file, which must contain exactly one line."""
    try:
        line = _content(file, private=True).decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise InvalidValueError("is not UTF-8 text") from None
    if not line:
        raise InvalidValueError("is empty; it must hold the password and nothing else")
    if not line.isprintable():
        raise InvalidValueError(
            "holds a second line, or a character that cannot be printed; it must hold the password"
            " and nothing else"
        )
    return line


def _content(file: Path, *, private: bool) -> bytes:
    try:
        # O_NONBLOCK is set, because otherwise opening a FIFO would wait until it has a writer.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InvalidValueError("is not a regular file")
        with os.fdopen(descriptor, "rb") as opened:
            mode = os.fstat(descriptor).st_mode
            if private and mode & (stat.S_IROTH | stat.S_IWOTH):
                raise InvalidValueError(
                    "may be read or changed by everybody on this host; run `chmod o= FILE` on it"
                )
            if reason := refusal_of_file(file, owner=False):
                raise InvalidValueError(reason)
            return opened.read()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no path"
        raise InvalidValueError(f"cannot be read: {reason}") from None


Network = IPv4Network | IPv6Network

EVERYWHERE: tuple[Network, ...] = (ip_network("0.0.0.0/0"), ip_network("::/0"))
"""The networks that contain every address."""


class Networks(AllOrSome):
    """Networks that requests may be sent to."""

    description = "on, off or a list of networks such as 10.1.0.0/16"
    noun = "network"
    all = EVERYWHERE
    none = ()

    @override
    def item(self, value: object, context: Context) -> Network:
        if isinstance(value, IPv4Network | IPv6Network):
            return value
        try:
            return ip_network(self.text(value, context))
        except ValueError:
            raise InvalidValueError(
                f"must be {self.description}; the bits after the prefix of a network are zero"
            ) from None


class FrozenMapping(Mapping[str, V]):
    """An immutable and hashable mapping."""

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


M = TypeVar("M", bound=FrozenMapping[Any])


class Parts(Kind, Generic[M]):
    """A mapping whose parts are read one by one, into an immutable mapping."""

    empty: M
    """What null means. Its class is that of all values."""

    @override
    def read(self, value: object, context: Context) -> M:
        if value is None:
            return self.empty
        if isinstance(value, type(self.empty)):
            return value
        if not isinstance(value, Mapping):
            raise self.mismatch(value)
        return type(self.empty)(read_parts(value, partial(self.part, context)))

    @abstractmethod
    def part(self, context: Context, name: object, value: object) -> tuple[str, Any]:
        """Read a part: return the name and the value that belong into the result."""


class StoreOptions(FrozenMapping[object]):
    """The options that the configuration gives to a user's own store class."""

    __slots__ = ()

    def __repr__(self) -> str:
        # Only the names of the options are shown, because their values can be secrets.
        return f"<{', '.join(self)}>"


NO_OPTIONS = StoreOptions()


class Options(Kind):
    """A mapping from names to values of any type, which `read` converts to `StoreOptions`.

    References are expanded only in values that are text, not in nested lists and mappings.
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


class Types(FrozenMapping[Mapping[str, Any]]):
    """For the name of each type of task: the settings that override those of the installation."""

    __slots__ = ()

    def __init__(self, by_type: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> None:
        super().__init__({name: MappingProxyType(dict(own)) for name, own in by_type.items()})

    def __repr__(self) -> str:
        return repr({name: dict(own) for name, own in self.items()})


NO_TYPES = Types()


class PerType(Parts[Types]):
    """A mapping from types of task to mappings of settings, whose kinds ``kinds`` returns."""

    description = "a mapping from types to their own settings"
    empty = NO_TYPES

    def __init__(self, kinds: Callable[[], Mapping[str, Kind]]) -> None:
        self.kinds = kinds

    @override
    def part(self, context: Context, name: object, value: object) -> tuple[str, Any]:
        if not (isinstance(name, str) and name.isprintable() and name.strip() == name != ""):
            raise InvalidValueError("must be the name of a type")
        if not isinstance(value, Mapping):
            raise InvalidValueError("must be a mapping of settings")
        return name, read_parts(value, partial(self._setting, context))

    def _setting(self, context: Context, name: object, value: object) -> tuple[str, Any]:
        kinds = self.kinds()
        if name not in kinds:
            from difflib import get_close_matches  # noqa: PLC0415  # only for this error

            near = get_close_matches(str(name), kinds, 1)
            hint = f"did you mean {near[0]}?" if near else f"these are {', '.join(kinds)}"
            raise InvalidValueError(f"is not a setting of a type; {hint}")
        return str(name), kinds[str(name)].read(value, context)


def _as_number(digits: str) -> int | float | str:
    for convert in (int, float):
        with suppress(ValueError):
            return convert(digits)
    return digits

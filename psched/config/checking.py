"""Values are read, judged beside each other, and all that is wrong is told at once."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from psched.config.kinds import Kind
from psched.config.problems import InvalidPartsError, InvalidValueError, Problem, failure
from psched.config.references import Context
from psched.config.rules import combine

_ALIASES = {"sslca": "ssl_ca"}
"""Words of PerfectQueue's for settings."""


class Setting(NamedTuple):
    """What psched knows of one setting.

    Attributes:
        name: its key in a file.
        kind: what its values are, and how they are read.
        help: one line for an administrator.
        default: None if it has none, or one that depends on others or on the host.
        optional: whether null is a value.
    """

    name: str
    kind: Kind
    help: str
    default: object
    optional: bool


class RawValue(NamedTuple):
    """A value as somebody wrote it, and the line of its key if that was in a file."""

    value: object
    line: int | None = None


def check(
    settings: Mapping[str, Setting],
    given: Mapping[str, RawValue],
    around: Context,
    *,
    start: Mapping[str, Any] | None,
    origin: Path | None,
    problems: Iterable[Problem],
) -> dict[str, Any]:
    """The values of all settings.

    Args:
        settings: all there are, by name.
        given: see `settings.check`, as for the others.
        around: where references and relative paths lead.
        start: the values of all settings that are not given.
        origin: the file that was read.
        problems: what is known to be wrong with that file.

    Raises:
        ConfigError: there are problems; it tells all of them.
    """
    found = list(problems)
    given = _by_their_names(given, found)
    values = dict(start or {name: setting.default for name, setting in settings.items()})
    for name, (value, line) in given.items():
        with _noting(found, name, line):
            values[name] = _read(settings, name, value, around)
    refused = {problem.key for problem in found if problem.key is not None}
    for name, text in combine(values, around, given=given.keys(), refused=refused, before=start):
        found.append(Problem(text, name, _line(given, name)))
    if found:
        raise failure(found, origin)
    return values


def _by_their_names(given: Mapping[str, RawValue], found: list[Problem]) -> Mapping[str, RawValue]:
    named = dict(given)
    for alias, name in _ALIASES.items():
        if alias in named:
            each = named.pop(alias)
            if name in given:
                found.append(Problem(f"is another word for {name}; use that", alias, each.line))
            named.setdefault(name, each)
    return named


@contextmanager
def _noting(found: list[Problem], key: str, line: int | None = None) -> Iterator[None]:
    try:
        yield
    except InvalidPartsError as refusal:
        found += (Problem(p.text, key, p.line or line, p.path) for p in refusal.parts)
    except InvalidValueError as refusal:
        found.append(Problem(str(refusal), key, line))


def _read(settings: Mapping[str, Setting], name: str, value: object, around: Context) -> object:
    setting = settings.get(name)
    if setting is None:
        raise InvalidValueError(_unknown(settings, name, value))
    if value is None and setting.optional:
        return None
    return setting.kind.read(value, around)


def _unknown(settings: Iterable[str], name: str, value: object) -> str:
    if isinstance(value, Mapping):
        return "unknown setting; sections can only stand at the top of a file"
    if near := get_close_matches(name, settings, 1):
        return f"unknown setting; did you mean {near[0]}?"
    return "unknown setting; see etc/psched.yml for those there are"


def _line(given: Mapping[str, RawValue], name: str) -> int | None:
    return given[name].line if name in given else None

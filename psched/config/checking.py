"""Checks settings: reads each value, applies the rules between settings, reports all problems."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from psched.config.kinds import Kind, RawValue
from psched.config.problems import InvalidPartsError, InvalidValueError, Problem, config_error
from psched.config.references import Context
from psched.config.rules import apply_rules

_ALIASES = {"sslca": "ssl_ca"}
"""Names of settings in PerfectQueue, each with the name of the same setting in psched."""


_IGNORED = frozenset({"max_acquire"})
"""Settings of PerfectSched without effect: a worker takes as many rows as it has free slots."""


class Setting(NamedTuple):
    """One setting, as `psched.config.settings` declares it.

    Attributes:
        kind: the kind of value that the setting accepts; its method `Kind.read` checks a value.
        default: the default value; None if the setting has no default, or if the default depends on
            other settings or on the host.
        optional: whether null is a valid value of the setting.
        per_schedule: whether a type of task, and a schedule, can have a value of its own.
    """

    kind: Kind
    default: object
    optional: bool
    per_schedule: bool


def check_values(
    settings: Mapping[str, Setting],
    given: Mapping[str, RawValue],
    context: Context,
    *,
    start: Mapping[str, Any] | None,
    origin: Path | None,
    problems: Iterable[Problem],
) -> dict[str, Any]:
    """Read the given values, and return the values of all settings."""
    found = list(problems)
    given = _without_aliases(given, found)
    values = dict(start or {name: setting.default for name, setting in settings.items()})
    for name, (value, line) in given.items():
        with _collecting(found, name, line):
            values[name] = _read(settings, name, value, context)
    invalid = {problem.key for problem in found if problem.key is not None}
    for name, text in apply_rules(
        values, context, given=given.keys(), invalid=invalid, before=start
    ):
        found.append(Problem(text, name, given[name].line if name in given else None))
    if found:
        raise config_error(found, origin)
    return values


def _without_aliases(given: Mapping[str, RawValue], found: list[Problem]) -> Mapping[str, RawValue]:
    renamed = {name: each for name, each in given.items() if name not in _IGNORED}
    for alias, name in _ALIASES.items():
        if alias in renamed:
            each = renamed.pop(alias)
            if name in given:
                found.append(Problem(f"is an alias of {name}; use that alone", alias, each.line))
            renamed.setdefault(name, each)
    return renamed


@contextmanager
def _collecting(found: list[Problem], key: str, line: int | None = None) -> Iterator[None]:
    try:
        yield
    except InvalidPartsError as error:
        found += (Problem(p.text, key, p.line or line, p.path) for p in error.parts)
    except InvalidValueError as error:
        found.append(Problem(str(error), key, line))


def _read(settings: Mapping[str, Setting], name: str, value: object, context: Context) -> object:
    setting = settings.get(name)
    if setting is None:
        raise InvalidValueError(_unknown(settings, name, value))
    if value is None and setting.optional:
        return None
    return setting.kind.read(value, context)


def _unknown(settings: Iterable[str], name: str, value: object) -> str:
    if isinstance(value, Mapping):
        return "unknown setting; sections can only stand at the top of a file"
    if near := get_close_matches(name, settings, 1):
        return f"unknown setting; did you mean {near[0]}?"
    return "unknown setting; see psched.yml.example for those there are"

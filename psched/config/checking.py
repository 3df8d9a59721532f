"""Checking settings: values are read, then compared; all problems are reported at once."""

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
"""PerfectQueue's names of settings."""


class Setting(NamedTuple):
    """One setting, as `psched.config.settings` declares it.

    Attributes:
        kind: what its values are, and how they are read.
        default: None if there is none, or if it depends on other settings or on the host.
        optional: whether null is a value.
    """

    kind: Kind
    default: object
    optional: bool


def check_values(
    settings: Mapping[str, Setting],
    given: Mapping[str, RawValue],
    context: Context,
    *,
    start: Mapping[str, Any] | None,
    origin: Path | None,
    problems: Iterable[Problem],
) -> dict[str, Any]:
    """The values of all settings.

    Args:
        settings: every setting, by name.
        given: the values that were written, by the names of their settings.
        context: what references and relative paths refer to.
        start: the values of all other settings; None: the defaults.
        origin: the file that was read, if any.
        problems: those already found in that file.

    Raises:
        ConfigError: there are problems; it lists all of them.
    """
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
    renamed = dict(given)
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
    return "unknown setting; see etc/psched.yml for those there are"

"""Checks settings: reads each value, applies the rules between settings, reports all problems."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from psched.config import references, urls
from psched.config.kinds import RawValue
from psched.config.monitoring import secret_parts
from psched.config.problems import InvalidPartsError, InvalidValueError, Problem, config_error
from psched.config.references import Context
from psched.config.rules import apply_rules
from psched.config.settings import SETTINGS, Config

_ALIASES = {"sslca": "ssl_ca"}
"""Names of settings in PerfectQueue, each with the name of the same setting in psched."""


_IGNORED = frozenset({"max_acquire"})
"""Settings of PerfectSched without effect: a worker takes as many rows as it has free slots."""


def _variables(value: object) -> set[str]:
    """Return the names of the environment variables that an unexpanded value refers to."""
    if isinstance(value, Mapping):
        return set[str]().union(*map(_variables, value.values()))
    if isinstance(value, RawValue):
        return _variables(value.value)
    return {*references.variables(value).values()} if isinstance(value, str) else set()


_SECRETS: Mapping[str, Callable[[Any], set[str]]] = {
    "url": lambda value: urls.secret_variables(value) if isinstance(value, str) else set(),
    "password": _variables,
    "store": _variables,
    "hooks": lambda value: set[str]().union(*map(_variables, secret_parts(value))),
    "pings": _variables,
}
"""For each setting whose value can contain a secret: a function that takes the unexpanded value and
returns the names of the environment variables that can contain the secret. Settings that are paths
of files with private keys or passwords are not listed, because a path is not secret."""


def check(
    given: Mapping[str, RawValue],
    context: Context,
    *,
    start: Mapping[str, Any] | None = None,
    origin: Path | None = None,
    problems: Iterable[Problem] = (),
) -> Config:
    """Check values, and return them as a `Config`."""
    found = list(problems)
    plain = _without_aliases(given, found)
    values = dict(start or {name: setting.default for name, setting in SETTINGS.items()})
    for name, (value, line) in plain.items():
        with _collecting(found, name, line):
            values[name] = _read(name, value, context)
    invalid = {problem.key for problem in found if problem.key is not None}
    for name, text in apply_rules(
        values, context, given=plain.keys(), invalid=invalid, before=start
    ):
        found.append(Problem(text, name, plain[name].line if name in plain else None))
    if found:
        raise config_error(found, origin)
    withheld = frozenset[str]().union(
        *(_SECRETS[name](each.value) for name, each in given.items() if name in _SECRETS)
    )
    default = start is None and "url" not in given and values["url"].startswith("sqlite")
    return Config(origin=origin, withheld=withheld, url_is_default=default, **values)


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
        found += (each._replace(key=key, line=each.line or line) for each in error.parts)
    except InvalidValueError as error:
        found.append(Problem(str(error), key, line))


def _read(name: str, value: object, context: Context) -> object:
    setting = SETTINGS.get(name)
    if setting is None:
        raise InvalidValueError(_unknown(name, value))
    if value is None and setting.optional:
        return None
    return setting.kind.read(value, context)


def _unknown(name: str, value: object) -> str:
    if isinstance(value, Mapping):
        return "unknown setting; sections can only stand at the top of a file"
    if near := get_close_matches(name, SETTINGS, 1):
        return f"unknown setting; did you mean {near[0]}?"
    return "unknown setting; see psched.yml.example for those there are"

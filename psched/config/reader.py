"""Reads settings from a section of a file, from a file without sections, or from a mapping.

`check` reads each value, applies the rules between settings, and reports all problems in one error.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from psched.base.file_rights import refusal_of_file
from psched.config import references, urls
from psched.config.kinds import RawValue, without_lines
from psched.config.monitoring import secret_parts
from psched.config.problems import (
    InvalidPartsError,
    InvalidValueError,
    Problem,
    config_error,
    safe_name,
)
from psched.config.references import Context
from psched.config.rules import apply_rules
from psched.config.settings import SETTINGS, Config

_USUAL_PLACES = ("config/psched.yml", "config/perfectsched.yml", "/etc/psched/psched.yml")

_ALIASES = {"sslca": "ssl_ca"}
"""Names of settings in PerfectQueue, each with the name of the same setting in psched."""


_IGNORED = frozenset({"max_acquire"})
"""Settings of PerfectSched without effect: a worker takes as many rows as it has free slots."""


Files = str | Path | tuple[str | Path, ...]
"""The path of a configuration file, or those of several files."""


def load(
    path: Files | None = None,
    environment: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> Config:
    """Read the settings from a configuration file, or from several."""
    context = _context(environ, cwd)
    each = path if isinstance(path, tuple) else (path,)
    if sources := [source for one in each if (source := _find(one, context)) is not None]:
        return _from_files(sources, environment, context)
    if environment is not None:
        raise config_error([_without_sections(environment, "there is no configuration file")])
    return check({}, context)


def from_mapping(
    mapping: Mapping[str, object],
    *,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> Config:
    """Read the settings from a mapping in the form of a file without sections."""
    if not isinstance(mapping, Mapping):
        raise config_error([Problem(f"settings must be a mapping, not a {type(mapping).__name__}")])
    given = {str(key): RawValue(value) for key, value in mapping.items()}
    return check(given, _context(environ, cwd))


def read_raw(path: Files, environment: str | None = None) -> dict[str, object]:
    """Return the settings as they are written in a file. No value is checked or expanded."""
    raw: dict[str, object] = {}
    for each in path if isinstance(path, tuple) else (path,):
        source = _Source(Path(each), "asked for by name")
        _, chosen = _settings_in(source, environment, os.environ)
        raw |= {name: without_lines(value) for name, value in chosen.items()}
    return raw


def raw_settings(settings: Config, environment: str | None = None) -> dict[str, object]:
    """The settings as written in the file that ``settings`` were read from; empty without one."""
    return {} if settings.origin is None else read_raw(settings.origin, environment)


class _Source(NamedTuple):
    path: Path
    reason: str


def _context(environ: Mapping[str, str], cwd: Path | None) -> Context:
    return Context(environ, cwd and cwd.absolute())


def _find(path: str | Path | None, context: Context) -> _Source | None:
    from_environ = context.environ.get("PSCHED_CONFIG")
    if path is not None or from_environ:
        reason = "named by PSCHED_CONFIG" if path is None else "asked for by name"
        try:
            return _Source(context.absolute(path or from_environ or ""), reason)
        except InvalidValueError as error:
            raise config_error([Problem(f"{error} ({reason})")]) from None
    for place in _USUAL_PLACES:
        with suppress(InvalidValueError):
            if _exists(found := context.absolute(place)):
                return _Source(found, "found in a usual place")
    return None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:
        # If the user is not allowed to search the folder, the file counts as missing. An example is
        # ``su psched``, after which /root can still be the current folder.
        return False


def _from_files(sources: Sequence[_Source], environment: str | None, context: Context) -> Config:
    origin = sources[-1].path
    if len(sources) == 1:
        problems, chosen = _settings_in(sources[0], environment, context.environ)
        return check(chosen, context, origin=origin, problems=problems)
    merged: dict[str, RawValue] = {}
    for source in sources:
        problems, chosen = _settings_in(source, environment, context.environ)
        if problems:
            raise config_error(problems, source.path)
        # A line number would not tell of which file it is.
        merged |= {name: each._replace(line=None) for name, each in chosen.items()}
    return replace(check(merged, context), origin=origin)


def _settings_in(
    source: _Source, environment: str | None, environ: Mapping[str, str]
) -> tuple[list[Problem], Mapping[str, RawValue]]:
    content = _content(source)
    # PyYAML is imported only here, if there is a file to read, because the import takes time.
    from psched.config.document import parse  # noqa: PLC0415

    document = parse(content, source.path)
    chosen = _section(document.given, environment, environ)
    if isinstance(chosen, Problem):
        raise config_error([*document.problems, chosen], source.path)
    return document.problems, chosen


def _content(source: _Source) -> str:
    try:
        content = source.path.read_text(encoding="utf-8-sig")
        # Examined afterwards, so that nobody can have replaced what was read by something else.
        if (refusal := refusal_of_file(source.path)) is None:
            return content
        text = f"is refused, because whoever may write it can run code: {refusal}"
    except OSError as error:
        text = f"cannot be read: {error.strerror} ({source.reason})"
    except UnicodeDecodeError:
        text = "not UTF-8 text"
    # The error is raised outside the handlers, so that Python's error is not chained to it, because
    # a UnicodeDecodeError contains the whole content of the file, and with it any password.
    raise config_error([Problem(text)], source.path)


def _section(
    given: Mapping[str, RawValue], asked: str | None, environ: Mapping[str, str]
) -> Mapping[str, RawValue] | Problem:
    """The settings that apply: of a section, or of a file without sections; or what is wrong."""
    sections = {key: each for key, each in given.items() if _may_be_section(key, each.value)}
    others = {key: each for key, each in given.items() if key not in sections}
    if sections and not others:
        named = asked or environ.get("PSCHED_ENV") or environ.get("RAILS_ENV")
        return _choose(sections, named or "development")
    if any(each.value is not None for each in sections.values()):
        return _mixture(sections, others)
    if asked is not None:
        return _without_sections(asked, "this file has no sections")
    return given


def _may_be_section(key: str, value: object) -> bool:
    return key not in SETTINGS and (value is None or isinstance(value, Mapping))


def _choose(sections: Mapping[str, RawValue], environment: str) -> Mapping[str, RawValue] | Problem:
    if environment not in sections:
        there_are = ", ".join(safe_name(key) for key in sections)
        return Problem(f"no section for the environment {environment}; there are {there_are}")
    settings = sections[environment].value
    return settings if isinstance(settings, Mapping) else {}


def _mixture(sections: Mapping[str, RawValue], others: Mapping[str, RawValue]) -> Problem:
    """The problem of a file that mixes settings and sections; the rarer kind is the mistake."""
    key, each = next(iter(min(others, sections, key=len).items()))
    return Problem(
        f"a file has either settings or sections at its top; put {safe_name(next(iter(others)))} "
        f"into a section, or take the settings out of {safe_name(next(iter(sections)))}",
        key,
        each.line,
    )


def _without_sections(environment: str, reason: str) -> Problem:
    return Problem(f"the environment {environment} was asked for, but {reason}")


# --- checking -------------------------------------------------------------------------------


def _variables(value: object) -> set[str]:
    """Return the names of the environment variables that an unexpanded value refers to."""
    if isinstance(value, Mapping):
        return set[str]().union(*map(_variables, value.values()))
    if isinstance(value, RawValue):
        return _variables(value.value)
    return {*references.variables(value).values()} if isinstance(value, str) else set()


def _url_variables(value: object) -> set[str]:
    return urls.secret_variables(value) if isinstance(value, str) else set()


_SECRETS: Mapping[str, Callable[[Any], set[str]]] = {
    "url": _url_variables,
    "read_url": _url_variables,
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
    from difflib import get_close_matches  # noqa: PLC0415  # only for this error

    if near := get_close_matches(name, SETTINGS, 1):
        return f"unknown setting; did you mean {near[0]}?"
    return "unknown setting; see psched.yml.example for those there are"

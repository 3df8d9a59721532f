"""References in the values of settings, which psched replaces by texts from outside the file.

With references, a configuration file need not contain passwords.

==================================  =======================================================
a reference                         is replaced by
==================================  =======================================================
``${NAME}``                         the value of the environment variable ``NAME``
``${CREDENTIALS_DIRECTORY}/NAME``   the content of the file (systemd's ``LoadCredential=``)
``$${``                             a plain ``${``
==================================  =======================================================
"""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from psched.base import withheld
from psched.config.problems import InvalidValueError

_REFERENCE = re.compile(
    r"""
    \$\$\{                        (?P<escape> )
  | \$\{CREDENTIALS_DIRECTORY\}/  (?P<credential> [A-Za-z0-9_.-]+ )
  | \$\{                          (?P<variable> [A-Za-z_][A-Za-z0-9_]* ) \}
  | \$\{                          (?P<broken> )
    """,
    re.VERBOSE,
)


class Context(NamedTuple):
    """The environment variables and the folder that a value may refer to."""

    environ: Mapping[str, str]
    cwd: Path | None  # absolute; None means the current folder
    literal: bool = False  # whether ``${`` is plain text, and begins no reference

    def absolute(self, path: str | Path) -> Path:
        """The absolute path of a file or folder."""
        if Path(path).is_absolute():
            return Path(path)
        try:
            return (self.cwd or current_folder()) / path
        except FileNotFoundError as error:
            raise InvalidValueError(
                f"{path} is relative, but {error.strerror}; change to another folder, or write an"
                " absolute path"
            ) from None


def current_folder() -> Path:
    """The path of the current folder: ``$PWD`` if that names it, else the path without links.

    ``$PWD`` can lead through a link, such as ``app/current``, which leads to another release later.
    """
    named = Path(os.environ.get("PWD", ""))
    with suppress(OSError, ValueError):
        if named.is_absolute() and named.samefile("."):
            return named
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        deleted = str(Path("/proc/self/cwd").readlink()).removesuffix(" (deleted)")
        raise FileNotFoundError(error.errno, f"the current folder {deleted} was deleted") from None


def occur_in(text: str) -> bool:
    """Whether `text` contains a reference, even a malformed or escaped (``$${``) one."""
    return _REFERENCE.search(text) is not None


def variables(text: str) -> dict[int, str]:
    """The environment variables that `text` refers to, by the positions of the references."""
    found = _REFERENCE.finditer(text)
    return {match.start(): match["variable"] for match in found if match["variable"]}


_credentials: set[str] = set()
"""The contents of the files below ``CREDENTIALS_DIRECTORY`` that this process has read."""


_withheld = withheld.VALUES


def withhold(names: Iterable[str]) -> None:
    """Remove variables, so that no program inherits them; references still find their values."""
    for name in names:
        value = os.environ.pop(name, None)
        if value is not None:
            _withheld[name] = value


def values(names: Iterable[str]) -> set[str]:
    """The values of environment variables; those that are not set are left out."""
    found = (_withheld.get(name, os.environ.get(name)) for name in names)
    return {value for value in found if value is not None}


def credentials() -> set[str]:
    """The contents of the files below ``CREDENTIALS_DIRECTORY`` that were read so far."""
    return {*_credentials}


def masked(text: str) -> str:
    """Return `text` with ``x`` for each character of its references; positions stay the same."""
    return _REFERENCE.sub(lambda match: "x" * len(match[0]), text)


def expand(text: str, context: Context, *, encode: range = range(0)) -> str:
    """Return `text` with its references replaced by their values."""
    if context.literal:
        return text

    def resolved(match: re.Match[str]) -> str:
        if match.lastgroup == "escape":
            return "${"
        value = _look_up(match, context.environ)
        return quote(value, safe="") if match.start() in encode else value

    return _REFERENCE.sub(resolved, text)


def _look_up(match: re.Match[str], environ: Mapping[str, str]) -> str:
    if match.lastgroup == "broken":
        raise InvalidValueError("has ${ without a NAME}; write $${ if no reference is meant")
    if match.lastgroup == "credential":
        return _credential(Path(_variable("CREDENTIALS_DIRECTORY", environ), match["credential"]))
    return _variable(match["variable"], environ)


# The functions below raise errors ``from None``, so that Python's Unicode errors are not chained:
# such an error contains the whole text, which can be a secret.


def _variable(name: str, environ: Mapping[str, str]) -> str:
    value = environ.get(name)
    if value is None and environ is os.environ:
        value = _withheld.get(name)
    if value is None:
        raise InvalidValueError(f"refers to the environment variable {name}, which is not set")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidValueError(
            f"refers to the environment variable {name}, which is not UTF-8 text"
        ) from None
    return value


def _credential(file: Path) -> str:
    try:
        content = file.read_text(encoding="utf-8").removesuffix("\n")
    except OSError as error:
        raise InvalidValueError(
            f"refers to {file}, which cannot be read: {error.strerror}"
        ) from None
    except UnicodeDecodeError:
        raise InvalidValueError(f"refers to {file}, which is not UTF-8 text") from None
    _credentials.add(content)
    return content

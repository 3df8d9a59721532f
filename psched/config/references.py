"""References in a value: what must not stand in a file is fetched from outside it.

==================================  ======================================================
``${NAME}``                         the environment variable
``${CREDENTIALS_DIRECTORY}/NAME``   the content of that file (systemd's ``LoadCredential=``)
``$${``                             a plain ``${``
==================================  ======================================================
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

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


@dataclass(frozen=True, slots=True)
class Context:
    """What a value may refer to.

    Attributes:
        environ: the environment variables.
        cwd: the absolute folder that relative paths start from.
        literal: whether values are taken as they are, and ``${`` has no meaning.
    """

    environ: Mapping[str, str]
    cwd: Path
    literal: bool = False


def occur_in(text: str) -> bool:
    """Whether `text` holds a reference."""
    return _REFERENCE.search(text) is not None


def variables(text: str) -> dict[int, str]:
    """The environment variables that `text` refers to, by their positions in it."""
    found = _REFERENCE.finditer(text)
    return {match.start(): match["variable"] for match in found if match["variable"]}


_withheld: dict[str, str] = {}
"""Variables that are not in this process's environment any more, and what they were."""


def withhold(names: Iterable[str]) -> None:
    """Take variables out of this process's environment, which all that it starts is given.

    References to them keep their meaning in this process and in those that are forked from it.
    """
    for name in names:
        value = os.environ.pop(name, None)
        if value is not None:
            _withheld[name] = value


def masked(text: str) -> str:
    """`text` with an ``x`` in place of each character of a reference."""
    return _REFERENCE.sub(lambda match: "x" * len(match[0]), text)


def expand(text: str, around: Context, *, encode: range = range(0)) -> str:
    """`text` with its references replaced by what they stand for.

    Args:
        text: a value as it was written.
        around: where the references lead.
        encode: the positions in `text` at which a reference's value is percent-encoded.

    Raises:
        RefusedError: a reference leads nowhere or cannot be understood.
    """
    if around.literal:
        return text

    def meaning(match: re.Match[str]) -> str:
        if match.lastgroup == "escape":
            return "${"
        value = _look_up(match, around.environ)
        return quote(value, safe="") if match.start() in encode else value

    return _REFERENCE.sub(meaning, text)


def _look_up(match: re.Match[str], environ: Mapping[str, str]) -> str:
    if match.lastgroup == "broken":
        raise InvalidValueError("has ${ without a NAME}; write $${ if no reference is meant")
    if match.lastgroup == "credential":
        return _credential(Path(_variable("CREDENTIALS_DIRECTORY", environ), match["credential"]))
    return _variable(match["variable"], environ)


# The errors of Unicode carry the text: they are not chained to ours.


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
        return file.read_text(encoding="utf-8").removesuffix("\n")
    except OSError as error:
        raise InvalidValueError(
            f"refers to {file}, which cannot be read: {error.strerror}"
        ) from None
    except UnicodeDecodeError:
        raise InvalidValueError(f"refers to {file}, which is not UTF-8 text") from None

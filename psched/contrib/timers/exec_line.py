"""Translates the commands of a service, such as ``ExecStart=``, to a command of type ``exec``.

systemd replaces ``${NAME}`` and ``$NAME`` itself; here a shell does. A shell also reads an
``EnvironmentFile=`` at each run, so that no secret is copied into the schedule.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from psched.base.errors import InvalidError
from psched.contrib.timers.units import Setting

_PIECE = re.compile(r"""(?:[^\s"'\\]|\\.)+|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""")
_WORD = re.compile(rf"(?:{_PIECE.pattern})+")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|[0-7]{3}|.)")
_ESCAPES = dict(zip("abfnrtvs\\\"'", "\a\b\f\n\r\t\v \\\"'", strict=True))
_PREFIXES = "@-:+!"


class Command(NamedTuple):
    """A command: the place of its line, characters such as ``-`` before it, and its words."""

    place: str
    prefix: str
    words: Sequence[str]

    @property
    def has_variables(self) -> bool:
        """Whether systemd replaces variables in it."""
        return ":" not in self.prefix and "$" in "".join(self.words)


def split(text: str) -> Sequence[str]:
    """The words of a value; quotes and escapes stay as they are."""
    if _WORD.sub("", text).strip():
        raise InvalidError("", "a quote or a backslash has no partner")
    return _WORD.findall(text)


def unquoted(word: str) -> str:
    """A word without its quotes and escapes."""
    pieces = (each[1:-1] if each[0] in "\"'" else each for each in _PIECE.findall(word))
    return "".join(_ESCAPE.sub(_unescaped, each) for each in pieces)


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    if len(code) > 1:
        return chr(int(code.lstrip("x"), 16 if code[0] == "x" else 8))
    return _ESCAPES.get(code, found[0])


def commands_of(setting: Setting, expand: Callable[[str], str]) -> Iterator[Command]:
    """Yield the commands of a line; the word ``;`` stands between two of them."""
    words = list[str]()
    for raw in [*split(setting.value), ";"]:
        if raw != ";":
            words.append(";" if raw == r"\;" else expand(unquoted(raw)))
        elif words:
            program = words[0].lstrip(_PREFIXES)
            prefix = words[0].removesuffix(program)
            if not re.match(r"[\w/.]", program):
                raise InvalidError("", f"{words[0]!r} is no program with a prefix of {_PREFIXES}")
            # After @, the second word is the name that the program is told of itself.
            yield Command(setting.place, prefix, [program, *words[1 + ("@" in prefix) :]])
            words = []


def data_of(commands: Sequence[Command], files: Sequence[str]) -> dict[str, Any]:
    """The fields of type ``exec`` that run commands in turn, as long as they succeed."""
    [*_, last] = commands
    if commands == [last] and not files and "-" not in last.prefix and not last.has_variables:
        return {"command": [*last.words]}
    # Exported variables; no file names for * in their values.
    text = "set -af; " if files or any(each.has_variables for each in commands) else ""
    for file in files:
        path = shlex.quote(file.removeprefix("-"))
        text += f"[ ! -e {path} ] || . {path}; " if file[0] == "-" else f". {path}; "
    for command in commands:
        quote = _with_variables if command.has_variables else shlex.quote
        words = " ".join(map(quote, command.words))
        # A program that takes the place of the shell gets the signals of a stop.
        part = (
            f"{{ {words} || :; }}" if "-" in command.prefix else "exec " * (command is last) + words
        )
        text += part if command is last else f"{part} && "
    return {"shell": True, "command": text}


def _with_variables(word: str) -> str:
    """A word for a shell, which replaces the variables that systemd would replace."""
    if re.fullmatch(r"\$\w+", word):
        return word
    parts = filter(None, re.split(r"(\$\{\w+\}|\$\$)", word))
    quoted = (f'"{x}"' if x.startswith("${") else shlex.quote(x.replace("$$", "$")) for x in parts)
    return "".join(quoted) or "''"

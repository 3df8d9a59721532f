"""Reads unit files as systemd.unit(5) and systemd.syntax(7) say, and translates their commands.

systemd replaces ``${NAME}`` and ``$NAME`` in a command itself; here a shell does. A shell also
reads an ``EnvironmentFile=`` at each run, so that no secret is copied into the schedule.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from psched.base.errors import InvalidError
from psched.contrib.crontab.command import content_of

_BASES = ("etc", "run", "usr/local/lib", "usr/lib", "lib")
"""The folders that have ``systemd/system`` and ``systemd/user``, the most important one first."""


class Setting(NamedTuple):
    """A line of a unit file."""

    name: str  # the section and the name, such as Service.User
    value: str  # empty if the line takes back what was set before
    place: str  # the file and the number of the line


class Unit(NamedTuple):
    """A unit: its name (of an instance, such as ``backup@db.timer``), its file, and its lines."""

    name: str
    path: Path
    settings: Sequence[Setting]

    def all(self, *names: str) -> Sequence[Setting]:
        """The settings with these names. An empty value takes back those before it."""
        found = list[Setting]()
        for setting in self.settings:
            if setting.name in names:
                found = [*found, setting] if setting.value else []
        return found

    def last(self, *names: str) -> Setting:
        """The last setting with one of these names; without any, an empty one of the first line."""
        return [Setting(names[0], "", f"{self.path}:1"), *self.all(*names)][-1]


def place_of(folder: Path) -> str:
    """The path of a folder below its root, or a home, if it is one of systemd's; else its name."""
    paths = (f"{base}/systemd/{folder.name}" for base in (*_BASES, ".config", ".local/share"))
    return next((each for each in paths if f"{folder}".endswith(f"/{each}")), folder.name)


def search_path(folder: Path) -> Sequence[Path]:
    """The folders that systemd searches if this is one of them, in order; else only this one."""
    root = f"{folder}".removesuffix(place_of(folder))
    folders = [Path(root, each, "systemd", folder.name) for each in _BASES]
    return folders if folder in folders else [folder]


def timers_in(folder: Path, folders: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield the name of each timer in a folder, and why systemd does not start it from there.

    A template stands for its enabled instances, if there are any. If no folder has links that say
    what is enabled, every timer is.
    """
    links = {link.name for each in folders for link in each.glob("*.wants/*.timer")}
    for name in sorted(path.name for path in folder.glob("*.timer")):
        stem, is_template, _ = name.partition("@.")
        instances = sorted(each for each in links if is_template and each.startswith(f"{stem}@"))
        first = next((each for each in folders if (each / name).exists()), folder)
        why = "" if first.samefile(folder) else f"{first / name} takes its place"
        for each in instances or [name]:
            yield each, why or ("it is not enabled" if links and each not in links else "")


def read_unit(name: str, folders: Sequence[Path]) -> Unit | None:
    """Read a unit; None if there is none."""
    stem, _, kind = name.rpartition(".")
    template = re.sub(r"@.*", "@", stem)
    files = (folder / f"{each}.{kind}" for each in (stem, template) for folder in folders)
    path = next((file for file in files if file.exists()), None)
    if path is None:
        return None
    prefixes = [stem[: dash.end()] for dash in re.finditer("-", stem)]
    owners = [f"{each}.{kind}.d" for each in (stem, template, *reversed(prefixes))]
    added = dict[str, Path]()
    for drop_in in (each for folder in folders for owner in [*owners, f"{kind}.d"]
                    for each in (folder / owner).glob("*.conf")):  # fmt: skip
        added.setdefault(drop_in.name, drop_in)
    in_order = [path, *(added[each] for each in sorted(added))]
    return Unit(name, path, [each for file in in_order for each in _settings(file)])


def _settings(file: Path) -> Iterator[Setting]:
    section = ""
    lines = ((n, each.strip()) for n, each in enumerate(content_of(file).split("\n"), 1))
    for number, begin in lines:
        line = begin
        if not line or line.startswith(("#", ";")):
            continue
        while (len(line) - len(line.rstrip("\\"))) % 2:
            # Comments can stand between the lines of one setting.
            more = next((each for _, each in lines if not each.startswith(("#", ";"))), "")
            line = f"{line[:-1]} {more}"
        if line.startswith("["):
            section = line.strip("[]")
        else:
            name, _, value = line.partition("=")
            yield Setting(f"{section}.{name.strip()}", value.strip(), f"{file}:{number}")


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

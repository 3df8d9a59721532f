r"""Reads a crontab as crontab(5) of Debian's cron and of cronie describes it.

An environment setting applies to the lines below it. The name and the value of a setting may be
quoted; variables in the value are not expanded. ``CRON_TZ`` (cronie only) sets the time zone of the
lines below it; ``TZ`` has no effect on the times of runs, only on the commands' environment.

In a command line, the first ``%`` ends the command. The text after it is the command's standard
input; each further ``%`` in this text begins a new line. ``\%`` is a percent sign. In a system
crontab, the name of a user precedes each command.

A range that runs backwards, such as ``22-2``, is refused: cron accepts such a range, but never runs
the command because of it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from psched.triggers.cron import ALIASES

_SETTING = re.compile(
    r"""[ \t]* (?: "(?P<double>[^"]*)" | '(?P<single>[^']*)' | (?P<bare>[^\s="'][^\s=]*) )
        [ \t]* = [ \t]* (?P<value>.*)""",
    re.VERBOSE,
)

_ITEM = re.compile(r"(?:\*|(?P<begin>\w+)(?:-(?P<end>\w+))?)(?P<step>/\d+)?", re.ASCII)
"""Matches one item of the comma-separated list in a time field, such as ``mon-fri`` or ``*/5``."""

_NAMES = {
    name: number
    for names in ("jan feb mar apr may jun jul aug sep oct nov dec", "sun mon tue wed thu fri sat")
    for number, name in enumerate(names.split(), start=names.startswith("jan"))
}

_FIELDS = 5

NOT_IMPORTED = frozenset({"RANDOM_DELAY", "START_HOURS_RANGE"})
"""The settings that have an effect in cron, but none in psched."""

_QUOTED = re.compile(r"""("|')(?:(?!\1).)*\1""")


@dataclass(frozen=True, slots=True)
class Remark:
    """A message about a line that is not imported, or that psched runs differently from cron.

    Attributes:
        line: the number of the line.
        text: why the line is not imported, or how psched's runs differ from cron's.
    """

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A command of a crontab.

    Attributes:
        line: the number of the command's line.
        cron: five fields, or an alias such as ``@daily``.
        command: the text of the command, which a shell runs.
        stdin: the standard input of the command; empty if the line has no ``%``.
        user: the user as whom cron runs the command; None in a user's crontab.
        variables: the environment settings above the command's line, by name.
        note: the comment directly above the command's line; None if there is none.
    """

    line: int
    cron: str
    command: str
    stdin: str = ""
    user: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Crontab:
    """The content of a crontab.

    Attributes:
        entries: the commands, in the order of their lines.
        remarks: the messages about lines that psched cannot import, or cannot run as cron does.
    """

    entries: Sequence[Entry]
    remarks: Sequence[Remark]


class _BadLineError(Exception):
    """Raised for a line that cannot be imported; the error's text gives the reason."""


def parse(content: str, *, system: bool) -> Crontab:
    """Read a crontab.

    Args:
        content: the text of the crontab.
        system: whether the name of a user precedes each command, as in ``/etc/crontab``.
    """
    entries, remarks = list[Entry](), list[Remark]()
    variables: dict[str, str] = {}
    comment: list[str] = []
    for number, raw in enumerate(content.split("\n"), start=1):
        line = raw.strip(" \t\r")
        if line.startswith("#"):
            comment.append(line.lstrip("#").strip())
            continue
        odd: Iterable[str] = ()
        try:
            if setting := _SETTING.fullmatch(raw.rstrip("\r")):
                name, value = _read_setting(setting)
                variables[name] = value
                odd = _setting_remarks(name)
            elif line:
                entry, odd = _entry(number, line, variables, comment, system=system)
                entries.append(entry)
        except _BadLineError as error:
            odd = [f"not imported: {error}"]
        remarks += (Remark(number, text) for text in odd)
        comment = []
    return Crontab(entries, remarks)


def _read_setting(setting: re.Match[str]) -> tuple[str, str]:
    name = next(found for found in setting.group("double", "single", "bare") if found is not None)
    value = setting["value"].strip(" \t")
    if not value.startswith(('"', "'")):
        return name, value
    if not _QUOTED.fullmatch(value):
        raise _BadLineError(f"the quotes around the value of {name} do not match")
    return name, value[1:-1]


def _setting_remarks(name: str) -> Iterator[str]:
    """Yield a remark if a setting has an effect in cron, but none in psched."""
    if name in NOT_IMPORTED:
        yield f"{name}: not imported: psched runs no command at a random time"


def _entry(
    number: int, line: str, variables: Mapping[str, str], comment: Sequence[str], *, system: bool
) -> tuple[Entry, Sequence[str]]:
    odd = list[str]()
    if line.startswith("-"):
        line = line[1:].lstrip(" \t")
        odd.append("the leading '-' has no effect: psched logs every run")
    cron, rest = _split_time(line)
    user = None
    if system:
        user, rest = _first_word(rest)
        if not re.fullmatch(r"\w[\w.@$-]*", user):
            raise _BadLineError(
                f"{user!r} is not a user's name; is this a user's crontab (--user)?"
            )
    elif _first_word(rest)[0] == "root":
        odd.append("the command begins with 'root'; is this a system crontab (--system)?")
    command, stdin = _split_input(rest)
    if not command.strip():
        raise _BadLineError("there is no command")
    note = "\n".join(comment).strip()
    return Entry(number, cron, command, stdin, user, dict(variables), note or None), odd


def _first_word(text: str) -> tuple[str, str]:
    word, *rest = re.split(r"[ \t]+", text, maxsplit=1)
    return word, rest[0] if rest else ""


def _split_time(line: str) -> tuple[str, str]:
    """Split a line into its time (five fields, or an alias such as ``@daily``) and the rest."""
    word, rest = _first_word(line)
    if word == "@reboot":
        raise _BadLineError(
            "@reboot: psched runs nothing when a host starts; leave it to cron, or to systemd"
        )
    if word.startswith("@"):
        if word not in ALIASES:
            raise _BadLineError(f"{word} is unknown; cron has {', '.join(ALIASES)}")
        return word, rest
    words = [word]
    while len(words) < _FIELDS:
        word, rest = _first_word(rest)
        words.append(word)
    if not all(words):
        raise _BadLineError("it is neither NAME=VALUE nor five fields and a command")
    for word in words:
        _check_field(word)
    return " ".join(words), rest


def _check_field(text: str) -> None:
    """Refuse a field if crontab(5) does not describe it, or if psched interprets it unlike cron."""
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        numbers = [_number(word) for word in match.group("begin", "end") if word] if match else []
        is_step_of_one = match and match["step"] and len(numbers) == 1
        if match is None or is_step_of_one or None in numbers:
            raise _BadLineError(f"{text!r} is not a field as crontab(5) describes it")
        if numbers != sorted(numbers, key=lambda number: number or 0):
            raise _BadLineError(
                f"the range {item} runs backwards, and so never matches in cron;"
                " to include the end and the beginning, write two ranges"
            )


def _number(word: str) -> int | None:
    return int(word) if word.isdecimal() else _NAMES.get(word.lower())


def _split_input(text: str) -> tuple[str, str]:
    """Split a line's text into the command and its standard input."""
    # The pattern matches each backslash together with the character after it. So an escaped
    # percent sign does not end the command, and an escaped backslash escapes nothing.
    match = re.match(r"(?:\\.|[^%\\]|\\$)*", text)
    command = match[0] if match else ""
    rest = text[len(command) + 1 :]
    lines = re.sub(r"\\%|%", lambda found: "\n" if found[0] == "%" else "%", rest)
    if lines and not lines.endswith("\n"):
        lines += "\n"
    return _without_escapes(command), lines


def _without_escapes(command: str) -> str:
    """Remove each backslash that escapes a percent sign; keep all other backslashes."""
    return re.sub(r"\\(.)", lambda found: "%" if found[1] == "%" else found[0], command)

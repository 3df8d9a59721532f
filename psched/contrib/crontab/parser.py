r"""A crontab as cron reads it: crontab(5), of Debian's cron and of cronie.

Settings of the environment hold for the lines below them. A setting's name and its value may stand
in quotes, and nothing in them is expanded. ``CRON_TZ`` (cronie's) is the zone in which the lines
below are read; ``TZ`` is a variable of the commands, and changes no times.

In a command the first ``%`` ends it; what follows is its standard input, each further ``%`` of
which begins a new line. ``\%`` is a percent sign. In a system's crontab the user stands before the
command.

A range that runs backwards, such as ``22-2``, is accepted by cron and never matches; whoever wrote
it did not want that, nor can we know what they wanted. It is refused here.
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
"""Of a field's list; crontab(5) has no more than this."""

_NAMES = {
    name: number
    for names in ("jan feb mar apr may jun jul aug sep oct nov dec", "sun mon tue wed thu fri sat")
    for number, name in enumerate(names.split(), start=names.startswith("jan"))
}

_FIELDS = 5

_QUOTED = re.compile(r"""("|')(?:(?!\1).)*\1""")


@dataclass(frozen=True, slots=True)
class Remark:
    """What is not carried over, or not as it is.

    Attributes:
        line: the line's number.
        text: what, for people.
    """

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A command of a crontab.

    Attributes:
        line: its line's number.
        cron: when: five fields, or ``@daily`` and its like.
        command: for the shell.
        stdin: its standard input.
        user: who runs it, in a system's crontab.
        variables: the environment that was set by the lines above.
        note: the comment right above it.
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
    """What a crontab says.

    Attributes:
        entries: its commands, in their order.
        remarks: what it says that psched cannot do, or means otherwise.
    """

    entries: Sequence[Entry]
    remarks: Sequence[Remark]


class _BadLineError(Exception):
    """A line cannot be carried over; the text tells why."""


def parse(content: str, *, system: bool) -> Crontab:
    """Read a crontab.

    Args:
        content: its lines.
        system: whether a user stands before each command, as in ``/etc/crontab``.
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
                odd = _about(name, value)
            elif line:
                entry, odd = _entry(number, line, variables, comment, system=system)
                entries.append(entry)
        except _BadLineError as error:
            odd = [f"not carried over: {error}"]
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


def _about(name: str, value: str) -> Iterator[str]:
    """What is lost of a setting."""
    if name == "MAILTO" and value:
        yield f"MAILTO={value}: psched sends no mail; what a command writes goes to psched's log"
    elif name in {"RANDOM_DELAY", "START_HOURS_RANGE"}:
        yield f"{name}: not carried over: psched does not draw when a command runs"


def _entry(
    number: int, line: str, variables: Mapping[str, str], comment: Sequence[str], *, system: bool
) -> tuple[Entry, Sequence[str]]:
    odd = list[str]()
    if line.startswith("-"):
        line = line[1:].lstrip(" \t")
        odd.append("the '-' in front: psched logs each run all the same")
    cron, rest = _when(line)
    user = None
    if system:
        user, rest = _first_word(rest)
        if not re.fullmatch(r"\w[\w.@$-]*", user):
            raise _BadLineError(f"{user!r} is no user; is this a user's crontab (--user)?")
    elif _first_word(rest)[0] == "root":
        odd.append("its command begins with 'root': is this a system's crontab (--system)?")
    command, stdin = _split_input(rest)
    if not command.strip():
        raise _BadLineError("there is no command")
    note = "\n".join(comment).strip()
    return Entry(number, cron, command, stdin, user, dict(variables), note or None), odd


def _first_word(text: str) -> tuple[str, str]:
    word, *rest = re.split(r"[ \t]+", text, maxsplit=1)
    return word, rest[0] if rest else ""


def _when(line: str) -> tuple[str, str]:
    """The time of a line, and what follows it."""
    word, rest = _first_word(line)
    if word == "@reboot":
        raise _BadLineError(
            "@reboot: psched runs nothing when a host starts; leave it to cron, or to systemd"
        )
    if word.startswith("@"):
        if word not in ALIASES:
            raise _BadLineError(f"{word} is unknown; there are {', '.join(ALIASES)}")
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
    """Refuse what crontab(5) does not know, or what cron takes for something else than we do."""
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        numbers = [_number(word) for word in match.group("begin", "end") if word] if match else []
        is_step_of_one = match and match["step"] and len(numbers) == 1
        if match is None or is_step_of_one or None in numbers:
            raise _BadLineError(f"{text!r} is no field that crontab(5) knows")
        if numbers != sorted(numbers, key=lambda number: number or 0):
            raise _BadLineError(
                f"the range {item} runs backwards, which cron takes for never;"
                " write two ranges if it is to go past the end"
            )


def _number(word: str) -> int | None:
    return int(word) if word.isdecimal() else _NAMES.get(word.lower())


def _split_input(text: str) -> tuple[str, str]:
    """A command, and its standard input."""
    # What follows a backslash ends nothing, another backslash neither.
    match = re.match(r"(?:\\.|[^%\\]|\\$)*", text)
    command = match[0] if match else ""
    rest = text[len(command) + 1 :]
    lines = re.sub(r"\\%|%", lambda found: "\n" if found[0] == "%" else "%", rest)
    if lines and not lines.endswith("\n"):
        lines += "\n"
    return _without_escapes(command), lines


def _without_escapes(command: str) -> str:
    """A command in which a backslash before a percent sign is taken away, and no other."""
    return re.sub(r"\\(.)", lambda found: "%" if found[1] == "%" else found[0], command)

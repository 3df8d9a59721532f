r"""Reads a crontab as Debian's cron, cronie or BusyBox's cron reads it.

An environment setting applies to the lines below it. The name and the value of a setting may be
quoted; variables in the value are not expanded. ``CRON_TZ`` (cronie only) sets the time zone of the
lines below it; ``TZ`` has no effect on the times of runs, only on the commands' environment.

In a command line, the first ``%`` ends the command. The text after it is the command's standard
input; each further ``%`` in this text begins a new line. ``\%`` is a percent sign. In a system
crontab, the name of a user precedes each command. In Debian's cron ``\\`` in a command is one
backslash. To BusyBox's cron ``%`` and ``\`` are characters as all others.

A range that runs backwards, such as ``22-2``, is refused: cron accepts such a range, but never runs
the command because of it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from psched.base.errors import InvalidError
from psched.contrib.crontab.shell_command import in_foreground
from psched.triggers import trigger
from psched.triggers.calendar_event import seconds_of
from psched.triggers.cron import ALIASES
from psched.triggers.foreign import TIME_FIELD

DIALECTS = ("debian", "cronie", "busybox")

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
_LAST = (59, 23, 31, 12, 7)  # the largest number of each field

NOT_IMPORTED = frozenset({"RANDOM_DELAY", "START_HOURS_RANGE"})
"""The settings that have an effect in cron, but none in psched."""

_QUOTED = re.compile(r"""("|')(?:(?!\1).)*\1""")


@dataclass(frozen=True, slots=True)
class Remark:
    """A message about a line that is not imported, or that psched runs differently from cron."""

    line: int
    text: str  # why the line is not imported, or how psched's runs differ from cron's


@dataclass(frozen=True, slots=True)
class Entry:
    """A command of a crontab."""

    line: int  # the number of the command's line
    cron: str  # five fields, or an alias such as ``@daily``
    command: str  # the text of the command, which a shell runs
    stdin: str = ""  # the standard input of the command; empty if the line has no ``%``
    user: str | None = None  # the user as whom cron runs the command; None in a user's crontab
    # The environment settings above the command's line, by name.
    variables: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None  # the comment directly above the command's line; None if there is none


@dataclass(frozen=True, slots=True)
class Crontab:
    """The content of a crontab."""

    entries: Sequence[Entry]  # the commands, in the order of their lines
    # The messages about lines that psched cannot import, or cannot run as cron does.
    remarks: Sequence[Remark]
    # The number of the first line because of which Debian's cron ignores the whole file.
    fatal: int | None = None


class _BadLineError(Exception):
    """Raised for a line that cannot be imported; the error's text gives the reason."""

    def __init__(self, reason: str, *, is_fatal: bool = True) -> None:
        super().__init__(reason)
        self.is_fatal = is_fatal  # whether Debian's cron then ignores the whole file


def parse(content: str, *, system: bool, dialect: str = "debian") -> Crontab:
    """Read a crontab."""
    entries, remarks = list[Entry](), list[Remark]()
    variables: dict[str, str] = {}
    comment: list[str] = []
    fatal = None
    for number, raw in enumerate(content.split("\n"), start=1):
        line = raw.strip(" \t\r")
        if line.startswith("#"):
            comment.append(line.lstrip("#").strip())
            continue
        odd: Iterable[str] = ()
        is_fatal = line.startswith("-")
        try:
            if setting := _SETTING.fullmatch(raw.rstrip("\r")):
                is_fatal = not setting["value"].strip(" \t")
                name, value = _read_setting(setting, dialect)
                variables[name] = value
                if name in NOT_IMPORTED:
                    odd = [f"{name}: not imported: psched runs no command at a random time"]
            elif line:
                entry, odd = _entry(number, line, variables, comment, system, dialect)
                entries.append(entry)
        except _BadLineError as error:
            odd, is_fatal = [f"not imported: {error}"], error.is_fatal
        fatal = number if is_fatal and fatal is None else fatal
        remarks += (Remark(number, text) for text in odd)
        comment = []
    return Crontab(entries, remarks, fatal)


def _read_setting(setting: re.Match[str], dialect: str) -> tuple[str, str]:
    name = next(found for found in setting.group("double", "single", "bare") if found is not None)
    value = setting["value"].strip(" \t")
    first, rest = _first_word(value)
    words = rest.split() if value[:1] not in {"'", '"'} else []
    times = [] if rest.startswith("@") else words[:_FIELDS]
    if len(words) > max(len(times), 1) and all(map(TIME_FIELD.fullmatch, times)):
        text = f"cron takes all of it as the value of {name}; write {name}={first} on a line"
        raise _BadLineError(f"{text}, and below it {rest!r}", is_fatal=False)
    if dialect == "busybox" and name not in {"SHELL", "PATH", "MAILTO"}:
        raise _BadLineError(f"BusyBox's cron ignores {name}")
    if not value.startswith(('"', "'")):
        return name, value
    if not _QUOTED.fullmatch(value):
        raise _BadLineError(f"the quotes around the value of {name} do not match")
    return name, value[1:-1]


def _entry(
    number: int,
    line: str,
    variables: Mapping[str, str],
    comment: Sequence[str],
    system: bool,  # noqa: FBT001
    dialect: str,
) -> tuple[Entry, Sequence[str]]:
    odd = list[str]()
    if line.startswith("-"):
        line = line[1:].lstrip(" \t")
        odd.append("the leading '-' has no effect: psched logs every run")
    cron, rest = _split_time(line, system, dialect)
    user = None
    if system:
        user, rest = _first_word(rest)
        if not re.fullmatch(r"\w[\w.@$-]*", user):
            raise _BadLineError(
                f"{user!r} is not a user's name; is this a user's crontab (--user)?"
            )
    if rest.startswith("*"):
        text = "a command cannot begin with *; is it a part of the time?"
        raise _BadLineError(text, is_fatal=not system)
    if dialect == "cronie" and (option := re.match(r"-n[ \t]+", rest)):
        rest = rest[option.end() :]
        odd.append("cronie's option -n is left out: psched mails failures only")
    written, stdin, is_cut = _split_input(rest, dialect)
    command, is_left = in_foreground(written)
    if not command.strip():
        raise _BadLineError("there is no command")
    if is_cut:
        odd.append(
            "cron ends the command at the first %, and the rest is its input; if it belongs to the"
            r" command, write \%, or give --dialect busybox if the cron that ran it leaves % alone"
        )
    if command != written:
        odd.append("the '&' at its end is left out, so that psched waits for the command")
    if is_left:
        odd.append("what '&' starts in the background is killed when the command ends; add 'wait'")
    note = "\n".join(comment).strip()
    return Entry(number, cron, command, stdin, user, dict(variables), note or None), odd


def _first_word(text: str) -> tuple[str, str]:
    word, *rest = re.split(r"[ \t]+", text, maxsplit=1)
    return word, rest[0] if rest else ""


def _split_time(line: str, system: bool, dialect: str) -> tuple[str, str]:  # noqa: FBT001
    """Split a line into its time (five fields, or an alias such as ``@daily``) and the rest."""
    word, rest = _first_word(line)
    if word == "@reboot":
        raise _BadLineError(
            "@reboot: psched runs nothing when a host starts; leave it to cron, or to systemd",
            is_fatal=False,
        )
    if word.startswith("@"):
        if word not in ALIASES:
            time = _every(rest) if word.lower() == "@every" else word
            known = ", ".join(ALIASES)
            raise _BadLineError(f"{word} is unknown; cron has {known}; {_instead(time)}")
        return word, rest
    words = [word]
    while len(words) < _FIELDS or _is_time(_first_word(rest)[0]):
        word, rest = _first_word(rest)
        words.append(word)
    if not all(words):
        raise _BadLineError("it is neither NAME=VALUE nor five fields and a command")
    if len(words) > _FIELDS:
        text = f"the time {' '.join(words)!r} {_instead(' '.join(words))}"
        raise _BadLineError(text, is_fatal=system or words[_FIELDS].startswith("*"))
    for place in range(_FIELDS):
        _check_field(words, place, dialect)
    if dialect == "busybox":
        # It counts the days of the month from 0, and one of two day fields is enough for it, also
        # if one begins with a star.
        words[2] = re.sub(r"\*/(?!1\b)(\d+)", r"\1-31/\1", words[2])
        if words[2] != "*":
            words[4] = re.sub(r"\*/(?!1\b)", "0-6/", words[4])
    return " ".join(words), rest


def _check_field(words: Sequence[str], place: int, dialect: str) -> None:
    """Refuse a field if crontab(5) does not describe it, or if psched interprets it unlike cron."""
    text, is_weekday = words[place], place == _FIELDS - 1
    for item in text.split(","):
        match = _ITEM.match(item)
        numbers = [_number(w) for w in match.group("begin", "end") if w] if match else [None]
        reason = f"{text!r} is not a field as crontab(5) describes it"
        if match and match["step"] and len(numbers) == 1:
            raise _BadLineError(f"{reason}; write {numbers[0]}-{_LAST[place]}{match['step']}")
        if match is None or match[0] != item or None in numbers:
            # Debian's cron ignores what follows the part of the item that it understands.
            text = f"{reason}; {_instead(' '.join(words))}"
            raise _BadLineError(text, is_fatal=None in numbers)
        if dialect == "busybox" and is_weekday and _LAST[place] in numbers:
            raise _BadLineError("7 is no day of the week in BusyBox's cron; write 0 for Sunday")
        is_forward = numbers == sorted(numbers, key=lambda number: number or 0)
        to_sunday = is_weekday and re.search(r"-(0|sun)$", item, re.IGNORECASE)
        if not (is_forward or dialect == "busybox" or (to_sunday and dialect == "cronie")):
            raise _BadLineError(
                f"the range {item} runs backwards, and so never matches in cron;"
                " to include the end and the beginning, write two ranges",
                is_fatal=False,
            )
    try:
        trigger.parse(" ".join(["*"] * place + [text] + ["*"] * (_FIELDS - 1 - place)), "UTC")
    except InvalidError as error:
        raise _BadLineError(str(error)) from None


def _is_time(word: str) -> bool:
    """Whether a word is a further field, and no program's name, which could be ``w`` or ``mon``."""
    return word == word.upper() and TIME_FIELD.fullmatch(word) is not None


def _every(text: str) -> str:
    """The trigger for the interval at the beginning of a text, such as ``5 minutes``."""
    words = text.lower().split()
    for length in (2, 1):
        with suppress(InvalidError):
            return f"@every {seconds_of(' '.join(words[:length])) or 0:.12g}"
    return f"@every {text}"


def _instead(time: str) -> str:
    """What to write instead of a time that cron does not accept."""
    try:
        trigger.parse(time, "UTC")
    except InvalidError as error:
        return error.problem
    return f"outside a crontab, psched has {time!r}"


def _number(word: str) -> int | None:
    return int(word) if word.isdecimal() else _NAMES.get(word.lower())


def _split_input(text: str, dialect: str) -> tuple[str, str, bool]:
    """Split a line's text into the command and its standard input; say whether a ``%`` did."""
    if dialect == "busybox":
        return text, "", False
    # The pattern matches each backslash together with the character after it. So an escaped
    # percent sign does not end the command, and an escaped backslash escapes nothing.
    match = re.match(r"(?:\\.|[^%\\]|\\$)*", text)
    command = match[0] if match else ""
    rest = text[len(command) + 1 :]
    lines = re.sub(r"\\%|%", lambda found: "\n" if found[0] == "%" else "%", rest)
    if lines and not lines.endswith("\n"):
        lines += "\n"
    # All other backslashes are the shell's.
    escaped = {"%", "\\"} if dialect == "debian" else {"%"}
    plain = re.sub(r"\\(.)", lambda found: found[found[1] in escaped], command)
    return plain, lines, len(command) < len(text)

"""Finds the former schedules of a crontab's lines, so that an edited line keeps its key.

Without this, an edited line would get a new key, and its old and its new version would both run.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from psched.contrib.crontab.shell_command import program_name

_SHELL_WORDS = 3
"""The number of words of a command that names its shell: shell, ``-c``, text."""


class Line(NamedTuple):
    """What identifies a line of a crontab.

    Attributes:
        cron: the time, as the crontab writes it.
        user: the user as whom cron runs the command; None if it is not known.
        command: the text of the command.
        stdin: the standard input of the command.
    """

    cron: str
    user: str | None
    command: str
    stdin: str

    @property
    def shown(self) -> str:
        """The time and the command, for people."""
        return f"{self.cron} {self.command}"


_UNCHANGED: Sequence[Callable[[Line], Hashable]] = (
    lambda line: line,
    lambda line: (line.user, line.command, line.stdin),
    lambda line: (line.command, line.stdin),
    lambda line: line.command,
)
"""Functions whose results are compared, the strictest first, to find lines with the same command.
"""


def line_of(fields: Mapping[str, Any]) -> Line:
    """The line that an imported schedule comes from.

    Args:
        fields: the fields of the schedule, as a file declares them.
    """
    data = fields.get("data")
    data = data if isinstance(data, Mapping) else {}
    command, env = data.get("command", ""), data.get("env")
    if isinstance(command, list):
        is_shell = len(command) == _SHELL_WORDS and command[1] == "-c"
        command = command[-1] if is_shell else " ".join(map(str, command))
    user = env.get("LOGNAME") if isinstance(env, Mapping) else None
    return Line(str(fields.get("cron", "")), user, str(command), str(data.get("stdin") or ""))


def match(lines: Sequence[Line], former: Mapping[str, Line]) -> Sequence[str | None]:
    """Find the key of each line's former version; None for a line that is new.

    Lines whose command has not changed are matched first. Then lines with the same program are
    matched: those whose commands have the most words in common first, otherwise in order.

    Args:
        lines: the lines of the crontab, in order.
        former: the former lines by key, in order.
    """
    keys: list[str | None] = [None] * len(lines)
    left = dict(former)
    for identity in _UNCHANGED:
        by_identity = defaultdict[Hashable, deque[str]](deque)
        for key, line in left.items():
            by_identity[identity(line)].append(key)
        for place, line in enumerate(lines):
            if keys[place] is None and (found := by_identity[identity(line)]):
                keys[place] = found.popleft()
                del left[keys[place] or ""]
    for place, key in _by_program(
        {place: line for place, line in enumerate(lines) if keys[place] is None}, left
    ):
        keys[place] = key
    return keys


def _by_program(lines: Mapping[int, Line], former: Mapping[str, Line]) -> Iterable[tuple[int, str]]:
    """Yield pairs of the place of a line and the key of a former line with the same program."""
    keys = {key: rank for rank, key in enumerate(former)}
    by_program = defaultdict[str, list[str]](list)
    for key, line in former.items():
        by_program[program_name(line.command)].append(key)
    words = {key: {*line.command.split()} for key, line in former.items()}
    pairs = sorted(
        (-len(words[key].intersection(line.command.split())), place, keys[key], key)
        for place, line in lines.items()
        for key in by_program[program_name(line.command)]
    )
    places = {*lines}
    for _, place, _, key in pairs:
        if place in places and key in keys:
            places.remove(place)
            del keys[key]
            yield place, key

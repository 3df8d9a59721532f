"""Finds the former schedules of a crontab's lines, so that an edited line keeps its key.

Without this, an edited line would get a new key, and its old and its new version would both run.
"""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from psched.contrib.crontab.shell_command import program_name

_CANDIDATES = 16
"""With how many former lines a line is compared because of one word. Without a limit, time and
memory would grow with the square of the number of lines that start one program."""

_REDIRECTION = re.compile(r"\d*[<>]+&?\s*[^\s<>|&;]+")
"""Matches ``>> /var/log/x`` or ``2>&1``, which do not tell what a command does."""


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
    """The line that an imported schedule comes from."""
    data = fields.get("data")
    data = data if isinstance(data, Mapping) else {}
    command, env = data.get("command", ""), data.get("env")
    if isinstance(command, list):
        # A shell, or runuser and a shell; the last word is the text that the shell runs.
        is_shell = len(command) > 1 and command[-2] == "-c"
        command = command[-1] if is_shell else " ".join(map(str, command))
    user = env.get("LOGNAME") if isinstance(env, Mapping) else None
    return Line(str(fields.get("cron", "")), user, str(command), str(data.get("stdin") or ""))


def match(lines: Sequence[Line], former: Mapping[str, Line]) -> Sequence[str | None]:
    """Find the key of each line's former version; None for a line that is new.

    Lines whose command has not changed are matched first. Then lines with the same program are
    matched: those whose commands have the most words in common first, otherwise in order. Commands
    that have less than half of their words in common are not matched.
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
    old = defaultdict[str, dict[str, frozenset[str]]](dict)
    new = defaultdict[str, dict[int, frozenset[str]]](dict)
    for key, line in left.items():
        old[program_name(line.command)][key] = _words(line)
    for place, line in enumerate(lines):
        if keys[place] is None:
            new[program_name(line.command)][place] = _words(line)
    for program, places in new.items():
        for place, key in _by_words(places, old[program]):
            keys[place] = key
    return keys


def _words(line: Line) -> frozenset[str]:
    return frozenset(_REDIRECTION.sub(" ", line.command).split())


def _is_edited(old: frozenset[str], new: frozenset[str]) -> bool:
    """Whether the words of two commands are so similar that one can be the other, edited."""
    common = len(old & new)
    # A command to which something was added, such as `nice` or `| logger`, has all its words still.
    return 2 * common >= max(len(old), len(new)) or 1 < common == min(len(old), len(new))


def _by_words(
    new: Mapping[int, frozenset[str]], old: Mapping[str, frozenset[str]]
) -> Iterator[tuple[int, str]]:
    """Yield pairs of the place of a line and the key of a former line with the same program."""
    ranks = {key: rank for rank, key in enumerate(old)}
    by_word = defaultdict[str, list[str]](list)
    for key, words in old.items():
        for word in words:
            by_word[word].append(key)
    # Words that few lines have tell which of many similar lines was edited.
    near = {
        place: {
            key
            for word in words
            if len(by_word.get(word, ())) <= _CANDIDATES
            for key in by_word.get(word, ())
        }
        for place, words in new.items()
    }
    pairs = sorted(
        (-len(old[key] & words), place, ranks[key], key)
        for place, words in new.items()
        for key in near[place]
        if _is_edited(old[key], words)
    )
    free = {*new}
    for _, place, _, key in pairs:
        if place in free and key in ranks:
            free.remove(place)
            del ranks[key]
            yield place, key
    waiting = deque(ranks)
    for place in sorted(free):
        found = [key for key in islice(waiting, _CANDIDATES) if _is_edited(old[key], new[place])]
        if found:
            best = max(found, key=lambda key: len(old[key] & new[place]))
            waiting.remove(best)
            yield place, best

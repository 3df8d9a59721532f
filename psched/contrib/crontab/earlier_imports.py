"""Finds what earlier imports have made: of a crontab's lines, of its host, and of others.

An edited line keeps the key of its former schedule. Otherwise it would get a new key, and its old
and its new version would both run.

A crontab belongs to a host, and a user's crontab to its user. So the label of the schedules and
their keys begin with the host, as in ``crontab:db1:php`` and ``db1:php.sessionclean.14a992``.
"""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from psched.contrib.crontab.shell_command import program_name, slug

_CANDIDATES = 16
"""With how many former lines a line is compared because of one word. Without a limit, time and
memory would grow with the square of the number of lines that start one program."""

_REDIRECTION = re.compile(r"\d*[<>]+&?\s*[^\s<>|&;]+")
"""Matches ``>> /var/log/x`` or ``2>&1``, which do not tell what a command does."""


class Line(NamedTuple):
    """What identifies a line of a crontab."""

    cron: str  # the time, as the crontab writes it
    user: str | None  # the user as whom cron runs the command; None if it is not known
    command: str  # the text of the command
    stdin: str  # the standard input of the command

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


_SHOWN = 3  # the number of keys that a message names

_ALSO = "if both are to run, add --also"


class Known(NamedTuple):
    """A schedule that an importer may have made."""

    key: str
    label: str | None  # the schedule's label; None if it has none
    line: Line  # the line of a crontab that it was made of, or could be
    where: Mapping[str, Any] = MappingProxyType({})  # its fields ``hosts`` and ``each_host``

    @property
    def source(self) -> str | None:
        """The host or cluster that it was imported from; None if its key names none."""
        source, colon, _ = self.key.partition(":")
        return source if colon else None


@dataclass(frozen=True, kw_only=True)
class Source:
    """A host or a cluster. The keys of what is imported from it begin with its name."""

    source: str

    def is_own(self, known: Known) -> bool:
        """Whether a schedule was imported from here."""
        return known.source == self.source

    def twice(self, lines: Iterable[Line], stored: Iterable[Known]) -> Sequence[Known]:
        """The schedules of others that run the same command as one of the lines."""
        wanted = {_command_of(line) for line in lines}
        return [
            each for each in stored if _command_of(each.line) in wanted and not self.is_own(each)
        ]

    def ways_out(self, found: Iterable[Known]) -> Iterator[str]:
        """Yield what to do about schedules that run the same commands, a text for each label."""
        by_label = defaultdict[tuple[str | None, str | None], list[Known]](list)
        for each in found:
            by_label[each.label, each.source].append(each)
        for (label, source), listed in by_label.items():
            whose = f"label {label}" if label is not None else "no label"
            what = "the same command" + (f", imported from {source}" if source else "")
            keys = some([each.key for each in listed])
            yield f"{keys} ({whose}): {what}{self._way_out(listed[0])}"

    def _way_out(self, known: Known) -> str:
        if known.source is None:
            return f". If one is enough, delete it (psched delete); {_ALSO}"
        return f". If {self.source} had that name, add --source {known.source}; {_ALSO}"


@dataclass(frozen=True, kw_only=True)
class Origin(Source):
    """Where a crontab comes from: its host, under the name that the user gave it, and its file."""

    file: str  # the base name of its file; ``-`` for standard input
    owner: str | None  # the user that it belongs to; None if it is a system crontab
    given_label: str | None = None  # the label that the user wants; None for the usual one

    @property
    def key_prefix(self) -> str:
        """The beginning of the keys; no other crontab has keys that begin so, and then a dot."""
        home, names = self._names
        return f"{self.source}:{home}{slug('-'.join(names)).replace('.', '-')}"

    @property
    def usual_label(self) -> str:
        """The label unless the user wants another one."""
        home, names = self._names
        return f"crontab:{self.source}:{home}{'/'.join(names)}"

    @property
    def label(self) -> str:
        """The label of the schedules."""
        return self.given_label or self.usual_label

    @property
    def _names(self) -> tuple[str, Sequence[str]]:
        if self.owner is None:
            return "", ["crontab" if self.file == "-" else self.file]
        return "~", [self.owner] if self.file in {"-", self.owner} else [self.owner, self.file]

    def is_own(self, known: Known) -> bool:
        """Whether a schedule was made of a line of this crontab."""
        is_usual = self.label == self.usual_label
        return known.label == self.label and (is_usual or self._has_its_key(known))

    def _has_its_key(self, known: Known) -> bool:
        return known.key.startswith(f"{self.key_prefix}.")

    def _way_out(self, known: Known) -> str:
        if known.source != self.source:
            return super()._way_out(known)
        if self._has_its_key(known):
            return f" with another label: add --label {known.label}"
        return (
            f". If its file had another name, delete them (psched delete --label {known.label});"
            f" {_ALSO}"
        )


def _command_of(line: Line) -> tuple[str | None, str, str]:
    return line.user, line.command, line.stdin


def some(keys: Sequence[str]) -> str:
    """The first of some keys, and the number of the others."""
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more

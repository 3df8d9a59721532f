"""Tells which imported schedules belong to a crontab, a host or a cluster, and which to others.

A crontab belongs to a host, and a user's crontab to its user. So the label of the schedules and
their keys begin with the host, as in ``crontab:db1:php`` and ``db1:php.sessionclean.14a992``.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from psched.contrib.crontab.former_lines import Line
from psched.contrib.crontab.shell_command import slug

_SHOWN = 3
"""The number of keys that a message names."""

_ALSO = "if both are to run, add --also"


class Known(NamedTuple):
    """A schedule that an importer may have made.

    Attributes:
        key: the schedule's key.
        label: the schedule's label; None if it has none.
        line: the line of a crontab that it was made of, or could be.
    """

    key: str
    label: str | None
    line: Line

    @property
    def source(self) -> str | None:
        """The host or cluster that it was imported from; None if its key names none."""
        source, colon, _ = self.key.partition(":")
        return source if colon else None


@dataclass(frozen=True, kw_only=True)
class Source:
    """A host or a cluster. The keys of the schedules that are imported from it begin with its name.

    Attributes:
        source: the name.
    """

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
        """Yield a text for each label of schedules that run the same commands.

        The text says what the user can do about them.
        """
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
    """Where a crontab comes from.

    Attributes:
        source: the name of its host, or the name that the user has given to the host.
        file: the base name of its file; ``-`` for standard input.
        owner: the user that it belongs to; None if it is a system crontab.
        given_label: the label that the user wants; None for the usual one.
    """

    file: str
    owner: str | None
    given_label: str | None = None

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

"""Tells which schedules of earlier imports belong to a crontab, and which to another one.

A crontab belongs to a host, and a user's crontab to its user. So the label of the schedules and
their keys begin with the host, as in ``crontab:db1:php`` and ``db1:php.sessionclean.14a992``.

Earlier versions of psched named no host. Nothing tells whose those schedules are, so the user must
say it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from psched.contrib.crontab.former_lines import Line
from psched.contrib.crontab.shell_command import slug

_SHOWN = 3
"""The number of keys that a message names."""


class Known(NamedTuple):
    """A schedule that was made of a line of a crontab.

    Attributes:
        key: the schedule's key.
        label: the schedule's label; None if it has none.
        line: the line.
    """

    key: str
    label: str | None
    line: Line

    @property
    def source(self) -> str | None:
        """The host of the crontab; None if an earlier version has imported the line."""
        source, colon, _ = self.key.partition(":")
        return source if colon else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a crontab comes from.

    Attributes:
        source: the name of its host, or the name that the user has given to the host.
        file: the base name of its file; ``-`` for standard input.
        owner: the user that it belongs to; None if it is a system crontab.
        given_label: the label that the user wants; None for the usual one.
    """

    source: str
    file: str
    owner: str | None
    given_label: str | None = None

    @property
    def key_prefix(self) -> str:
        """The beginning of the keys; no other crontab has keys that begin so, and then a dot."""
        return f"{self.source}:{slug('-'.join(self._names)).replace('.', '-')}"

    @property
    def usual_label(self) -> str:
        """The label unless the user wants another one."""
        home = "~" if self.owner is not None else ""
        return f"crontab:{self.source}:{home}{'/'.join(self._names)}"

    @property
    def label(self) -> str:
        """The label of the schedules."""
        return self.given_label or self.usual_label

    @property
    def former_label(self) -> str:
        """The label that earlier versions of psched gave to the schedules."""
        return self.given_label or f"crontab:{'crontab' if self.file == '-' else self.file}"

    @property
    def _names(self) -> Sequence[str]:
        if self.owner is None:
            return ["crontab" if self.file == "-" else self.file]
        return [self.owner] if self.file in {"-", self.owner} else [self.owner, self.file]

    def own(self, known: Iterable[Known], *, adopt: bool) -> Mapping[str, Line]:
        """The lines of this crontab's schedules, by key.

        Args:
            known: schedules.
            adopt: whether the schedules of an earlier version, which name no host, are its own.
        """
        return {
            each.key: each.line
            for each in known
            if (each.label == self.label and self._is_own(each))
            or (adopt and self.is_nameless(each))
        }

    def _is_own(self, known: Known) -> bool:
        return self.label == self.usual_label or known.key.startswith(f"{self.key_prefix}.")

    def is_nameless(self, known: Known) -> bool:
        """Whether an earlier version may have made a schedule of this crontab, or of another."""
        return (
            known.source is None
            and known.label == self.former_label
            and known.line.user is not None
            and self.owner in {None, known.line.user}
        )

    def twice(
        self, lines: Iterable[Line], stored: Iterable[Known], *, adopt: bool
    ) -> Sequence[Known]:
        """The schedules of other crontabs that run the same command as one of the lines."""
        wanted = {_command_of(line) for line in lines}
        found = [each for each in stored if _command_of(each.line) in wanted]
        own = self.own(found, adopt=adopt)
        return [each for each in found if each.key not in own]

    def ways_out(self, found: Iterable[Known]) -> Iterator[str]:
        """Yield a text for each label of schedules that may be of this crontab.

        The text says what the user can do about them.
        """
        by_label = defaultdict[tuple[str | None, str | None], list[Known]](list)
        for each in found:
            by_label[each.label, each.source].append(each)
        for (label, source), listed in by_label.items():
            whose = f"label {label}" if label is not None else "no label"
            keys = some([each.key for each in listed])
            yield f"{keys} ({whose}): {self._way_out(label, source, listed[0])}"

    def _way_out(self, label: str | None, source: str | None, first: Known) -> str:
        also = "if this crontab runs beside them, add --also"
        named = "" if label in {None, self.former_label} else f" --label {label}"
        if source is None:
            return (
                "imported without the name of a host. If they are of this crontab, take them over"
                f" with{named} --adopt; {also}"
            )
        what = f"the same command, imported from {source}"
        if source != self.source:
            return f"{what}. If this host had that name, add --source {source}; {also}"
        if first.key.startswith(f"{self.key_prefix}."):
            return f"{what} with another label: add --label {label}"
        return (
            f"{what}. If its file had another name, delete them (psched delete --label {label});"
            f" {also}"
        )


def _command_of(line: Line) -> tuple[str | None, str, str]:
    return line.user, line.command, line.stdin


def some(keys: Sequence[str]) -> str:
    """The first of some keys, and the number of the others."""
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more

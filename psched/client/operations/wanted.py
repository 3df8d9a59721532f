"""The conditions of a selection of schedules, see `psched.ScheduleCollection.select`."""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from dataclasses import replace as changed

from psched.base.errors import InvalidError
from psched.client.arguments import stored_key
from psched.client.finding import find, is_pattern, matches
from psched.core.model import Row
from psched.core.operations.extra_runs import schedule_of
from psched.core.schedule import Schedules
from psched.core.selection import chosen_texts, selection_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The conditions of a selection; each one that is empty or None is fulfilled by every row.

    Attributes:
        keys: keys or patterns, one of which the key must match.
        statuses: values of `Row.state`.
        types: the types.
        labels: the labels.
        reason: a pattern for the column ``reason``, in which capital and small letters are equal;
            without a wildcard, a part of the text.
        extra_runs: whether the row of an extra run fulfils the conditions, too.
        one_shots: whether the row of a schedule that runs only once does, too.
    """

    keys: Sequence[str] = ()
    statuses: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()
    reason: str | None = None
    extra_runs: bool = True
    one_shots: bool = True

    def among(
        self, statuses: frozenset[str], what: str, unless_named: AbstractSet[str] = frozenset()
    ) -> "Wanted":
        """Return these conditions, limited to rows that have one of some statuses."""
        if others := self.statuses - statuses:
            known = ", ".join(sorted(statuses))
            raise InvalidError("status", f"{min(others)!r} cannot be {what}; choose from {known}")
        return changed(self, statuses=self.statuses or statuses - unless_named)

    def has(self, row: Row) -> bool:
        """Whether a row fulfils the conditions; its key is not compared."""
        return (
            (not self.statuses or row.state in self.statuses)
            and (not self.types or row.type in self.types)
            and (not self.labels or row.label in self.labels)
            and (self.reason is None or _contains(row.reason or "", self.reason))
            and (self.extra_runs or schedule_of(row.key) is None)
            and (self.one_shots or row.cron is not None)
        )

    def rows(self, schedules: Schedules) -> Iterator[Row]:
        """Read the rows that fulfil all conditions."""
        named = schedules.read_many(self.keys) if self.keys else {}
        yield from filter(self.has, (named[key].row for key in self.keys if key in named))
        # A key can contain an asterisk. If it exists, it is no pattern.
        patterns = [key for key in self.keys if key not in named and is_pattern(key)]
        if self.keys and not patterns:
            return
        conditions = {
            "status": self.statuses or None,
            "type": self.types or None,
            "label": self.labels or None,
        }
        found = find(schedules, patterns, conditions, order="key")
        yield from (row for row in found if row.key not in named and self.has(row))


def _contains(text: str, pattern: str) -> bool:
    """Whether a text matches a pattern, or contains it if it has no wildcard."""
    return matches(text.lower(), (pattern if is_pattern(pattern) else f"*{pattern}*").lower())


def wanted_of(
    keys: Sequence[str],
    status: str | Iterable[str] | None,
    type_: str | Iterable[str] | None,
    label: str | Iterable[str] | None,
    reason: str | None,
    *,
    every: bool,
) -> Wanted:
    """Check the arguments of `psched.ScheduleCollection.select`."""
    selection = selection_of(status, type_, label)
    chosen_texts("keys", keys or None)
    chosen_texts("reason", reason)
    if reason == "":
        raise InvalidError("reason", "must not be empty")
    if not (every or keys or not selection.selects_all or reason):
        raise InvalidError("keys", "name keys or a condition, or pass every=True")
    return Wanted(
        keys=[*dict.fromkeys(map(stored_key, keys))],
        statuses=selection.statuses,
        types=selection.types,
        labels=selection.labels,
        reason=reason,
    )

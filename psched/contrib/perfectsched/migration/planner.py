"""Decides how to treat an old row, given the row with the same key in psched's table, if any."""

from dataclasses import dataclass, field

from psched.base.errors import InvalidError
from psched.config import Config
from psched.contrib.perfectsched.migration.destination import NewRow
from psched.contrib.perfectsched.migration.source_systems import (
    NOT_ENFORCED,
    OldRow,
    SourceSystem,
    is_marked,
)
from psched.core.model import Row

_MOST_NAMED = 1000
"""The largest number of refused rows that a report lists by key."""


@dataclass(slots=True)
class Report:
    """The result of a pass over the old table, or over one page of it; all numbers count rows.

    Attributes:
        seen: rows that were read.
        ready: rows that can be moved.
        running: rows that may be leased.
        changed: rows that others changed during the pass.
        reasons: by key, why a row cannot be moved; holds the first `_MOST_NAMED` such rows.
        unnamed: rows that cannot be moved and are not in ``reasons``.
        not_enforced: rows with a value in one of the columns `NOT_ENFORCED`.
        overdue: rows that can be moved and to which `SourceSystem.overdue_note` applies.
    """

    seen: int = 0
    ready: int = 0
    running: int = 0
    changed: int = 0
    reasons: dict[str, str] = field(default_factory=dict)
    unnamed: int = 0
    not_enforced: int = 0
    overdue: int = 0

    @property
    def refused(self) -> int:
        """The number of rows that cannot be moved unless somebody corrects them."""
        return len(self.reasons) + self.unnamed

    @property
    def remaining(self) -> int:
        """The number of rows that stay in the old table."""
        return self.running + self.changed + self.refused

    def refuse(self, key: str, reason: str) -> None:
        """Record a row that cannot be moved, and the reason."""
        if len(self.reasons) < _MOST_NAMED:
            self.reasons[key] = reason
        else:
            self.unnamed += 1

    def add(self, page: "Report") -> None:
        """Add the numbers and the reasons of another page's report."""
        self.seen += page.seen
        self.ready += page.ready
        self.running += page.running
        self.changed += page.changed
        self.not_enforced += page.not_enforced
        self.overdue += page.overdue
        self.unnamed += page.unnamed
        for key, reason in page.reasons.items():
            self.refuse(key, reason)


@dataclass(frozen=True, slots=True)
class Move:
    """A row that is to be moved.

    Attributes:
        old: the row as it was read.
        copy: the staged copy of the row; if the row is marked, psched's row with the same key.
        row: the row that the copy becomes; None if the copy need not be inserted.
        marked: whether the row is marked; then only the copy remains to be activated, if it exists.
        stale: an existing copy that was made from another state of the row; None if there is none.
    """

    old: OldRow
    copy: NewRow
    row: Row | None = None
    marked: bool = False
    stale: NewRow | None = None


@dataclass(frozen=True, slots=True)
class Planner:
    """Decides what to do with each row.

    Attributes:
        system: the old system.
        origin: the old table and its database, as in `NewRow.origin`.
        settings: psched's settings; a row that they forbid is refused.
        lease_time: the longest lease of an old worker, seconds.
    """

    system: SourceSystem
    origin: str
    settings: Config
    lease_time: int

    def plan(self, old: OldRow, existing: NewRow | None, report: Report) -> Move | None:
        """Decide how to move a row; None if the row must stay, which the report then counts.

        Args:
            old: the row.
            existing: the row with the same key in psched's table; None if there is none.
            report: the report that counts the row.
        """
        ours = existing is None or existing.origin == self.origin
        if existing is not None and existing.is_staged and not ours:
            report.refuse(old.key, f"is being moved from elsewhere: {existing.origin}")
        elif is_marked(self.system, old):
            return Move(old, existing or NewRow(old.key), marked=True)
        elif existing is not None and not existing.is_staged:
            report.refuse(old.key, "psched has a schedule with this key already")
        elif self.system.may_be_leased(old, self.lease_time):
            report.running += 1
        else:
            return self._converted(old, existing, report)
        return None

    def _converted(self, old: OldRow, existing: NewRow | None, report: Report) -> Move | None:
        try:
            new = self.system.convert(old, self.settings)
        except InvalidError as error:
            report.refuse(old.key, str(error))
            return None
        report.not_enforced += any(old.values.get(name) is not None for name in NOT_ENFORCED)
        report.overdue += new.overdue
        copy = NewRow.staged(new.row, old.fingerprint(self.origin), self.origin)
        if existing is None:
            return Move(old, copy, new.row)
        if existing.token == copy.token:
            # The existing copy is kept, even if another version of psched converted it differently.
            return Move(old, existing)
        return Move(old, copy, stale=existing)

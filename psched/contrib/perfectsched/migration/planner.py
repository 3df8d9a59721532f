"""Decides for an old row whether and how it is moved to psched's table."""

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
"""The largest number of rows for which a report contains the reason why they cannot be moved."""


@dataclass(slots=True)
class Report:
    """The result of a pass over the old table, or over one page of it; all numbers count rows.

    Attributes:
        seen: rows that were read.
        ready: rows that can be moved.
        running: rows that an old worker may be running, so they cannot be moved yet.
        changed: rows that were not moved, because another client changed them during the pass.
        reasons: by key, why a row cannot be moved; contains the first `_MOST_NAMED` such rows.
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
        """The number of rows that stay in the old table after the pass."""
        return self.running + self.changed + self.refused

    def refuse(self, key: str, reason: str) -> None:
        """Record why a row cannot be moved."""
        if len(self.reasons) < _MOST_NAMED:
            self.reasons[key] = reason
        else:
            self.unnamed += 1

    def add(self, page: "Report") -> None:
        """Add the numbers and the reasons of a page's report to this report."""
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
        old: the old row as it was read.
        copy: the staged copy of the old row; if the old row is marked, psched's row with its key.
        row: the row that the copy becomes; None if the copy is not to be inserted in this pass.
        marked: whether the old row is marked as moved. If so, only two steps are left: the copy is
            activated, if it still exists, and the old row is deleted.
        stale: a copy in psched's table that was made from another state of the old row, and is to
            be deleted; None if there is no such copy.
    """

    old: OldRow
    copy: NewRow
    row: Row | None = None
    marked: bool = False
    stale: NewRow | None = None


@dataclass(frozen=True, slots=True)
class Planner:
    """Decides for each old row whether it is moved, and which row replaces it.

    Attributes:
        system: the old system.
        origin: the old table and its database, as in `NewRow.origin`.
        settings: psched's settings; a row that they forbid is not moved.
        lease_time: the length of an old worker's longest lease, seconds.
    """

    system: SourceSystem
    origin: str
    settings: Config
    lease_time: int

    def plan(self, old: OldRow, existing: NewRow | None, report: Report) -> Move | None:
        """Decide how to move a row; return None if the row must stay in the old table."""
        ours = existing is None or existing.origin == self.origin
        if existing is not None and existing.is_staged and not ours:
            report.refuse(old.key, f"is being moved from elsewhere: {existing.origin}")
        elif is_marked(self.system, old):
            return Move(old, existing or NewRow(old.key), marked=True)
        elif self.is_taken(old, existing):
            report.refuse(old.key, "psched has a schedule with this key already")
        elif self.system.may_be_leased(old, self.lease_time):
            report.running += 1
        else:
            return self._converted(old, existing, report)
        return None

    def is_taken(self, old: OldRow, existing: NewRow | None) -> bool:
        """Whether psched has a schedule with the key of a row that no migration is moving."""
        return existing is not None and not existing.is_staged and not is_marked(self.system, old)

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
            # The copy in the table is used, even if another version of psched has created it.
            return Move(old, existing)
        return Move(old, copy, stale=existing)

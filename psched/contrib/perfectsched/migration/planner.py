"""What to do with one row of the old table, given the row with the same key in psched's table."""

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
"""Rows that a report names one by one."""


@dataclass(slots=True)
class Report:
    """What a pass over the old table, or over a page of it, has found.

    Attributes:
        seen: rows that were read.
        ready: rows that can be moved.
        running: rows that may be leased.
        changed: rows that others changed during the pass.
        reasons: why rows cannot be moved, by key, for the first of these rows.
        unnamed: the number of the other rows that cannot be moved.
        not_enforced: rows with values that psched keeps and does not enforce.
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
        """The number of rows that cannot be moved as they are."""
        return len(self.reasons) + self.unnamed

    @property
    def remaining(self) -> int:
        """The number of rows that stay in the old table."""
        return self.running + self.changed + self.refused

    def refuse(self, key: str, reason: str) -> None:
        """Note a row that cannot be moved."""
        if len(self.reasons) < _MOST_NAMED:
            self.reasons[key] = reason
        else:
            self.unnamed += 1

    def add(self, page: "Report") -> None:
        """Add the report of a further page."""
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
        copy: the staged copy that is wanted; or, if the row is marked, the one that was found.
        row: the row that the copy becomes; None if the copy exists.
        marked: whether the row is marked: what remains is to activate the copy, if it still exists.
        stale: the copy that was found, if it was made of another state of the row.
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
        origin: the old table, as staged copies name it.
        settings: of psched, which converted rows must be valid for.
        lease_time: the longest lease of an old worker, seconds.
    """

    system: SourceSystem
    origin: str
    settings: Config
    lease_time: int

    def plan(self, old: OldRow, existing: NewRow | None, report: Report) -> Move | None:
        """Decide what to do with a row; None if it stays, and the report says why.

        Args:
            old: the row.
            existing: the row with the same key in psched's table.
            report: counts the row.
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
            # Another version of psched may have converted the row differently: its copy stands.
            return Move(old, existing)
        return Move(old, copy, stale=existing)

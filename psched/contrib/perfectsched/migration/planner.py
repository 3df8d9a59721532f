"""What to do with one row of the old table, given what stands under its key in psched's."""

from dataclasses import dataclass, field

from psched.base.errors import InvalidError
from psched.config import Config
from psched.contrib.perfectsched.migration.destination import Copy
from psched.contrib.perfectsched.migration.source_systems import NOT_ENFORCED, Kind, Old, is_marked
from psched.core.model import Row

MOST_NAMED = 1000
"""Rows that are named one by one in a report."""


@dataclass(slots=True)
class Left:
    """What a look at the old table has left there.

    Attributes:
        seen: rows that were looked at.
        ready: rows that can be moved.
        running: rows that may be leased.
        changed: rows that changed under our hands.
        reasons: why others cannot move, by key; the first of them.
        unnamed: rows that cannot move, beyond those.
        idle: rows with what psched keeps and does not act upon.
        late: rows that can be moved, and have waited so long that `Kind.late` concerns them.
    """

    seen: int = 0
    ready: int = 0
    running: int = 0
    changed: int = 0
    reasons: dict[str, str] = field(default_factory=dict)
    unnamed: int = 0
    idle: int = 0
    late: int = 0

    @property
    def refused(self) -> int:
        """Rows that cannot move as they are."""
        return len(self.reasons) + self.unnamed

    @property
    def remaining(self) -> int:
        """Rows that are still in the old table."""
        return self.running + self.changed + self.refused

    def refuse(self, key: str, reason: str) -> None:
        """Note a row that cannot move."""
        if len(self.reasons) < MOST_NAMED:
            self.reasons[key] = reason
        else:
            self.unnamed += 1

    def add(self, page: "Left") -> None:
        """Add what a look at a further page has left."""
        self.seen += page.seen
        self.ready += page.ready
        self.running += page.running
        self.changed += page.changed
        self.idle += page.idle
        self.late += page.late
        self.unnamed += page.unnamed
        for key, reason in page.reasons.items():
            self.refuse(key, reason)


@dataclass(frozen=True, slots=True)
class Move:
    """A row that is to be moved.

    Attributes:
        old: the row, as it was seen.
        copy: its copy as it should be, or as it was found if the row is taken already.
        row: what the copy is made of; None if it is there.
        taken: the row is marked: it only remains to release the copy, if there is one still.
        stale: what is there is the copy of another state of the row.
    """

    old: Old
    copy: Copy
    row: Row | None = None
    taken: bool = False
    stale: Copy | None = None


@dataclass(frozen=True, slots=True)
class Judge:
    """Decides about rows.

    Attributes:
        kind: the old system.
        origin: the old table, as copies name it.
        settings: the installation's.
        lease_time: the longest lease of an old worker, seconds.
    """

    kind: Kind
    origin: str
    settings: Config
    lease_time: int

    def judge(self, old: Old, there: Copy | None, left: Left) -> Move | None:
        """What to do with a row.

        Args:
            old: the row.
            there: what stands under its key in psched's table.
            left: is told, if the row stays.
        """
        ours = there is None or there.origin == self.origin
        if there is not None and there.at_rest and not ours:
            left.refuse(old.key, f"is being moved from elsewhere: {there.origin}")
        elif is_marked(self.kind, old):
            return Move(old, there or Copy(old.key), taken=True)
        elif there is not None and not there.at_rest:
            left.refuse(old.key, "psched has a schedule with this key already")
        elif self.kind.may_be_leased(old, self.lease_time):
            left.running += 1
        else:
            return self._converted(old, there, left)
        return None

    def _converted(self, old: Old, there: Copy | None, left: Left) -> Move | None:
        try:
            new = self.kind.convert(old, self.settings)
        except InvalidError as error:
            left.refuse(old.key, str(error))
            return None
        left.idle += any(old.values.get(name) is not None for name in NOT_ENFORCED)
        left.late += new.late
        copy = Copy.of(new.row, old.fingerprint(self.origin), self.origin)
        if there is None:
            return Move(old, copy, new.row)
        # The copy that was found may be of another version's making: that one is released.
        return Move(old, there) if there.token == copy.token else Move(old, copy, stale=there)

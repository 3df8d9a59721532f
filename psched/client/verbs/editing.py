"""Changes the definitions of schedules, and says what that does to their next runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any, ClassVar

from typing_extensions import override

from psched.base.errors import NotFoundError
from psched.client.access import Access
from psched.client.verbs import Verb
from psched.client.writing import Condition, replace, require, was_replaced
from psched.core.declare import redeclare
from psched.core.model import BEING_DELETED, CANCELLED, FINISHED, MIGRATING, Row
from psched.core.operations.rescheduled import Rescheduled, changes_of, next_runs
from psched.core.selection import STATES

Decide = Callable[[Row], Mapping[str, Any]]
"""Returns the changes of a schedule, given its row as it is stored now."""


@dataclass(frozen=True)
class Edit(Verb[Rescheduled]):
    """Change the definition of a schedule, and say what that does; see `ScheduleCollection.edit`.

    Attributes:
        decide: returns the changes.
    """

    decide: Decide

    name: ClassVar = "edit"
    done: ClassVar = "edited"
    states: ClassVar = STATES - {*BEING_DELETED, MIGRATING}
    unless_named: ClassVar = frozenset({FINISHED, CANCELLED})
    takes_extra_runs: ClassVar = False
    has_preview: ClassVar = True

    @override
    def apply(self, access: Access, key: str, only_if: Condition | None = None) -> Rescheduled:
        made = list[Rescheduled]()

        def change(seen: Row) -> Row | None:
            require(only_if, seen)
            row, outcome = self._edited(access, seen)
            made[:] = [outcome]
            # The order of the options can differ, although nothing was changed.
            same = changed(row, data=seen.data, options=seen.options) == seen
            return None if same and not outcome.changes else row

        replace(access, self.name, key, change, _was_applied)
        return made[0]

    @override
    def preview(self, access: Access, row: Row) -> Rescheduled:
        return self._edited(access, row)[1]

    def _edited(self, access: Access, seen: Row) -> tuple[Row, Rescheduled]:
        _refuse_deleted(seen)
        wanted, now, settings = self.decide(seen), access.store.now(), access.settings
        row = redeclare(seen, wanted, settings, lambda: now) if wanted else seen
        outcome = Rescheduled(
            key=seen.key,
            status=row.state,
            before=next_runs(seen, settings, now),
            after=next_runs(row, settings, now),
            changes=changes_of(seen, row, settings),
        )
        return row, outcome


def modify(access: Access, key: str, decide: Decide | None, changes: Mapping[str, Any]) -> None:
    """Change the definition of a schedule; see `ScheduleCollection.modify`."""

    def change(seen: Row) -> Row | None:
        _refuse_deleted(seen)
        wanted = changes if decide is None else decide(seen)
        if decide is not None and not wanted:
            return None
        return redeclare(seen, wanted, access.settings, access.store.now)

    replace(access, "modify", key, change, _was_applied)


def _refuse_deleted(seen: Row) -> None:
    if seen.status in BEING_DELETED:
        raise NotFoundError(f"the schedule {seen.key!r} is being deleted")


def _was_applied(row: Row, seen: Row, written: Row) -> bool:
    return row.status not in BEING_DELETED and was_replaced(row, seen, written)

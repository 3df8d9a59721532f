"""Changes the definitions of schedules, and says what that does to their next runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

from psched.base.errors import NotFoundError
from psched.client.lost_answers import was_replaced
from psched.client.writer import Condition, Writer, require
from psched.config import Config
from psched.core.declare import redeclare
from psched.core.model import BEING_DELETED, Row
from psched.core.operations.changes.rescheduled import Rescheduled, changes_of, next_runs
from psched.core.store_protocol import Store

Decide = Callable[[Row], Mapping[str, Any]]
"""Returns the changes of a schedule, given its row as it is stored now."""


@dataclass(frozen=True, slots=True)
class Editor:
    """Changes the definitions of the schedules of one store.

    Attributes:
        store: the store that contains the schedules.
        settings: the installation's settings.
        writer: makes the changes.
    """

    store: Store
    settings: Config
    writer: Writer

    def edit(
        self, key: str, decide: Decide, *, dry_run: bool, only_if: Condition | None = None
    ) -> Rescheduled:
        """Change the definition of a schedule; see `ScheduleCollection.edit`."""
        if dry_run:
            row = self.writer.read(key)
            require(only_if, row)
            return self.preview(row, decide)
        made = list[Rescheduled]()

        def change(seen: Row) -> Row | None:
            require(only_if, seen)
            row, outcome = self._edited(seen, decide)
            made[:] = [outcome]
            # The order of the options can differ, although nothing was changed.
            same = changed(row, data=seen.data, options=seen.options) == seen
            return None if same and not outcome.changes else row

        def was_applied(row: Row, seen: Row, written: Row) -> bool:
            return row.status not in BEING_DELETED and was_replaced(row, seen, written)

        self.writer.replace("edit", key, change, was_applied)
        return made[0]

    def preview(self, row: Row, decide: Decide) -> Rescheduled:
        """What `edit` would do to a row; the errors are the same."""
        return self._edited(row, decide)[1]

    def _edited(self, seen: Row, decide: Decide) -> tuple[Row, Rescheduled]:
        if seen.status in BEING_DELETED:
            raise NotFoundError(f"the schedule {seen.key!r} is being deleted")
        wanted, now = decide(seen), self.store.now()
        row = redeclare(seen, wanted, self.settings, lambda: now) if wanted else seen
        outcome = Rescheduled(
            key=seen.key,
            status=row.state,
            before=next_runs(seen, self.settings, now),
            after=next_runs(row, self.settings, now),
            changes=changes_of(seen, row, self.settings),
        )
        return row, outcome

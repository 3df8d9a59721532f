"""Changes the definitions of schedules, and says what that does to their next runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import cache, partial
from typing import Any, ClassVar

from typing_extensions import override

from psched.base.errors import InvalidError, NotFoundError, StoreError
from psched.client.access import Access, Condition, LostAnswers, replace, require, was_replaced
from psched.client.verbs import Verb
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
    takes_templates: ClassVar = True
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
        _refuse(seen)
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
        _refuse(seen)
        wanted = changes if decide is None else decide(seen)
        if decide is not None and not wanted:
            return None
        return redeclare(seen, wanted, access.settings, access.store.now)

    replace(access, "modify", key, change, _was_applied)


def try_to_modify(access: Access, seen: Sequence[tuple[Row, Mapping[str, Any]]]) -> Sequence[bool]:
    """Change the definitions of many rows, as they were read, in one transaction.

    Return for each whether it was changed. If not, `ScheduleCollection.modify` finds out why: the
    row may have changed since it was read, a change may be invalid, the store may be unavailable or
    unable to change many schedules at once, or the answer to the change may be lost.
    """
    now = cache(access.store.now)
    try:
        changes = [(row, redeclare(row, new, access.settings, now)) for row, new in seen]
        done = access.send(partial(_replace_many, access, changes, LostAnswers()))
    except (InvalidError, StoreError):
        # One of the changes may be the cause. The caller tries each by itself, which succeeds,
        # or raises the error of that change. A change that was applied is not lost.
        return [False] * len(seen)
    applied = [change for change, is_done in zip(changes, done, strict=True) if is_done]
    access.wake_for(row for _, row in applied)
    access.auditor.record("modify", applied)
    access.spread(row for _, row in applied)
    return done


def _replace_many(
    access: Access, changes: Sequence[tuple[Row, Row]], lost: LostAnswers[None]
) -> Sequence[bool]:
    if lost:
        found = access.store.look([seen.key for seen, _ in changes])
        applied = [
            seen.key in found and was_replaced(found[seen.key], seen, new) for seen, new in changes
        ]
        if any(applied):
            return applied
    return lost.send(None, lambda: access.store.replace_many(changes))


def _refuse(seen: Row) -> None:
    if seen.status in BEING_DELETED:
        raise NotFoundError(f"the schedule {seen.key!r} is being deleted")
    if seen.template is not None:
        whole = seen.template
        raise InvalidError(
            "key", f"{seen.key!r} is as {whole!r} says; edit {whole!r}, for each host"
        )


def _was_applied(row: Row, seen: Row, written: Row) -> bool:
    return row.status not in BEING_DELETED and was_replaced(row, seen, written)

"""Leaves out the next occurrences of schedules."""

from typing import ClassVar

from typing_extensions import override

from psched.client.access import Access, Condition, Recorded, replace, require, was_replaced
from psched.client.verbs import Verb, records_of
from psched.core.history.protocol import RunSelection
from psched.core.history.records import Fate, Skipped
from psched.core.model import PAUSED, RUNNING, WAITING, Row
from psched.core.operations.rescheduled import Rescheduled, next_runs
from psched.core.operations.skipping import check_count, reason_of, skip


class Skip(Verb[Rescheduled]):
    """Leave out the next occurrences of a schedule; see `Schedule.skip`.

    It is refused while an occurrence runs.
    """

    name: ClassVar = "skip"
    done: ClassVar = "skipped"
    states: ClassVar = frozenset({WAITING, RUNNING, PAUSED})
    takes_one_shots: ClassVar = False
    has_preview: ClassVar = True
    leaves_changed: ClassVar = False

    def __init__(self, number: int = 1) -> None:
        self._number = check_count(number)

    @override
    def apply(self, access: Access, key: str, only_if: Condition | None = None) -> Rescheduled:
        owner, made = access.draw_nonce(), list[tuple[Rescheduled, bool]]()

        def change(seen: Row) -> Recorded:
            require(only_if, seen)
            now = access.store.now()
            row, spans, outcome = self._skipped(access, seen, now)
            records = records_of(access, seen, spans, owner=owner, now=now)
            made[:] = [(outcome, bool(records))]
            return Recorded(row, records)

        def was_applied(row: Row, seen: Row, written: Row) -> bool:
            outcome, is_recorded = made[0]
            if is_recorded and outcome.skipped and access.store.recorded_changes is not None:
                # The row alone cannot tell whether somebody else has skipped the same occurrences.
                return _is_recorded(access, seen.key, outcome.skipped, owner)
            return was_replaced(row, seen, written)

        replace(access, self.name, key, change, was_applied)
        return made[0][0]

    @override
    def preview(self, access: Access, row: Row) -> Rescheduled:
        return self._skipped(access, row, access.store.now())[2]

    def _skipped(
        self, access: Access, seen: Row, now: float
    ) -> tuple[Row, tuple[Skipped, ...], Rescheduled]:
        reason = reason_of(access.auditor.author.name, access.auditor.note)
        row, spans = skip(seen, access.settings, self._number, now, reason=reason)
        outcome = Rescheduled(
            key=seen.key,
            status=row.status,
            before=next_runs(seen, access.settings, now),
            after=next_runs(row, access.settings, now),
            skipped=spans[-1],
        )
        return row, spans, outcome


def _is_recorded(access: Access, key: str, skipped: Skipped, owner: str) -> bool:
    if (history := access.store.history) is None:
        return False
    selection = RunSelection(key=key, fates=frozenset({Fate.SKIPPED}), covering=skipped.first)
    return any(record.owner == owner for record in history.runs(selection))

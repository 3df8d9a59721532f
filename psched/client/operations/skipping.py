"""Leaves out the next occurrences of schedules."""

from collections.abc import Callable
from dataclasses import dataclass

from psched.client.auditor import Auditor
from psched.client.lost_answers import was_replaced
from psched.client.operations.skipped_records import records_of
from psched.client.writer import Condition, Recorded, Writer, require
from psched.config import Config
from psched.core.history.protocol import KeepsHistory, RunSelection
from psched.core.history.records import Fate, Skipped
from psched.core.model import PAUSED, RUNNING, WAITING, Row
from psched.core.operations.changes.rescheduled import Rescheduled, next_runs
from psched.core.operations.changes.skipping import check_count, reason_of, skip
from psched.core.store_protocol import ReplacesAndRecords, Store

CAN_BE_SKIPPED = frozenset({WAITING, RUNNING, PAUSED})
"""The states of rows that a skip selects. It is refused while an occurrence runs."""


@dataclass(frozen=True, slots=True)
class Skipper:
    """Leaves out the next occurrences of the schedules of one store.

    Attributes:
        store: the store that contains the schedules.
        settings: the installation's settings.
        auditor: knows who makes the changes, and why.
        writer: makes the changes.
        draw_nonce: returns a new random text at each call.
    """

    store: Store
    settings: Config
    auditor: Auditor
    writer: Writer
    draw_nonce: Callable[[], str]

    def skip(
        self, key: str, number: int, *, dry_run: bool, only_if: Condition | None = None
    ) -> Rescheduled:
        """Skip the next occurrences of a schedule; see `Schedule.skip`."""
        check_count(number)
        if dry_run:
            row = self.writer.read(key)
            require(only_if, row)
            return self.preview(row, number)
        owner, made = self.draw_nonce(), list[tuple[Rescheduled, bool]]()

        def change(seen: Row) -> Recorded:
            require(only_if, seen)
            now = self.store.now()
            row, spans, outcome = self._skipped(seen, number, now)
            host = self.auditor.author.host
            records = records_of(
                self.store, self.settings, seen, spans, owner=owner, host=host, now=now
            )
            made[:] = [(outcome, bool(records))]
            return Recorded(row, records)

        def was_applied(row: Row, seen: Row, written: Row) -> bool:
            outcome, is_recorded = made[0]
            if is_recorded and outcome.skipped and isinstance(self.store, ReplacesAndRecords):
                # The row alone cannot tell whether somebody else has skipped the same occurrences.
                return self._is_recorded(seen.key, outcome.skipped, owner)
            return was_replaced(row, seen, written)

        self.writer.replace("skip", key, change, was_applied)
        return made[0][0]

    def preview(self, row: Row, number: int) -> Rescheduled:
        """What `skip` would do to a row; the errors are the same."""
        return self._skipped(row, check_count(number), self.store.now())[2]

    def _skipped(
        self, seen: Row, number: int, now: float
    ) -> tuple[Row, tuple[Skipped, ...], Rescheduled]:
        reason = reason_of(self.auditor.author.name, self.auditor.note)
        row, spans = skip(seen, self.settings, number, now, reason=reason)
        outcome = Rescheduled(
            key=seen.key,
            status=row.status,
            before=next_runs(seen, self.settings, now),
            after=next_runs(row, self.settings, now),
            skipped=spans[-1],
        )
        return row, spans, outcome

    def _is_recorded(self, key: str, skipped: Skipped, owner: str) -> bool:
        history: object = self.store
        if not isinstance(history, KeepsHistory):
            return False
        selection = RunSelection(key=key, fates=frozenset({Fate.SKIPPED}), covering=skipped.first)
        return any(record.owner == owner for record in history.runs(selection))

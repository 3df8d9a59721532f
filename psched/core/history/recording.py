"""Adds to a settlement the records that the store writes with it."""

from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

from psched.core.columns import annotation
from psched.core.history.records import FAILURES, Attempt, Fate, RunRecord
from psched.core.history.store_clock import StoreClock
from psched.core.model import Row, Settlement


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """Creates the records of one worker.

    Attributes:
        host: the name of the worker's host.
        generation: the number of the worker's generation; None if a program polls by itself.
        clock: the store's clock.
    """

    host: str
    generation: int | None
    clock: StoreClock

    def with_records(
        self,
        settlement: Settlement,
        leased: Row,
        attempt: Attempt | None,
        *,
        history: str,
    ) -> Settlement:
        """Add its records to a settlement.

        Args:
            settlement: the end of the lease.
            leased: the row as it was claimed.
            attempt: the attempt that has ended; None if nothing ran.
            history: the setting of this name.
        """
        if history == "none":
            return settlement
        records = []
        cursor = leased.next_time
        if cursor is None and leased.next_run_time is not None:
            cursor = leased.next_run_time  # the row had no scheduled time yet
        if (attempt is not None or settlement.fate is not None) and cursor is not None:
            records.append(self.record(leased, attempt, cursor, settlement))
        records += (
            changed(
                self.record(leased, None, skipped.first, settlement),
                until=None if skipped.until == skipped.first else skipped.until,
                count=skipped.count,
                fate=skipped.fate,
                reason=skipped.reason,
                attempt=0,
            )
            for skipped in settlement.skipped
        )
        if history == "failures":
            records = [each for each in records if _is_failure(each)]
        return changed(settlement, records=tuple(records)) if records else settlement

    def record(
        self,
        leased: Row,
        attempt: Attempt | None,
        scheduled_time: int,
        settlement: Settlement | None = None,
    ) -> RunRecord:
        """Create the record of an attempt, or of what became of an occurrence that did not run.

        Args:
            leased: the row as it was claimed.
            attempt: the attempt that has ended; None if nothing ran.
            scheduled_time: the scheduled time of the occurrence.
            settlement: the end of the lease; None if the lease was lost.
        """
        due = leased.next_run_time
        reason = None if settlement is None else settlement.reason
        about: dict[str, Any] = {
            "key": leased.key,
            "type": leased.type,
            "label": annotation(leased, "label") if leased.options else None,
            "scheduled_time": scheduled_time,
            "owner": leased.owner or "",
            "fence": leased.fence,
            "host": self.host,
            "generation": self.generation,
            # A row that plain SQL has inserted without a time has been due since 1970.
            "due": due * 1000 if due else None,
            "fate": None if settlement is None else settlement.fate,
        }
        if attempt is None:
            return RunRecord(**about, ended=self.clock.milliseconds(), reason=reason)
        return RunRecord(
            **about,
            attempt=leased.attempt,
            pid=attempt.pid,
            started=attempt.started,
            ended=attempt.ended,
            outcome=attempt.outcome,
            reason=attempt.reason or reason,
            exit_status=attempt.exit_status,
            exit_signal=attempt.exit_signal,
            cpu_ms=attempt.cpu_ms,
            peak_kb=attempt.peak_kb,
            out_of_memory=attempt.out_of_memory,
            error=attempt.error,
            result=attempt.result,
        )


def _is_failure(record: RunRecord) -> bool:
    """Whether the setting ``history: failures`` keeps a record."""
    if record.outcome is None:
        return record.fate is not Fate.FINISHED
    return record.outcome in FAILURES or record.fate not in {None, Fate.FINISHED}

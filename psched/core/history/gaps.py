"""Gaps in the run history: records that a worker could not write, as its notes tell.

A worker whose records cannot be written for now notes in the audit trail from which scheduled time
on they wait, and later how many of them are lost. If it is killed meanwhile, its note stays open.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from psched.core.history.changes import values
from psched.core.history.records import GONE_AFTER, AuditRecord, WorkerRecord

GAP = "gap"
"""The action of a note in the audit trail; its key is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Records of one worker that were not written.

    Attributes:
        nonce: the nonce of the worker.
        first: the earliest scheduled time of the records that wait, in Unix seconds.
        last: the latest scheduled time of those that are lost; None while some wait.
        lost: how many are lost.
    """

    nonce: str
    first: int
    last: int | None = None
    lost: int = 0

    def note(self, host: str) -> AuditRecord:
        """The record of the gap in the audit trail; the host is that of the worker."""
        about = {"nonce": self.nonce, "first": self.first, "last": self.last, "lost": self.lost}
        return AuditRecord(
            key="", action=GAP, user="psched", host=host, program="psched", after=json.dumps(about)
        )


def ranges(
    notes: Iterable[AuditRecord], workers: Iterable[WorkerRecord], now: float
) -> Sequence[tuple[int, float]]:
    """The ranges of scheduled times, in Unix seconds, of which records may be missing."""
    seen = {worker.nonce: worker.seen for worker in workers}
    found: list[tuple[int, float]] = []
    written = set()
    for note in notes:
        gap = values(note.after)
        nonce, first, last = str(gap.get("nonce")), gap.get("first"), gap.get("last")
        if not isinstance(first, int):
            continue
        if isinstance(last, int):
            written.add(nonce)
            if gap.get("lost"):
                found.append((first, last))
        elif nonce not in written:
            gone = seen.get(nonce, (note.time or 0) // 1000) + GONE_AFTER
            found.append((first, inf if gone > now else gone))
    return found

"""Reads what the audit trail tells: changes of schedules, and gaps in the run history.

A worker whose records cannot be written for now notes in the audit trail from which scheduled time
on they wait, and later how many of them are lost. If it is killed meanwhile, its note stays open.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import lru_cache
from math import inf
from typing import Any

from psched.core.history.records import GONE_AFTER, AuditRecord, WorkerRecord
from psched.core.model import Row

GAP = "gap"
"""The action of a note in the audit trail; its key is empty."""

_DEFINING = frozenset({"type", "cron", "timezone", "delay", "options"})
"""The columns that decide when a schedule runs, and on which workers."""


def time_of(change: AuditRecord) -> float:
    """When a change was made, in Unix seconds."""
    return (change.time or 0) / 1000


@lru_cache(maxsize=16)  # those who read a change ask for its columns one by one
def values(text: str | None) -> Mapping[str, Any]:
    """The columns in `AuditRecord.before` or `AuditRecord.after`; none if they cannot be read."""
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def number_in(text: str | None, name: str) -> int | None:
    """A column of `AuditRecord.before` or `AuditRecord.after`; None if it is no number."""
    found = values(text).get(name)
    return found if isinstance(found, int) else None


def row_before(row: Row, change: AuditRecord) -> Row:
    """The row before a change, without the columns that the audit trail does not have."""
    columns = {name: value for name, value in values(change.before).items() if name in _DEFINING}
    if isinstance(options := columns.get("options"), Mapping):
        columns["options"] = json.dumps(options)
    return changed(row, **columns)


def changes_trigger(change: AuditRecord) -> bool:
    """Whether a change of an existing schedule has changed its trigger."""
    before, after = values(change.before), values(change.after)
    if any(name in after and before.get(name) != after[name] for name in ("cron", "timezone")):
        return change.before is not None
    has_options = "options" in before and "options" in after
    return has_options and setting(before, "dst_policy") != setting(after, "dst_policy")


def setting(columns: Mapping[str, Any], name: str) -> object:
    """A setting of the schedule itself; None if there is none, or none is known."""
    options = columns.get("options")
    if isinstance(options, str):
        options = values(options)
    return options.get(name) if isinstance(options, Mapping) else None


def who(change: AuditRecord) -> str:
    """Who has made a change, and with which program."""
    return f"by {change.user} on {change.host} ({change.program})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Records of one worker that were not written.

    ``first`` is the earliest scheduled time of the records that wait, in Unix seconds, and ``last``
    the latest one of those that are lost; None while some wait.
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

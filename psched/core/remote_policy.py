"""Application of the policy to rows with users' triggers, in a process other than the worker.

The worker sends a `PolicyRequest` to the process that loads the trigger (`runner.runner`). That
process applies `psched.core.policy` to the row, as the worker itself does for all other rows, and
sends the decision back. The worker checks the answer (`parse_answer`), because that process has run
the user's code.
"""

import os
import resource
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from dataclasses import fields as fields_of
from dataclasses import replace as changed
from functools import cache
from pathlib import Path
from typing import Any

from psched.base.loader import loading_by
from psched.base.texts import LONGEST, cut, visible
from psched.config import Config
from psched.core.columns import LATEST_TIME, decode, encode
from psched.core.history.records import FOREVER, MOST_COUNTED, SKIPPED, Fate, Skipped
from psched.core.model import (
    NO_PAUSE,
    STATUSES,
    Decision,
    Finish,
    Quarantine,
    ReasonCode,
    Release,
    Retry,
    Row,
    Settlement,
)
from psched.core.operations.pauses import PastPause
from psched.core.policy import Run, after_claim, after_run, quarantine
from psched.triggers.custom import load_here

_MEMORY = 2**30
"""The most bytes of memory that a process with users' triggers can add to its initial memory."""

_LARGEST = 10**12
"""The largest valid number in an answer, except for times. Every store can store it."""

_FIELDS = frozenset(field.name for field in fields_of(Settlement)) - {
    "key", "token", "version", "seen_status", "records",
}  # fmt: skip
"""The fields of a settlement that an answer contains; the worker sets the others itself."""

_MOST_SPANS = 3
"""The most spans of dropped occurrences in a settlement: one of a pause, and those that
`psched.core.operations.pausing` describes."""

_SPAN = frozenset(field.name for field in fields_of(Skipped))
"""The fields of a span of dropped occurrences."""

_DROPPED = {*SKIPPED, Fate.CANCELLED}
"""The fates that dropped occurrences can have."""


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """A row to which the policy is applied.

    Attributes:
        row: the row as it is stored now.
        now: the time of the store's clock.
        leased: the row as it was claimed and run; None if the row has just been claimed.
        decision: the result of the run; None if the row has just been claimed.
        pauses: when the type of a row that has just been claimed was paused.
    """

    row: Row
    now: float
    leased: Row | None = None
    decision: Decision | None = None
    pauses: tuple[PastPause, ...] = ()

    def message(self) -> dict[str, Any]:
        """The request as a message, without what the policy does not need, such as the payload."""
        leased = None if self.leased is None else _columns(self.leased)
        decision = self.decision
        return {
            "row": _columns(self.row),
            "now": self.now,
            "leased": leased,
            "retry": [*astuple(decision)] if isinstance(decision, Retry) else None,
            "release": [*astuple(decision)] if isinstance(decision, Release) else None,
            "quarantine": decision.reason if isinstance(decision, Quarantine) else None,
            "pauses": [[*pause] for pause in self.pauses],
        }

    def quarantine(self, why: str) -> Settlement:
        """The settlement that quarantines the row if its trigger cannot be called."""
        # After a run, the trigger is called only if the occurrence has succeeded or was given up
        # (see `policy.after_run`). So we clear the time: the occurrence must not run again.
        if self.leased is None:
            return quarantine(self.row, why)
        fate = Fate.FINISHED if isinstance(self.decision, Finish) else Fate.GAVE_UP
        return changed(quarantine(changed(self.row, next_time=None), why), fate=fate)


def answer_request(message: Mapping[str, Any], settings: Config) -> dict[str, Any]:
    """Apply the policy to a `PolicyRequest.message`. The answer is a message for `parse_answer`."""
    limit_memory()
    row, now, leased = Row(**message["row"]), message["now"], message["leased"]
    with loading_by(load_here):
        if leased is None:
            pauses = [PastPause(*each) for each in message["pauses"]]
            decided = after_claim(row, settings, now, pauses)
        else:
            decided = after_run(Row(**leased), row, _decision(message), settings, now)
    if isinstance(decided, Run):
        return {"run": True}
    fields = {name: getattr(decided, name) for name in _FIELDS}
    return {"settle": fields | {"skipped": [asdict(each) for each in decided.skipped]}}


def parse_answer(request: PolicyRequest, message: object) -> Settlement | None:
    """The settlement in an answer; None if the answer is to run the row's occurrence."""
    match message:
        case {"run": True} if request.leased is None:
            return None
        case {"settle": dict(fields)}:
            return _settlement(request.row, fields)
        case _:
            raise ValueError("it is not a valid answer")


def _decision(message: Mapping[str, Any]) -> Decision:
    if message["quarantine"] is not None:
        return Quarantine(message["quarantine"])
    if message["release"] is not None:
        return Release(*message["release"])
    return Finish() if message["retry"] is None else Retry(*message["retry"])


@cache
def limit_memory() -> None:
    """Limit this process's memory, so that a trigger cannot use up the memory of the host."""
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + _MEMORY
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        if most == resource.RLIM_INFINITY or limit < most:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    with suppress(OSError):
        # This makes the kernel kill this process first if the host runs out of memory anyway.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _columns(row: Row) -> dict[str, Any]:
    columns = {name: getattr(row, name) for name in Row.__slots__}
    options = encode("options", decode("options", row.options)) if row.options else None
    # We cut the reason, because a reason that was written by plain SQL can have any length.
    reason = None if row.reason is None else cut(row.reason)
    return columns | {"data": None, "options": options, "settled_by": None, "reason": reason}


def _settlement(row: Row, given: dict[str, Any]) -> Settlement:
    time, status = given.get("next_time"), given.get("status")
    fate, spans = given.get("fate"), given.get("skipped")
    decided, moved = given.get("decided_until"), given.get("moved_at")
    valid = (
        given.keys() == _FIELDS,
        time in (None, row.next_time) or _is_number(time, LATEST_TIME),
        given.get("not_before") is None or _is_number(given["not_before"], _LARGEST),
        given.get("retain") is None or _is_number(given["retain"], _LARGEST),
        _is_number(given.get("wait"), _LARGEST),
        _is_number(given.get("attempt"), abs(row.attempt) + 1),
        decided in (None, row.decided_until) or _is_number(decided, LATEST_TIME),
        moved in (None, row.moved_at) or _is_number(moved, LATEST_TIME),
        given.get("reason_code") in (None, row.reason_code, *ReasonCode),
        # A pause can only go on, or end.
        all(given.get(name) in (None, getattr(row, name)) for name in NO_PAUSE),
        isinstance(given.get("rest"), bool),
        isinstance(given.get("remove"), bool),
        isinstance(status, str) and status in {*STATUSES, row.status},
        _is_reason(given.get("reason")),
        fate is None or (isinstance(fate, str) and fate in {*Fate}),
        isinstance(spans, list) and len(spans) <= _MOST_SPANS and all(map(_is_span, spans)),
    )
    if not all(valid):
        raise ValueError("it is not a valid settlement")
    skipped = tuple(Skipped(**{**span, "fate": Fate(span["fate"])}) for span in spans or ())
    return Settlement.of(
        row, **{**given, "fate": None if fate is None else Fate(fate), "skipped": skipped}
    )


def _is_span(value: object) -> bool:
    """Whether a value describes a span of dropped occurrences."""
    if not isinstance(value, dict) or value.keys() != _SPAN:
        return False
    first, until, count, fate = value["first"], value["until"], value["count"], value["fate"]
    return (
        isinstance(fate, str)
        and fate in _DROPPED
        and _is_number(first, LATEST_TIME)
        and (until in (None, FOREVER) or _is_number(until, LATEST_TIME, least=first))
        and (count is None or _is_number(count, MOST_COUNTED, least=1))
        and _is_reason(value["reason"])
    )


def _is_reason(value: object) -> bool:
    return value is None or (
        isinstance(value, str) and len(value) <= LONGEST and visible(value) == value
    )


def _is_number(value: object, most: int, *, least: int = 0) -> bool:
    return type(value) is int and least <= value <= most

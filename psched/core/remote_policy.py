"""Judging a row whose trigger is of the user's own, in another process than the worker's.

The worker sends the row; the process that asks the trigger (`runner.runner`) judges the row by
`policy`, as the worker does with all others, and sends the verdict back. What it sends is
checked here before the worker acts on it: that process has run the user's code.
"""

import os
import resource
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import fields as fields_of
from dataclasses import replace as changed
from functools import cache
from pathlib import Path
from typing import Any

from psched.base.texts import cut, visible
from psched.config import Config
from psched.core.columns import LATEST_TIME, decode, encode
from psched.core.model import (
    STATUSES,
    Decision,
    Finish,
    Quarantine,
    Release,
    Retry,
    Row,
    Settlement,
)
from psched.core.policy import Run, after_claim, after_run, quarantine
from psched.triggers.custom import load_here, loading_by

_MEMORY = 2**30
"""Bytes that a process which asks triggers may use besides what it was forked with."""

_LARGEST = 10**12
"""Of any number in a verdict but the next time; every store has room for it."""

_FIELDS = frozenset(field.name for field in fields_of(Settlement)) - {
    "key", "token", "version", "seen_status",
}  # fmt: skip
"""What a verdict says of a settlement; the rest is the lease's."""


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """What is to be judged.

    Attributes:
        row: as it stands now.
        now: the store's clock.
        leased: as it was claimed and run; None: it has just been claimed.
        decision: what came out of the run.
    """

    row: Row
    now: float
    leased: Row | None = None
    decision: Decision | None = None

    def message(self) -> dict[str, Any]:
        """The request as a message, without what no verdict depends on, such as the payload."""
        leased = None if self.leased is None else _columns(self.leased)
        decision = self.decision
        return {
            "row": _columns(self.row),
            "now": self.now,
            "leased": leased,
            "retry": [decision.wait, decision.reason] if isinstance(decision, Retry) else None,
            "release": isinstance(decision, Release),
            "quarantine": decision.reason if isinstance(decision, Quarantine) else None,
        }

    def quarantine(self, why: str) -> Settlement:
        """The verdict on a row whose trigger cannot be asked."""
        # A trigger is asked after a run only when the occurrence is over: see `policy.after_run`.
        row = self.row if self.leased is None else changed(self.row, next_time=None)
        return quarantine(row, why)


def answer_request(message: Mapping[str, Any], settings: Config) -> dict[str, Any]:
    """Apply the policy to a `PolicyRequest.message`; the result is a message for `parse_answer`."""
    limit_memory()
    row, now, leased = Row(**message["row"]), message["now"], message["leased"]
    with loading_by(load_here):
        if leased is None:
            verdict = after_claim(row, settings, now)
        else:
            verdict = after_run(Row(**leased), row, _decision(message), settings, now)
    if isinstance(verdict, Run):
        return {"run": True}
    return {"settle": {name: getattr(verdict, name) for name in _FIELDS}}


def parse_answer(case: PolicyRequest, message: object) -> Settlement | None:
    """What was judged about a case; None: its occurrence is to be run.

    Raises:
        ValueError: that is none.
    """
    match message:
        case {"run": True} if case.leased is None:
            return None
        case {"settle": dict(fields)}:
            return _settlement(case.row, fields)
        case _:
            raise ValueError("it is no verdict")


def _decision(message: Mapping[str, Any]) -> Decision:
    if message["quarantine"] is not None:
        return Quarantine(message["quarantine"])
    if message["release"]:
        return Release()
    return Finish() if message["retry"] is None else Retry(*message["retry"])


@cache
def limit_memory() -> None:
    """Bound what a trigger does to others: this process runs out of memory before the host does."""
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + _MEMORY
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        if most == resource.RLIM_INFINITY or limit < most:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    with suppress(OSError):
        # The kernel's first choice, should the host run out of memory nevertheless.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _columns(row: Row) -> dict[str, Any]:
    columns = {name: getattr(row, name) for name in Row.__slots__}
    options = encode("options", decode("options", row.options)) if row.options else None
    # By plain SQL these can be of any length.
    reason = None if row.reason is None else cut(row.reason)
    return columns | {"data": None, "options": options, "settled_by": None, "reason": reason}


def _settlement(row: Row, said: dict[str, Any]) -> Settlement:
    time, status, reason = said.get("next_time"), said.get("status"), said.get("reason")
    attempts = abs(row.attempt) + 1
    fits = (
        said.keys() == _FIELDS,
        time in (None, row.next_time) or _is_number(time, LATEST_TIME),
        said.get("not_before") is None or _is_number(said["not_before"], _LARGEST),
        said.get("retain") is None or _is_number(said["retain"], _LARGEST),
        _is_number(said.get("wait"), _LARGEST),
        _is_number(said.get("attempt"), attempts, least=-attempts),
        isinstance(said.get("rest"), bool),
        isinstance(said.get("remove"), bool),
        isinstance(status, str) and status in {*STATUSES, row.status},
        reason is None or (isinstance(reason, str) and visible(reason) == reason),
    )
    if not all(fits):
        raise ValueError("it is no settlement")
    return Settlement.of(row, **said)


def _is_number(value: object, most: int, *, least: int = 0) -> bool:
    return type(value) is int and least <= value <= most

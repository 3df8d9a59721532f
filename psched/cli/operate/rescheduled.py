"""Shows what a change by hand does to a schedule: the changed fields, and its next runs."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from psched.base.texts import cut, visible
from psched.cli.output import one_line
from psched.cli.time_format import format_span, format_time, local_times
from psched.client.selected import Outcome
from psched.core.history.redaction import Redaction
from psched.core.model import PAUSED
from psched.core.operations.rescheduled import Rescheduled
from psched.core.preview import UpcomingTime

_LONGEST = 200
"""The most characters of a value that are shown."""

_TIMES = ("next_time", "next_run_time")
"""The fields that are instants."""

_WITHOUT_DEFAULT = (*_TIMES, "cron", "label", "note")
"""The fields of which the settings have no default."""


def lines_of(outcome: Outcome | None, redaction: Redaction) -> Iterator[str]:
    """The lines about a schedule that was skipped or edited."""
    if not isinstance(outcome, Rescheduled) or outcome.changes_nothing:
        return
    if (skipped := outcome.skipped) is not None:
        more = {1: "", 2: " and the next one"}
        number = skipped.count or 1
        others = more.get(number, f" and the next {number - 1}")
        yield f"left out: {format_time(skipped.first)}{others}"
    for name, change in outcome.changes.items():
        old, new = (_value(name, redaction.value({name: each})[name]) for each in change)
        yield f"{name}: {old} -> {new}"
    before, after = _runs(outcome.before), _runs(outcome.after)
    if before != after:
        yield f"next was: {before}"
    paused = " (it is paused)" if outcome.status == PAUSED else ""
    yield f"next: {after}{paused}"


def _runs(upcoming: Sequence[UpcomingTime]) -> str:
    runs = [each for each in upcoming if each.run_at is not None]
    return ", ".join(_run(each) for each in runs) or "none"


def _run(each: UpcomingTime) -> str:
    notes = [one_line(local_times(each.note))] if each.note else []
    if each.run_at is not None and each.run_at > each.time:
        notes.insert(0, f"starts {format_span(each.run_at - each.time)} later")
    return format_time(each.time) + (f" ({'; '.join(notes)})" if notes else "")


def _value(name: str, value: Any) -> str:  # noqa: ANN401  # a field of any type
    if value is None:
        return "(none)" if name in _WITHOUT_DEFAULT else "(default)"
    if name in _TIMES and isinstance(value, int):
        return format_time(value)
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return visible(cut(text, _LONGEST))

"""What the pages call the fates of runs: a few kinds, each with a colour, a shape and words."""

from collections.abc import Callable, Mapping

from psched.cli.output import one_line
from psched.cli.shown import result
from psched.cli.time_format import format_took, local_times
from psched.core.history.records import SKIPPED, Fate, Outcome
from psched.core.history.run import Run
from psched.reports.redaction import Redaction

KINDS: Mapping[str, str] = {
    "finished": "finished",
    "failed": "failed",
    "retried": "failed, tried again",
    "stopped": "stopped",
    "released": "interrupted",
    "skipped": "did not run",
    "late": "late",
    "running": "running",
    "planned": "planned",
    "paused": "paused",
    "clock": "clock change",
}
"""The words of each kind. templates/icons.html has their shapes, and style.css their colours."""

_LONGEST = 300  # the most characters of a reason beside a mark

_STOPPED = {Fate.CANCELLED, Fate.STOPPED}

KIND_OF_STATUS: Mapping[str, str] = {
    "running": "running",
    "due": "late",
    "failing": "failed",
    "failed": "failed",
    "quarantined": "failed",
    "expired": "failed",
    "cancelled": "stopped",
    "stopping": "stopped",
    "paused": "paused",
    "finished": "finished",
    "waiting": "planned",
}
"""The kind whose icon stands before the status of a schedule."""


def kind_of(run: Run) -> str:
    """The kind of a record of the run history."""
    if run.fate in SKIPPED and run.outcome is None:
        return "skipped"
    if run.outcome == Outcome.FINISHED or (run.outcome is None and run.fate == Fate.FINISHED):
        return "finished"
    if run.outcome == Outcome.RELEASED:
        return "released"
    if run.outcome == Outcome.CANCELLED or run.fate in _STOPPED:
        return "stopped"
    return "retried" if run.fate is None else "failed"


def told(run: Run, clock: Callable[[float], str] | None, redaction: Redaction) -> str:
    """What became of a run, in one line beside its mark; ``clock`` formats when, if it is told."""
    began = run.scheduled_time if run.outcome is None else run.record.began / 1000
    parts = [result(run) if clock is None else f"{result(run)} {clock(began)}"]
    if run.attempt > 1:
        parts.append(f"attempt {run.attempt}")
    if run.outcome is not None and run.took is not None:
        parts.append(f"took {format_took(run.took)}")
    if (late := late_of(run)) >= 1:
        parts.append(f"started {format_took(late)} late")
    if run.count is not None and run.count > 1:
        parts.append(f"{run.count} of them")
    text = ", ".join(parts)
    if run.reason:
        reason = redaction.text(run.reason)[:_LONGEST]
        text = f"{text}: {one_line(local_times(reason))}"
    return text


def late_of(run: Run) -> float:
    """By how many seconds a run started later than it could have; 0 if that is not known."""
    if run.started is None or run.due is None:
        return 0.0
    return max(0.0, run.started - run.due)

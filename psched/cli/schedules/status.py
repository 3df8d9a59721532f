"""The status of a schedule as people see it, and that of its next runs."""

from collections.abc import Callable

from psched.cli.time_format import format_overdue, format_time, short_time
from psched.core.history.records import Fate
from psched.core.history.run import Run
from psched.core.model import (
    CANCELLING,
    DELETING,
    ENDED,
    FINISHING,
    PAUSED,
    RUNS_NO_MORE,
    STOPPING,
    WAITING,
    Pause,
    Row,
)
from psched.core.preview import UpcomingTime

DUE = "due"
"""The shown status of a waiting row that a worker can start now."""

FAILING = "failing"
"""The shown status of a schedule that waits for its next run, and whose last run was given up."""

STOPPED_AS = (STOPPING, CANCELLING, DELETING, FINISHING)
"""The statuses of a row whose task is being stopped; `STOPPING` is shown for each."""


def shown_status(row: Row, now: float, last: Run | None = None) -> str:
    """The status of a row: ``due``, ``running``, ``failing``, ``stopping`` or what it holds."""
    # A running task is not due before the end of its lease, which is its row's next_run_time.
    if row.status == WAITING and row.next_run_time is not None and row.next_run_time <= now:
        return DUE
    if row.status in STOPPED_AS and row.owner is not None:
        return STOPPING
    has_failed = last is not None and last.fate == Fate.GAVE_UP
    return FAILING if row.state == WAITING and has_failed else row.state


def shown_reason(row: Row, now: float | None = None) -> str:
    """The reason of a row; of a paused row, until when it is paused, by whom and why.

    That of a schedule that has ended, or is about to, says that it runs no more.
    """
    if row.runs_no_more and (row.status not in ENDED or not row.reason):
        return RUNS_NO_MORE
    pause = row.pause
    if pause is None:
        return row.reason or ""

    def shown(instant: int) -> str:
        return format_time(instant) if now is None else short_time(instant, now)

    if pause.since is None or pause.note is None:
        return row.reason or ""  # plain SQL has paused it, or it has paused itself
    text = shown_pause(pause, shown, since=now is None)
    return text if row.status == PAUSED else f"{row.reason or 'stopped'}; then paused {text}"


def shown_pause(pause: Pause, time: Callable[[int], str], *, since: bool) -> str:
    """A pause by a person, for people."""
    began = "" if pause.since is None or not since else f"since {time(pause.since)} "
    until = "" if pause.until is None else f"until {time(pause.until)} "
    return f"{began}{until}by {pause.note}"


def overdue(each: UpcomingTime, row: Row, now: float) -> str | None:
    """For how long one of the next runs has been due: ``due for 58 s``; None if it is not due."""
    runs = row.owner is not None and each.time == row.next_time
    if runs or each.run_at is None or each.run_at > now:
        return None
    # A row that was inserted by plain SQL can have the time 0, which means at once.
    return format_overdue(now - each.run_at) if each.run_at > 0 else "now"

"""What people and programs see of schedules and runs.

For both there are the columns of their tables, on the terminal and in the web, and a JSON object.
"""

import json
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from psched.base.compression import beginning
from psched.base.errors import InvalidError
from psched.base.texts import cut, visible
from psched.cli.output import one_line
from psched.cli.text_table import Column, View
from psched.cli.time_format import (
    format_overdue,
    format_span,
    format_time,
    format_took,
    local_times,
    short_time,
)
from psched.core.columns import LATEST_TIME, decode, note_of
from psched.core.history.records import SKIPPED, Fate, Outcome
from psched.core.history.run import Run
from psched.core.model import (
    CANCELLING,
    DELETING,
    ENDED,
    FINISHING,
    NO_PAUSE,
    PAUSED,
    RUNNING,
    RUNS_NO_MORE,
    STOPPING,
    WAITING,
    Pause,
    Row,
)
from psched.reports.redaction import Redaction

if TYPE_CHECKING:
    from psched.core.preview import UpcomingTime

KEY_WIDTH = 20  # below this width, keys are cut only if nothing else is left

LONGEST_SHOWN = 100_000
"""The maximum length of a column in the command show, and of invalid JSON in the output of --json,
in bytes or characters; this depends on how the column is stored."""

_LONGEST_CELL = 30_000  # the maximum length of a cell, in characters

LONGEST_DATA = 2000
"""The maximum length of a payload, in bytes or characters, depending on how it is stored."""

_LONGEST_REASON = 2000  # the maximum length of a run's reason in a table, in characters


# --- the status of a schedule ----------------------------------------------------------------

DUE = "due"  # the shown status of a waiting row that a worker can start now

TEMPLATE = "template"
"""The shown status of a schedule of which each host runs a row of its own (``each_host``)."""

FAILING = "failing"
"""The shown status of a schedule that waits for its next run, and whose last run was given up."""

STOPPED_AS = (STOPPING, CANCELLING, DELETING, FINISHING)
"""The statuses of a row whose task is being stopped; `STOPPING` is shown for each."""


def shown_status(row: Row, now: float, last: Run | None = None) -> str:
    """The status of a row: ``due``, ``failing``, ``stopping``, ``template`` or `Row.state`."""
    # A running task is not due before the end of its lease, which is its row's next_run_time.
    if row.each_host and row.status == WAITING:
        return TEMPLATE
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
    if pause is None or pause.since is None or pause.note is None:
        return row.reason or ""  # plain SQL has paused it, or it has paused itself

    def shown(instant: int) -> str:
        return format_time(instant) if now is None else short_time(instant, now)

    text = shown_pause(pause, shown, since=now is None)
    return text if row.status == PAUSED else f"{row.reason or 'stopped'}; then paused {text}"


def shown_pause(pause: Pause, time: Callable[[int], str], *, since: bool) -> str:
    """A pause by a person, for people."""
    began = "" if pause.since is None or not since else f"since {time(pause.since)} "
    until = "" if pause.until is None else f"until {time(pause.until)} "
    return f"{began}{until}by {pause.note}"


def late_by(row: Row, now: float) -> float | None:
    """For how many seconds a row has been due; None if it does not tell.

    A row that was inserted by plain SQL can have the time 0, which means at once.
    """
    due = row.next_run_time
    return None if due is None or due <= 0 else max(0.0, now - due)


def overdue(each: "UpcomingTime", row: Row, now: float) -> str | None:
    """For how long one of the next runs has been due: ``due for 58 s``; None if it is not due."""
    runs = row.owner is not None and each.time == row.next_time
    if runs or each.run_at is None or each.run_at > now:
        return None
    # A row that was inserted by plain SQL can have the time 0, which means at once.
    return format_overdue(now - each.run_at) if each.run_at > 0 else "now"


# --- schedules -------------------------------------------------------------------------------

Listed = tuple[Row, Run | None]
"""A row with its last run; None if there is none, or if it is not known."""

_EVERY = re.compile(r"@every ([0-9]{1,12})( \+[0-9]+)?")
_CALL = re.compile(r"@call (\S+)")


def payload_beginning(stored: str | bytes | None, most: int, redaction: Redaction) -> str:
    """Return the beginning of a payload as one line; a whole payload can be megabytes long."""
    if not stored:
        return ""
    if redaction:
        # Only a whole payload can be parsed, so that every value that is to be hidden is found.
        try:
            value = redaction.value(decode("data", stored, values=None))
        except InvalidError:
            pass
        else:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            return one_line(text[:most]) + (" …" if len(text) > most else "")
    plain, more = beginning(stored, most)
    if isinstance(plain, bytes) and (more or redaction):
        plain = plain.decode(errors="ignore")  # drops the rest of a character that was cut in two
    if redaction and isinstance(plain, str):
        plain = redaction.text(plain)
    return one_line(plain) + (" …" if more else "")


def cell_of(value: object) -> str:
    """The text of any value of a column as one line; empty for None."""
    if value is None:
        return ""
    return one_line(cut(value, _LONGEST_CELL)) if isinstance(value, str) else str(value)


def _plain(name: str, least: int = 8) -> Column[Listed]:
    return Column(name.upper(), lambda of, _: cell_of(getattr(of[0], name)), least=least)


def _instant(name: str) -> Column[Listed]:
    return Column(
        name.upper(), lambda of, _: format_time(getattr(of[0], name), named=False), is_time=True
    )


def _payload(name: str) -> Column[Listed]:
    return Column(
        name.upper(),
        lambda of, view: payload_beginning(getattr(of[0], name), LONGEST_DATA, view.redaction),
    )


def _schedule_in_short(listed: Listed, view: View) -> str:
    """When a schedule runs: its cron line and zone, ``every 1h``, a class, or ``once``."""
    row = listed[0]
    if row.cron is None:
        return "once"
    if found := _EVERY.fullmatch(row.cron):
        return f"every {format_span(int(found[1]))}"
    if found := _CALL.match(row.cron):
        return cell_of(found[1])
    cron = view.redaction.text(row.cron)
    return cell_of(cron if row.timezone is None else f"{cron} {row.timezone}")


def _next_in_short(listed: Listed, view: View) -> str:
    """When a schedule runs next.

    For a running row, this is the scheduled time of the occurrence that is running: its
    ``next_run_time`` is the end of its lease.
    """
    row, now = listed[0], view.now
    status = shown_status(row, now)
    if status == DUE:
        late = int(late_by(row, now) or 0)
        return f"{format_span(late, most=2)} late" if late else "now"
    if status == PAUSED:
        return "-"  # its next_run_time is the end of the pause
    instant = row.next_run_time if row.owner is None else row.next_time
    return "-" if instant is None or instant >= LATEST_TIME else short_time(instant, now)


SCHEDULES: Sequence[Column[Listed]] = (
    _plain("key", KEY_WIDTH),
    Column(
        "STATUS",
        lambda of, view: cell_of(shown_status(of[0], view.now, of[1])),
        least=11,
        colours={
            RUNNING: "green",
            DUE: "yellow",
            "failed": "red",
            FAILING: "red",
            STOPPING: "yellow",
            "quarantined": "red",
            "expired": "magenta",
            "cancelled": "magenta",
            "paused": "cyan",
            "finished": "bright_black",
        },
    ),
    Column("SCHEDULE", _schedule_in_short),
    Column("NEXT", _next_in_short, is_time=True),
    Column("LAST", lambda of, view: last_in_short(of[1], view.now)),
    Column(
        "REASON",
        lambda of, view: cell_of(local_times(view.redaction.text(shown_reason(of[0], view.now)))),
    ),
    _plain("type"),
    _plain("run_as"),
    Column("LABEL", lambda of, view: cell_of(view.redaction.text(of[0].label or ""))),
    Column("HOSTS", lambda of, _view: cell_of(" ".join(of[0].hosts or ()))),
    Column("NOTE", lambda of, view: one_line(view.redaction.text(note_of(of[0]) or ""))),
    _payload("data"),
    Column("CRON", lambda of, view: cell_of(view.redaction.text(of[0].cron or ""))),
    _plain("timezone"),
    _plain("delay"),
    _instant("next_time"),
    _instant("next_run_time"),
    _instant("created_at"),
    _instant("retain_until"),
    _plain("attempt"),
    _plain("alive_time"),
    _payload("options"),
    _plain("owner"),
    _plain("fence"),
    _plain("settled_by"),
    _plain("version"),
)
"""All columns of a table of schedules."""

USUAL = SCHEDULES[:6]
"""Those that are shown unless the user chooses others; LAST only with a run history."""


def row_object(
    row: Row, now: float, redaction: Redaction, last: Run | None = None
) -> dict[str, Any]:
    """Return every column of a row; ``status``, also as ``state``, is the one that people see."""
    columns = {name: getattr(row, name) for name in Row.__slots__}
    columns |= {"hosts": row.hosts, "each_host": row.each_host, "template": row.template}
    columns["status"] = columns["state"] = shown_status(row, now, last)
    for name in ("data", "options"):
        try:
            columns[name] = redaction.value(decode(name, columns[name]) if columns[name] else {})
        except InvalidError:
            columns[name] = payload_beginning(columns[name], LONGEST_SHOWN, redaction)
    for name in ("cron", "reason", "pause_note", "label"):
        if columns[name]:
            columns[name] = redaction.text(columns[name])
    # A row that is not paused can have the columns of an earlier pause.
    return columns if row.pause is not None else {**columns, **NO_PAUSE}


# --- runs ------------------------------------------------------------------------------------

_FAR = 60
"""If a run starts so many seconds from its scheduled time, the table shows the latter, too."""


def _began(run: Run) -> float:
    return run.ended if run.started is None else run.started


def _reason(run: Run, view: View) -> str:
    parts = [_occurrences(run, view)] if run.outcome is None else []
    if run.out_of_memory:
        parts.append("probably out of memory")
    if run.reason:
        parts.append(view.redaction.text(run.reason))
    text = ": ".join(parts)
    if run.started is not None and abs(run.started - run.scheduled_time) >= _FAR:
        text = f"{text} ({_occurrences(run, view)})" if text else _occurrences(run, view)
    return one_line(cut(local_times(text), _LONGEST_REASON))


def _occurrences(run: Run, view: View) -> str:
    """Which occurrences are meant: ``of 02:30``, or ``12 skipped, 02:00 to 13:00``."""
    first = _time_beside(run.scheduled_time, _began(run), view.now)
    if run.count == 1:
        return f"of {first}"
    number = "many" if run.count is None else str(run.count)
    what = "skipped" if run.fate in SKIPPED else "did not run"
    if run.until is None:
        return f"{number} {what}, from {first} on"
    return f"{number} {what}, {first} to {_time_beside(run.until, run.scheduled_time, view.now)}"


def _time_beside(instant: float, other: float, now: float) -> str:
    """A time in few characters; without the day if the other time is of the same day."""
    text = short_time(int(instant), now)
    day, _, of_day = text.rpartition(" ")
    return of_day if short_time(int(other), now).rpartition(" ")[0] == day else text


RUNS: Sequence[Column[Run]] = (
    # What never ran has only the time of the decision.
    Column(
        "WHEN", lambda run, view: short_time(int(_began(run)), view.now, seconds=True), is_time=True
    ),
    Column("KEY", lambda run, _: one_line(run.key), least=KEY_WIDTH),
    Column("ATTEMPT", lambda run, _: str(run.attempt) if run.attempt else ""),
    Column(
        "OUTCOME",
        lambda run, _: one_line(run.outcome),
        least=9,
        colours={
            Outcome.FINISHED: "green",
            Outcome.FAILED: "red",
            Outcome.TIMED_OUT: "red",
            Outcome.LOST: "red",
            Outcome.PREEMPTED: "red",
            Outcome.CANCELLED: "magenta",
            Outcome.RELEASED: "yellow",
        },
    ),
    Column("FATE", lambda run, _: one_line(run.fate), least=14),
    Column("TOOK", lambda run, _: format_took(run.took)),
    Column("EXIT", lambda run, _: exit_text(run)),
    Column("HOST", lambda run, _: one_line(run.host)),
    Column("REASON", _reason),
)
"""The columns of a table of runs."""


def columns_for(runs: Iterable[Run], key: str | None) -> Sequence[Column[Run]]:
    """The columns of a table of the runs of one schedule; None stands for all schedules.

    The keys are shown only if they differ, because there are extra runs of the schedule.
    """
    with_keys = key is None or any(run.key != key for run in runs)
    return RUNS if with_keys else [column for column in RUNS if column.heading != "KEY"]


def run_object(run: Run, redaction: Redaction, *, large: bool = True) -> dict[str, Any]:
    """A run as a JSON object."""
    names = (
        *("key", "type", "label", "scheduled_time", "until", "count", "attempt", "outcome", "fate"),
        *("due", "started", "ended", "took", "exit_status", "exit_signal", "cpu_time"),
        *("peak_memory", "out_of_memory", "host", "pid", "generation", "reason_code"),
    )
    made: dict[str, Any] = {name: getattr(run, name) for name in names}
    made |= {"owner": run.record.owner, "fence": run.record.fence}
    made["reason"] = None if run.reason is None else redaction.text(run.reason)
    if large:
        made["error"] = None if run.error is None else redaction.text(run.error)
        try:
            made["result"] = redaction.value(run.result)
        except InvalidError:  # a client other than psched has written it
            made["result"] = redaction.text(run.record.result or "")
    return made


def last_in_short(run: Run | None, now: float) -> str:
    """What became of a run, how long ago, and how long it took: ``finished 5m ago, 1.2 s``."""
    if run is None:
        return "-"
    age = int(now - run.ended)
    text = f"{result(run)} {f'{format_span(age, most=1)} ago' if age > 0 else 'now'}"
    took = format_took(run.took)
    return f"{text}, {took}" if took else text


def result(run: Run) -> str:
    """The fate of a run; its outcome if it has none, because it will be tried again."""
    return one_line(run.fate or run.outcome or "unknown")


def exit_text(run: Run) -> str:
    """The exit status or the name of the signal of a run; empty if it is not known."""
    if run.exit_signal is None:
        return "" if run.exit_status is None else str(run.exit_status)
    try:
        return signal.Signals(run.exit_signal).name
    except ValueError:
        return f"signal {run.exit_signal}"


def error_lines(run: Run, redaction: Redaction) -> Iterator[str]:
    """The error of a run with its traceback, for lines below it."""
    if run.error is not None:
        for line in redaction.text(run.error).rstrip("\n").split("\n"):
            yield f"    {visible(line, lines=True)}"

"""Runs of the run history as text and as JSON, for people and programs that read the commands."""

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from psched.base.errors import InvalidError
from psched.base.texts import cut, visible
from psched.cli.output import one_line
from psched.cli.text_table import TableRow
from psched.cli.time_format import format_span, format_took, local_times, short_time
from psched.core.history.records import SKIPPED
from psched.core.history.redaction import Redaction
from psched.core.history.run import Run

_LONGEST_REASON = 2000
"""The maximum length of a reason in a table, in characters."""

_INDENT = "    "

_FAR = 60
"""If a run starts so many seconds from its scheduled time, the table shows the latter, too."""


class View(NamedTuple):
    """How runs are shown.

    Attributes:
        now: the time of the store's clock, in Unix seconds.
        redaction: hides the values of fields.
    """

    now: float
    redaction: Redaction

    def time(self, instant: float, *, seconds: bool = False, beside: float | None = None) -> str:
        """A time in few characters; without the day if a time beside it is of the same day."""
        text = short_time(int(instant), self.now, seconds=seconds)
        if beside is None:
            return text
        other = short_time(int(beside), self.now)
        day, _, of_day = text.rpartition(" ")
        return of_day if other.rpartition(" ")[0] == day else text


def _reason(run: Run, view: View) -> str:
    parts = [_occurrences(run, view)] if run.outcome is None else []
    if run.out_of_memory:
        parts.append("probably out of memory")
    if run.reason:
        parts.append(view.redaction.text(run.reason))
    text = ": ".join(parts)
    if _is_far(run):
        text = f"{text} ({_occurrences(run, view)})" if text else _occurrences(run, view)
    return one_line(cut(local_times(text), _LONGEST_REASON))


def _is_far(run: Run) -> bool:
    return run.started is not None and abs(run.started - run.scheduled_time) >= _FAR


def _occurrences(run: Run, view: View) -> str:
    """Which occurrences are meant: ``of 02:30``, or ``12 skipped, 02:00 to 13:00``."""
    first = view.time(run.scheduled_time, beside=run.ended if run.started is None else run.started)
    if run.count == 1:
        return f"of {first}"
    number = "many" if run.count is None else str(run.count)
    what = "skipped" if run.fate in SKIPPED else "did not run"
    if run.until is None:
        return f"{number} {what}, from {first} on"
    return f"{number} {what}, {first} to {view.time(run.until, beside=run.scheduled_time)}"


_CELLS: Mapping[str, Callable[[Run, View], str]] = {
    # What never ran has only the time of the decision.
    "WHEN": lambda run, view: view.time(
        run.ended if run.started is None else run.started, seconds=True
    ),
    "KEY": lambda run, _view: one_line(run.key),
    "ATTEMPT": lambda run, _view: str(run.attempt) if run.attempt else "",
    "OUTCOME": lambda run, _view: one_line(run.outcome),
    "FATE": lambda run, _view: one_line(run.fate),
    "TOOK": lambda run, _view: format_took(run.took),
    "EXIT": lambda run, _view: exit_text(run),
    "HOST": lambda run, _view: one_line(run.host),
    "REASON": _reason,
}

COLUMNS = tuple(_CELLS)
"""The headings of a table of runs."""


def columns_for(runs: Iterable[Run], key: str | None) -> Sequence[str]:
    """The headings of a table of the runs of one schedule; None stands for all schedules.

    The keys are shown only if they differ, because there are extra runs of the schedule.
    """
    with_keys = key is None or any(run.key != key for run in runs)
    return COLUMNS if with_keys else [column for column in COLUMNS if column != "KEY"]


def table_row(run: Run, columns: Sequence[str], view: View, *, errors: bool = False) -> TableRow:
    """A run as a row of a table."""
    cells = [_CELLS[column](run, view) for column in columns]
    return TableRow(cells, [*_error_lines(run, view)] if errors else ())


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


def _error_lines(run: Run, view: View) -> Iterator[str]:
    if run.error is not None:
        for line in view.redaction.text(run.error).rstrip("\n").split("\n"):
            yield f"{_INDENT}{visible(line, lines=True)}"

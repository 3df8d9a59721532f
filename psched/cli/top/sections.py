"""The rows of the command top and of the web page, and what stands above them, as texts."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from psched.base.quantities import format_duration
from psched.cli.output import one_line
from psched.cli.time_format import format_span, local_times, short_time
from psched.cli.top.snapshot import (
    MOST_ROWS,
    ComingTask,
    FailedTask,
    LateTask,
    Master,
    RunningTask,
    Snapshot,
    Task,
)
from psched.core.model import PAUSED, QUARANTINED, RUNNING
from psched.core.operations.overview import DUE, MOST_COUNTED

TITLE = "title"
HEADING = "heading"
PLAIN = ""
WARNING = "warning"
FAILURE = "failure"
SELECTED = "selected"
QUIET = "quiet"
"""The styles of lines. Without colours, all look the same."""

_SLOW = 2
"""A task that has run for so many times its usual duration is shown as a warning."""

_BAR = 10
"""The width of the bar of a task's progress."""

_LONGEST = 500
"""The most characters of a text that are examined; a line has room for fewer."""

Place = tuple[str, str, float]
"""Identifies a row of the screen: the section, the key, and the time of a failure."""


class Entry(NamedTuple):
    """A row of a section: its place, what it shows, its texts, and its style."""

    place: Place
    task: Task
    cells: Sequence[str]
    style: str


class Section(NamedTuple):
    """Rows of one kind, below their headings; the column of the keys has none."""

    name: str
    headings: Sequence[str]
    entries: Sequence[Entry]
    total: int
    """How many there are, of which only the first may be known."""
    counted: int = MOST_COUNTED
    """At this number the count has ended, so that there may be more."""

    def title(self, shown: int) -> str:
        """The name of the section, and how many rows it has, if so many of them are shown."""
        number = number_text(self.total, self.counted)
        return f"{self.name} {number if shown >= self.total else f'{shown} of {number}'}"


def summary(snapshot: Snapshot) -> str:
    """How many tasks run, are late, have failed or are paused, and how many more can start."""
    counts = snapshot.counts
    parts = [f"{number_text(counts.get(RUNNING, len(snapshot.running)))} running"]
    parts += [f"{number_text(counts.get(DUE, 0))} late"]
    if snapshot.masters:
        parts.append(f"{snapshot.free} of {snapshot.slots} slots free")
    parts.append(f"{number_text(len(snapshot.failed))} failed in 1 h")
    for status in PAUSED, QUARANTINED:
        if counts.get(status):
            parts.append(f"{number_text(counts[status])} {status}")
    return ", ".join(parts)


def number_text(count: int, counted: int = MOST_COUNTED) -> str:
    """A count as text; at ``counted`` the count has ended, so that there may be more."""
    return f"{count} or more" if count >= counted else str(count)


def about_master(master: Master) -> str:
    """A master of this host, or another host, in one line."""
    parts = [f"{master.free} of {master.slots} slots free"]
    if master.clock is not None:
        parts.append(f"clock {_offset(master.clock)}")
    parts.append("1 worker" if master.workers == 1 else f"{master.workers} workers")
    if master.seen is not None:
        parts.append(f"seen {format_span(int(master.seen))} ago")
    if master.pid is not None:
        parts.append(f"master {master.pid} {master.phase}, gen {master.generation}")
    return f"{one_line(master.host)}: {', '.join(parts)}"


def _offset(seconds: float) -> str:
    shown = format_duration(abs(seconds))
    return f"+{shown}" if seconds >= 0 else f"-{shown}"


def sections_of(snapshot: Snapshot) -> list[Section]:
    """The sections that have rows, in their order on the screen."""
    counts, now = snapshot.counts, snapshot.now or 0.0
    given: list[tuple[str, Sequence[str], Callable[[Any], Sequence[str]], Sequence[Task], int]] = [
        (
            "RUNNING",
            ("TYPE", "HOST", "ELAPSED", "USUAL", "PROGRESS"),
            _running_cells,
            snapshot.running,
            counts.get(RUNNING, 0),
        ),
        (
            "LATE",
            ("TYPE", "FOR", "REASON"),
            _late_cells,
            snapshot.late,
            counts.get(DUE, 0),
        ),
        (
            "NEXT",
            ("TYPE", "IN", "AT", "SCHEDULE"),
            lambda task: _coming_cells(task, now),
            snapshot.coming,
            0,
        ),
        (
            "FAILED",
            ("RESULT", "AGO", "HOST", "REASON"),
            lambda task: _failed_cells(task, now),
            snapshot.failed,
            0,
        ),
        (
            "PAUSED",
            ("TYPE", "REASON"),
            lambda task: (task.type, local_times(task.reason)),
            snapshot.paused,
            counts.get(PAUSED, 0),
        ),
    ]
    return [
        Section(
            name,
            headings,
            [
                Entry(
                    (name, task.key, task.ended if isinstance(task, FailedTask) else 0.0),
                    task,
                    [_text(task.key), *map(_text, cells(task))],
                    _style(task),
                )
                for task in shown
            ],
            max(count, len(shown)),
            # The schedules that fall due later are not counted.
            MOST_ROWS if shown is snapshot.coming else MOST_COUNTED,
        )
        for name, headings, cells, shown, count in given
        if shown
    ]


def _text(text: str) -> str:
    return one_line(text[:_LONGEST])


def _running_cells(task: RunningTask) -> Sequence[str]:
    return (
        task.type,
        task.host or "",
        "" if task.elapsed is None else format_duration(task.elapsed),
        "" if task.usual is None else format_duration(task.usual),
        _progress(task),
    )


def _progress(task: RunningTask) -> str:
    parts = [] if task.status == RUNNING else [task.status]
    if task.attempt > 1:
        parts.append(f"attempt {task.attempt}")
    if task.percent is not None:
        done = min(_BAR, max(0, int(_BAR * task.percent / 100)))
        parts.append(f"[{'#' * done}{'-' * (_BAR - done)}] {task.percent:.0f} %")
    if task.text:
        parts.append(task.text)
    return " ".join(parts)


def _late_cells(task: LateTask) -> Sequence[str]:
    late = "" if task.late is None else format_span(int(task.late), most=2)
    return task.type, late, local_times(task.reason)


def _coming_cells(task: ComingTask, now: float) -> Sequence[str]:
    what = "" if task.trigger is None else task.trigger
    at = short_time(task.at, now, seconds=True)
    wait = format_span(max(0, int(task.at - now)), most=2)
    return task.type, wait, at, what if task.status != PAUSED else "paused until then"


def _failed_cells(task: FailedTask, now: float) -> Sequence[str]:
    ago = format_span(max(0, int(now - task.ended)), most=1)
    return task.result, ago, task.host or "", local_times(task.reason)


def _style(task: Task) -> str:
    if isinstance(task, FailedTask):
        return FAILURE
    if isinstance(task, LateTask):
        return WARNING
    if isinstance(task, RunningTask) and task.usual is not None and task.elapsed is not None:
        return WARNING if task.elapsed > _SLOW * max(task.usual, 1.0) else PLAIN
    return PLAIN

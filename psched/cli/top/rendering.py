"""Turns a snapshot into the lines of a screen; pure functions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from psched.base.quantities import format_duration
from psched.cli.output import one_line
from psched.cli.schedules.status import shown_pause
from psched.cli.text_table import GAP, cut_to, padded_to, width_of, widths_of
from psched.cli.time_format import format_span, format_time, short_time
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

_MOST_MASTERS = 4
"""The most lines about masters and hosts."""

KEYS = "q quit   up/down select   p pause/resume   t trigger   l logs   ? help"

HELP = (
    "psched top shows what runs now, what is late, what is next and what has failed.",
    "",
    "up, k   down, j       select a row",
    "PgUp, PgDn, Home, End",
    "p                     pause the schedule, or resume it if it is paused",
    "t                     run the schedule now, beside its regular runs",
    "l                     show what it prints, or has printed; Ctrl-C returns here",
    "r                     read again now",
    "Ctrl-L                draw the screen again",
    "Ctrl-Z                put psched top aside; fg returns",
    "q, Ctrl-C             quit",
    "",
    "ELAPSED is how long a run takes so far, USUAL the median of the last 20 runs.",
    "A run that takes more than twice as long is yellow. Progress is shown for tasks",
    "of this host. The clock of a host is compared with that of the database: with +",
    "it is ahead, with - behind.",
)

Place = tuple[str, str, float]
"""Identifies a row of the screen: the section, the key, and the time of a failure."""


class Line(NamedTuple):
    """A line of the screen; it has no more columns than the screen, and no control characters."""

    text: str
    style: str = PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the user sees of a snapshot.

    Attributes:
        width: the columns of the screen.
        height: the lines of the screen; None for as many as there are.
        selected: the row that is selected; None for none.
        message: a text at the bottom in place of the keys; empty for none.
        helps: whether the keys are explained.
        utc: whether times are in UTC.
        age: the seconds since the snapshot was read.
    """

    width: int = 80
    height: int | None = 24
    selected: Place | None = None
    message: str = ""
    helps: bool = False
    utc: bool = False
    age: float = 0.0


class _Entry(NamedTuple):
    place: Place
    task: Task
    cells: Sequence[str]
    style: str


class _Section(NamedTuple):
    name: str
    headings: Sequence[str]
    entries: Sequence[_Entry]
    total: int
    """How many there are, of which only the first may be known."""
    counted: int = MOST_COUNTED
    """At this number the count has ended, so that there may be more."""


def render(snapshot: Snapshot, view: View) -> list[Line]:
    """The lines of the screen, at most as many as it has."""
    if view.helps:
        lines = [Line("psched top: keys", TITLE), *map(Line, HELP)]
        return _fitted(lines[: view.height], view.width)
    head = [*_head(snapshot, view)]
    foot = [] if view.height is None else [Line(view.message or KEYS, QUIET)]
    if view.height is None:
        room = None
    else:
        head = head[: max(1, (view.height - len(foot)) // 2)]
        room = max(0, view.height - len(head) - len(foot))
    body = [*_body(_sections(snapshot, view), room, view)]
    if room is not None:
        body += [Line("")] * (room - len(body))
    lines = [*head, *body, *foot]
    return _fitted(lines if view.height is None else lines[-view.height :], view.width)


def tasks(snapshot: Snapshot) -> Mapping[Place, Task]:
    """The rows that can be selected, in their order on the screen."""
    sections = _sections(snapshot, View())
    return {entry.place: entry.task for section in sections for entry in section.entries}


def _fitted(lines: Sequence[Line], width: int) -> list[Line]:
    return [Line(cut_to(one_line(line.text), width), line.style) for line in lines]


# --- the head ------------------------------------------------------------------------------


def _head(snapshot: Snapshot, view: View) -> Iterator[Line]:
    time = "" if snapshot.now is None else format_time(int(snapshot.now), local=not view.utc)
    left = f"psched top  {one_line(snapshot.table)}"
    room = view.width - width_of(time) - len(GAP)
    left = cut_to(left, max(room, 0))
    yield Line(f"{left}{' ' * (room - width_of(left))}{GAP}{time}".rstrip(), TITLE)
    for problem in snapshot.problems:
        yield Line(problem, FAILURE)
    if snapshot.away and snapshot.now is not None:
        yield Line(f"what the store says is {format_duration(view.age)} old", FAILURE)
    yield Line(_summary(snapshot))
    masters = sorted(snapshot.masters, key=lambda each: each.seen is not None)
    for master in masters[:_MOST_MASTERS]:
        yield Line(_about(master))
    if more := masters[_MOST_MASTERS:]:
        free, slots = sum(each.free for each in more), sum(each.slots for each in more)
        yield Line(f"{len(more)} more hosts, {free} of {slots} slots free")
    if not snapshot.masters and snapshot.now is not None:
        yield Line("no worker is known to be alive", WARNING)
    for pause in snapshot.pauses:
        yield Line(_with_pause(pause, snapshot.now or 0.0, utc=view.utc), WARNING)


def _summary(snapshot: Snapshot) -> str:
    counts = snapshot.counts
    parts = [f"{_number(counts.get(RUNNING, len(snapshot.running)))} running"]
    parts += [f"{_number(counts.get(DUE, 0))} late"]
    if snapshot.masters:
        parts.append(f"{snapshot.free} of {snapshot.slots} slots free")
    parts.append(f"{_number(len(snapshot.failed))} failed in 1 h")
    for status in PAUSED, QUARANTINED:
        if counts.get(status):
            parts.append(f"{_number(counts[status])} {status}")
    return ", ".join(parts)


def _number(count: int, counted: int = MOST_COUNTED) -> str:
    return f"{count} or more" if count >= counted else str(count)


def _about(master: Master) -> str:
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


# --- the rows ------------------------------------------------------------------------------


def _sections(snapshot: Snapshot, view: View) -> list[_Section]:
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
            lambda task: _late_cells(task, now, utc=view.utc),
            snapshot.late,
            counts.get(DUE, 0),
        ),
        (
            "NEXT",
            ("TYPE", "IN", "AT", "SCHEDULE"),
            lambda task: _coming_cells(task, now, utc=view.utc),
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
            lambda task: (task.type, _pause(task.reason, now, utc=view.utc)),
            snapshot.paused,
            counts.get(PAUSED, 0),
        ),
    ]
    return [
        _Section(
            name,
            headings,
            [
                _Entry(
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


def _late_cells(task: LateTask, now: float, *, utc: bool) -> Sequence[str]:
    late = "" if task.late is None else format_span(int(task.late), most=2)
    return task.type, late, _with_pause(task.reason, now, utc=utc)


def _coming_cells(task: ComingTask, now: float, *, utc: bool) -> Sequence[str]:
    what = "" if task.trigger is None else task.trigger
    at = short_time(task.at, now, utc=utc, seconds=True)
    wait = format_span(max(0, int(task.at - now)), most=2)
    return task.type, wait, at, what if task.status != PAUSED else "paused until then"


def _failed_cells(task: FailedTask, now: float) -> Sequence[str]:
    ago = format_span(max(0, int(now - task.ended)), most=1)
    return task.result, ago, task.host or "", task.reason


def _pause(reason: str, now: float, *, utc: bool) -> str:
    """Since when something is paused, until when, by whom and why."""
    return shown_pause(reason, lambda time: short_time(time, now, utc=utc), since=True)


def _with_pause(reason: str, now: float, *, utc: bool) -> str:
    """A reason for people: that of a pause begins with ``paused``, any other is unchanged."""
    shown = _pause(reason, now, utc=utc)
    return shown if shown == reason else f"paused {shown}"


def _style(task: Task) -> str:
    if isinstance(task, FailedTask):
        return FAILURE
    if isinstance(task, LateTask):
        return WARNING
    if isinstance(task, RunningTask) and task.usual is not None and task.elapsed is not None:
        return WARNING if task.elapsed > _SLOW * max(task.usual, 1.0) else PLAIN
    return PLAIN


# --- which rows there is room for ----------------------------------------------------------


def _body(sections: Sequence[_Section], room: int | None, view: View) -> Iterator[Line]:
    rooms = _rooms(sections, room, view.selected)
    for section in sections:
        most = rooms.get(section.name, 0)
        if most == 0:
            continue
        at = next((i for i, entry in enumerate(section.entries) if entry.place == view.selected), 0)
        begin = max(0, at - most + 1)
        shown = section.entries[begin : begin + most]
        number = _number(section.total, section.counted)
        if len(shown) < section.total:
            number = f"{len(shown)} of {number}"
        table = [[f"{section.name} {number}", *section.headings], *(e.cells for e in shown)]
        widths = widths_of(table, view.width - len(GAP))
        yield Line(f"  {_joined(table[0], widths)}", HEADING)
        for entry in shown:
            selected = entry.place == view.selected
            mark = "> " if selected else "  "
            yield Line(
                f"{mark}{_joined(entry.cells, widths)}".rstrip(),
                SELECTED if selected else entry.style,
            )


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    cut = [cut_to(cell, width) for cell, width in zip(cells, widths, strict=True)]
    return GAP.join(padded_to(cut, widths)).rstrip()


def _rooms(
    sections: Sequence[_Section], room: int | None, selected: Place | None
) -> Mapping[str, int]:
    """How many rows of each section are shown; its heading needs one line more."""
    if room is None:
        return {section.name: len(section.entries) for section in sections}
    wanted = {section.name: len(section.entries) for section in sections}
    # The section with the selected row comes first, so that the row is visible.
    order = sorted(wanted, key=lambda name: selected is None or name != selected[0])
    rooms: dict[str, int] = {}
    for name in order:
        if room >= 2:  # noqa: PLR2004  # the heading and a row
            rooms[name], room = 1, room - 2
    while room > 0 and (growing := [name for name in rooms if rooms[name] < wanted[name]]):
        for name in growing[:room]:
            rooms[name] += 1
        room -= min(room, len(growing))
    return rooms

"""Turns a snapshot into the texts of the command top and of the first page of the web."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from psched.base.quantities import format_duration
from psched.cli.output import one_line
from psched.cli.text_table import (
    GAP,
    Column,
    View,
    cut_to,
    headings_of,
    joined,
    width_of,
    widths_of,
)
from psched.cli.time_format import format_span, format_time, format_took, local_times, short_time
from psched.cli.top.snapshot import (
    MOST_ROWS,
    ComingTask,
    FailedTask,
    LateTask,
    Master,
    PausedTask,
    RunningTask,
    Snapshot,
    Task,
)
from psched.core.model import PAUSED, QUARANTINED, RUNNING
from psched.core.operations.overview import DUE, MOST_COUNTED
from psched.reports.redaction import Redaction

TITLE = "title"
HEADING = "heading"
PLAIN = ""
WARNING = "warning"
FAILURE = "failure"
SELECTED = "selected"
QUIET = "quiet"
"""The styles of lines. Without colours, all look the same."""

_SLOW = 2  # a task that has run for so many times its usual duration is shown as a warning
_BAR = 10  # the width of the bar of a task's progress
_LONGEST = 500  # the most characters of a text that are examined; a line has room for fewer

Place = tuple[str, str, float]
"""Identifies a row of the screen: the section, the key, and the time of a failure."""


# --- the columns -----------------------------------------------------------------------------


def _text(text: str) -> str:
    return one_line(text[:_LONGEST])


def _progress(task: RunningTask, _view: View) -> str:
    parts = [] if task.status == RUNNING else [task.status]
    if task.attempt > 1:
        parts.append(f"attempt {task.attempt}")
    if task.percent is not None:
        done = min(_BAR, max(0, int(_BAR * task.percent / 100)))
        parts.append(f"[{'#' * done}{'-' * (_BAR - done)}] {task.percent:.0f} %")
    if task.text:
        parts.append(task.text)
    return _text(" ".join(parts))


def _schedule(task: ComingTask, _view: View) -> str:
    return "paused until then" if task.status == PAUSED else _text(task.trigger or "")


def _late(task: LateTask, _view: View) -> str:
    return "" if task.late is None else format_span(int(task.late), most=2)


_KEY: Column[Task] = Column("KEY", lambda task, _: _text(task.key))
_TYPE: Column[Task] = Column("TYPE", lambda task, _: _text(task.type))
_HOST: Column[RunningTask | FailedTask] = Column("HOST", lambda task, _: _text(task.host or ""))
_REASON: Column[LateTask | FailedTask | PausedTask] = Column(
    "REASON", lambda task, _: _text(local_times(task.reason))
)

_RUNNING: Sequence[Column[RunningTask]] = (
    Column("ELAPSED", lambda task, _: format_took(task.elapsed)),
    Column("USUAL", lambda task, _: format_took(task.usual)),
    Column("PROGRESS", _progress),
)
_COMING: Sequence[Column[ComingTask]] = (
    Column("IN", lambda task, view: format_span(max(0, int(task.at - view.now)), most=2)),
    Column("AT", lambda task, view: short_time(task.at, view.now, seconds=True)),
    Column("SCHEDULE", _schedule),
)
_FAILED: Sequence[Column[FailedTask]] = (
    Column("RESULT", lambda task, _: _text(task.result)),
    Column("AGO", lambda task, view: format_span(max(0, int(view.now - task.ended)), most=1)),
)

_COLUMNS: Mapping[str, Sequence[Column[Any]]] = {
    "RUNNING": (_KEY, _TYPE, _HOST, *_RUNNING),
    "LATE": (_KEY, _TYPE, Column("FOR", _late), _REASON),
    "NEXT": (_KEY, _TYPE, *_COMING),
    "FAILED": (_KEY, *_FAILED, _HOST, _REASON),
    "PAUSED": (_KEY, _TYPE, _REASON),
}
"""The columns of each section, by its name."""


# --- sections --------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A row of a section: its place, what it shows, its texts, and its style."""

    place: Place
    task: Task
    cells: Sequence[str]
    style: str


class Section(NamedTuple):
    """Rows of one kind, below their headings. ``total`` counts also those that are not read.

    At ``counted`` the count has ended, so that there may be more.
    """

    name: str
    headings: Sequence[str]
    entries: Sequence[Entry]
    total: int
    counted: int = MOST_COUNTED

    def title(self, shown: int) -> str:
        """The name of the section, and how many rows it has, if so many of them are shown."""
        number = _number(self.total, self.counted)
        return f"{self.name} {number if shown >= self.total else f'{shown} of {number}'}"


def sections_of(snapshot: Snapshot) -> list[Section]:
    """The sections that have rows, in their order on the screen."""
    counts = snapshot.counts
    # The reader of the snapshot has hidden what is to be hidden.
    view = View(snapshot.now or 0.0, Redaction(()))
    found: Sequence[tuple[str, Sequence[Task], int]] = (
        ("RUNNING", snapshot.running, counts.get(RUNNING, 0)),
        ("LATE", snapshot.late, counts.get(DUE, 0)),
        ("NEXT", snapshot.coming, 0),
        ("FAILED", snapshot.failed, 0),
        ("PAUSED", snapshot.paused, counts.get(PAUSED, 0)),
    )
    sections = []
    for name, tasks, count in found:
        columns = _COLUMNS[name]
        entries = [
            Entry(
                (name, task.key, task.ended if isinstance(task, FailedTask) else 0.0),
                task,
                [column.text(task, view) for column in columns],
                _style(task),
            )
            for task in tasks
        ]
        # The schedules that fall due later are not counted.
        counted = MOST_ROWS if name == "NEXT" else MOST_COUNTED
        total = max(count, len(tasks))
        sections.append(Section(name, headings_of(columns, view.now), entries, total, counted))
    return [section for section in sections if section.entries]


def _style(task: Task) -> str:
    if isinstance(task, FailedTask):
        return FAILURE
    if isinstance(task, LateTask):
        return WARNING
    if isinstance(task, RunningTask) and task.usual is not None and task.elapsed is not None:
        return WARNING if task.elapsed > _SLOW * max(task.usual, 1.0) else PLAIN
    return PLAIN


def summary(snapshot: Snapshot) -> str:
    """How many tasks run, are late, have failed or are paused, and how many more can start."""
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


# --- the screen ------------------------------------------------------------------------------

_MOST_MASTERS = 4  # the most lines about masters and hosts

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


class Line(NamedTuple):
    """A line of the screen; it has no more columns than the screen, and no control characters."""

    text: str
    style: str = PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What the user sees of a snapshot.

    Attributes:
        height: the lines of the screen; None for as many as there are.
        message: a text at the bottom in place of the keys; empty for none.
        helps: whether the keys are explained.
        age: the seconds since the snapshot was read.
    """

    width: int = 80
    height: int | None = 24
    selected: Place | None = None
    message: str = ""
    helps: bool = False
    age: float = 0.0


def render(snapshot: Snapshot, view: Window) -> list[Line]:
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
    body = [*_body(sections_of(snapshot), room, view)]
    if room is not None:
        body += [Line("")] * (room - len(body))
    lines = [*head, *body, *foot]
    return _fitted(lines if view.height is None else lines[-view.height :], view.width)


def tasks(snapshot: Snapshot) -> Mapping[Place, Task]:
    """The rows that can be selected, in their order on the screen."""
    sections = sections_of(snapshot)
    return {entry.place: entry.task for section in sections for entry in section.entries}


def _fitted(lines: Sequence[Line], width: int) -> list[Line]:
    return [Line(cut_to(one_line(line.text), width), line.style) for line in lines]


# --- the head ------------------------------------------------------------------------------


def _head(snapshot: Snapshot, view: Window) -> Iterator[Line]:
    time = "" if snapshot.now is None else format_time(int(snapshot.now))
    left = f"psched top  {one_line(snapshot.table)}"
    room = view.width - width_of(time) - len(GAP)
    left = cut_to(left, max(room, 0))
    yield Line(f"{left}{' ' * (room - width_of(left))}{GAP}{time}".rstrip(), TITLE)
    for problem in snapshot.problems:
        yield Line(problem, FAILURE)
    if snapshot.away and snapshot.now is not None:
        yield Line(f"what the store says is {format_duration(view.age)} old", FAILURE)
    yield Line(summary(snapshot))
    masters = sorted(snapshot.masters, key=lambda each: each.seen is not None)
    for master in masters[:_MOST_MASTERS]:
        yield Line(about_master(master))
    if more := masters[_MOST_MASTERS:]:
        free, slots = sum(each.free for each in more), sum(each.slots for each in more)
        yield Line(f"{len(more)} more hosts, {free} of {slots} slots free")
    if not snapshot.masters and snapshot.now is not None:
        yield Line("no worker is known to be alive", WARNING)
    for pause in snapshot.pauses:
        yield Line(pause, WARNING)


# --- which rows there is room for ----------------------------------------------------------


def _body(sections: Sequence[Section], room: int | None, view: Window) -> Iterator[Line]:
    rooms = _rooms(sections, room, view.selected)
    for section in sections:
        most = rooms.get(section.name, 0)
        if most == 0:
            continue
        at = next((i for i, entry in enumerate(section.entries) if entry.place == view.selected), 0)
        begin = max(0, at - most + 1)
        shown = section.entries[begin : begin + most]
        headings = [section.title(len(shown)), *section.headings[1:]]
        table = [headings, *(entry.cells for entry in shown)]
        widths = widths_of(_COLUMNS[section.name], table, view.width - len(GAP))
        yield Line(f"  {joined(headings, widths)}", HEADING)
        for entry in shown:
            selected = entry.place == view.selected
            mark = "> " if selected else "  "
            yield Line(
                f"{mark}{joined(entry.cells, widths)}".rstrip(),
                SELECTED if selected else entry.style,
            )


def _rooms(
    sections: Sequence[Section], room: int | None, selected: Place | None
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

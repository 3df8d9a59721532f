"""Turns a snapshot into the lines of a screen; pure functions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from psched.base.quantities import format_duration
from psched.cli.output import one_line
from psched.cli.text_table import GAP, cut_to, padded_to, width_of, widths_of
from psched.cli.time_format import format_time
from psched.cli.top.sections import (
    FAILURE,
    HEADING,
    PLAIN,
    QUIET,
    SELECTED,
    TITLE,
    WARNING,
    Place,
    Section,
    about_master,
    sections_of,
    summary,
)
from psched.cli.top.snapshot import Snapshot, Task

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
        age: the seconds since the snapshot was read.
    """

    width: int = 80
    height: int | None = 24
    selected: Place | None = None
    message: str = ""
    helps: bool = False
    age: float = 0.0


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


def _head(snapshot: Snapshot, view: View) -> Iterator[Line]:
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


def _body(sections: Sequence[Section], room: int | None, view: View) -> Iterator[Line]:
    rooms = _rooms(sections, room, view.selected)
    for section in sections:
        most = rooms.get(section.name, 0)
        if most == 0:
            continue
        at = next((i for i, entry in enumerate(section.entries) if entry.place == view.selected), 0)
        begin = max(0, at - most + 1)
        shown = section.entries[begin : begin + most]
        table = [[section.title(len(shown)), *section.headings], *(e.cells for e in shown)]
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

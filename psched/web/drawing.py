"""Places the marks of the timeline on its axis, in per cent of its width, and links them.

The pictures have no width of their own: each is as wide as the page. So what has a width or a place
along the axis is told in per cent, and all that has a shape is a symbol of templates/icons.html.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

from psched.base.texts import counted, visible
from psched.cli.time_format import format_took, reader_zone, short_time, zone_label
from psched.web.actions import act_link
from psched.web.asked import Asked, Page, link, run_link, schedule_link
from psched.web.fates import KINDS
from psched.web.search import HINTS, word_of
from psched.web.timeline import (
    GROUPINGS,
    SORTS,
    SPANS,
    USUAL_SPAN,
    Lane,
    Mark,
    Planned,
    Timeline,
    document,
    read_timeline,
)
from psched.web.users import OPERATE, allows

_STEPS = (
    *(60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 14_400, 21_600, 43_200),
    *(86_400, 172_800, 345_600),
)
"""The seconds between two times on the axis."""

_MOST_TIMES = 7  # the most times on the axis: a telephone has room for them
_SEEN = 0.25  # below so many per cent of the width, a length cannot be seen
_THINNEST = 0.01  # the least width, in per cent
_HEIGHT = 56  # the height of the strip, in pixels
_ROOM = 1.15  # the strip is higher than what it shows
_DENSE = 60  # more lanes are less high
_NOW = 50.0  # where now is, in per cent
_NOW_ROOM = 6.5  # so near to it, its word leaves no room for a time on a telephone
_DAY = 86_400
_GOES_BACK = 10_800  # the most seconds by which a clock change is expected to go back
_REFRESHES = 720  # the page is read again when the axis has moved by so small a part
_LEAST_REFRESH = 10
_ICONS = frozenset(KINDS) - {"finished", "running", "planned", "paused"}
"""The kinds of marks that have a symbol; the others are bars."""


class Shape(NamedTuple):
    """A mark on the picture: texts for its attributes; ``icon`` is the place of its symbol.

    The line that shows how late a run started is of the kind ``wait``.
    """

    kind: str
    x: str
    width: str
    text: str
    href: str
    icon: str = ""


class Drawn(NamedTuple):
    """A lane on the picture.

    ``ghosts`` are the outlines of what comes by their kinds, and ``coming`` a sentence about it;
    ``many`` is the outline of ``finished`` runs that have no shapes of their own.
    """

    name: str
    href: str
    about: str
    shapes: Sequence[Shape]
    many: str
    finished: int
    coming: str
    ghosts: Mapping[str, str]


def timeline_page(asked: Asked) -> Page:
    """The page of the timeline."""
    timeline = read_timeline(asked)
    span = asked.query.get("span") or USUAL_SPAN
    axis = _Axis(timeline, asked)
    kept = {name: asked.query.get(name, "") for name in ("q", "by", "sort")}

    def choices(name: str, values: Sequence[str], usual: str) -> list[tuple[str, str, bool]]:
        """Texts and links of the values of a field, and whether it is the present one."""
        query = {"span": asked.query.get("span", ""), **kept}
        return [(each, link("./", **{**query, name: each}), each == usual) for each in values]

    values = {
        "title": "Timeline",
        "q": timeline.search.text,
        "hints": HINTS,
        "kept": {name: asked.query.get(name, "") for name in ("span", "by", "sort")},
        "spans": choices("span", [*SPANS], span),
        "groupings": choices("by", GROUPINGS, timeline.by),
        "sorts": choices("sort", SORTS, asked.query.get("sort") or "key"),
        "about": _about(timeline),
        "remarks": [*map(asked.sentence, timeline.remarks)],
        "legend": [*_legend(timeline)],
        "times": axis.times(),
        "strip": axis.strip(),
        "lanes": [axis.lane(lane) for lane in timeline.lanes],
        "is_dense": len(timeline.lanes) > _DENSE,
        "zone": zone_label(timeline.now),
    }
    refresh = max(_LEAST_REFRESH, SPANS[span] // _REFRESHES)
    shown = asked.redaction.text
    return Page("timeline", values, lambda: document(timeline, shown), refresh=refresh)


def _about(timeline: Timeline) -> str:
    """What the page shows, in a sentence."""
    counts = timeline.counts
    parts = [counted(timeline.schedules, "schedule")]
    parts += [f"{counts[kind]:,} {kind}" for kind in ("running", "late", "paused") if counts[kind]]
    if counts["failed"]:
        since = short_time(timeline.start, timeline.now)
        parts.append(f"{counts['failed']:,} failed since {since}")
    return ", ".join(parts)


def _legend(timeline: Timeline) -> Iterator[tuple[str, str, int]]:
    """The kinds that the page shows, their words, and how many there are."""
    clock_changes = sum(len(lane.clock_changes) for lane in timeline.lanes)
    counts = {**timeline.counts, "clock": clock_changes}
    for kind, words in KINDS.items():
        if kind == "planned" or counts.get(kind):
            yield kind, words, counts.get(kind, 0)


class _Axis:
    """The axis: where times are on the picture."""

    def __init__(self, timeline: Timeline, asked: Asked) -> None:
        self._timeline = timeline
        self._asked = asked
        self._acts = allows(asked.right, OPERATE)
        self._start = timeline.start
        self._seconds = timeline.end - timeline.start

    def _percent(self, time: float) -> float:
        return min(100.0, max(0.0, 100 * (time - self._start) / self._seconds))

    def _place(self, time: float) -> str:
        return f"{self._percent(time):.2f}%"

    def _width(self, start: float, end: float) -> str:
        # What has no width at all is not drawn, not even its border.
        return f"{max(_THINNEST, self._percent(end) - self._percent(start)):.2f}%"

    def times(self) -> Sequence[tuple[str, str]]:
        """Places and texts of the times on the axis; the text can be empty."""
        step = next((s for s in _STEPS if self._seconds / s <= _MOST_TIMES), _STEPS[-1])
        zone, found = reader_zone(), dict[int, str]()
        # Wall-clock time can go back within the axis, so its first one need not be the least.
        wall = ceil((zone.wall(self._start) - _GOES_BACK) / step) * step
        while wall <= zone.wall(self._timeline.end) + _GOES_BACK:
            # None if a clock change skips it, two if it repeats it.
            for instant in zone.instants(wall):
                if self._start <= instant <= self._timeline.end:
                    shown = zone.at(instant).strftime("%a %d" if wall % _DAY == 0 else "%H:%M")
                    is_free = abs(self._percent(instant) - _NOW) > _NOW_ROOM
                    found[instant] = shown if is_free else ""
            wall += step
        return [(self._place(instant), shown) for instant, shown in sorted(found.items())]

    def strip(self) -> Mapping[str, Any]:
        """The bars of how many runs go on at the same time, and the line of the slots."""
        timeline = self._timeline
        # Slots that are far from being needed would make the bars so low that they say nothing.
        peak = max((each.slots for each in timeline.busy), default=0.0)
        slots = timeline.slots or None
        is_near = slots is not None and slots <= max(4 * peak, 1)
        top = _ROOM * max(peak, slots or 0 if is_near else 0, 1)

        def height(number: float) -> float:
            return round(_HEIGHT * min(1.0, number / top), 1)

        bars = []
        for each in timeline.busy:
            if each.slots <= 0 or each.end <= each.start:
                continue
            kind = "planned" if each.is_planned else "past"
            kind += " over" if slots and each.slots > slots else ""
            of = f" of {slots} slots" if slots else " at the same time"
            when = short_time(int(each.start), timeline.now)
            text = f"{when}: {each.slots:.3g}{of}{' expected' if each.is_planned else ''}"
            tall = max(1.5, height(each.slots))
            x, width = self._place(each.start), self._width(each.start, each.end)
            bars.append((kind, x, width, _HEIGHT - tall, tall, text))
        return {
            "bars": bars,
            "height": _HEIGHT,
            "slots": slots,
            "slots_at": _HEIGHT - height(slots) if slots and is_near else None,
            "peak": f"{peak:.3g}",
        }

    def lane(self, lane: Lane) -> Drawn:
        """A lane with its marks."""
        name = self._asked.redaction.text(lane.name) if lane.by == "label" else lane.name
        href, about = schedule_link(lane.name), lane.trigger or ""
        if lane.by != "schedule":
            qualifier = "label" if lane.by == "label" else "type"
            # A label that is hidden leads nowhere, and there is no search for those without one.
            search = word_of(qualifier, lane.name) if lane.name and name == lane.name else ""
            href = link("./", q=search, span=self._asked.query.get("span", "")) if search else ""
            about = f"{len(lane.rows):,} of this {qualifier}"
        shown = visible(name) or "(no label)"
        if lane.by == "tasks":
            shown, about = f"{shown} (tasks)", f"{len(lane.rows):,} tasks that run once"
        if lane.status and lane.status != "waiting":
            about = f"{lane.status}; {about}"
        untold = [mark for mark in lane.marks if not mark.text]
        return Drawn(
            name=shown,
            href=href,
            about=visible(about),
            shapes=[*self._shapes(lane, href)],
            many=self._outline(untold),
            finished=len(untold),
            coming=self._coming(lane),
            ghosts=self._ghosts(lane),
        )

    def _shapes(self, lane: Lane, href: str) -> Iterator[Shape]:
        for mark in (*lane.pauses, *lane.clock_changes, *lane.marks):
            if not mark.text:
                continue
            text, where = visible(mark.text), href
            is_of_one = lane.by == "schedule" and lane.trigger is not None
            if mark.kind == "skipped" and mark.number > 1 and is_of_one and self._acts:
                # The page shows what would run, and runs it.
                span = {"from": str(int(mark.start)), "to": str(int(mark.end))}
                where = act_link("backfill", key=lane.name, **span)
            elif mark.time is not None:
                where = run_link(mark.key, mark.time)
            x, width = self._place(mark.start), self._width(mark.start, mark.end)
            due = mark.start if mark.due is None else mark.due
            if self._percent(mark.start) - self._percent(due) >= _SEEN:
                waited = self._width(due, mark.start)
                yield Shape("wait", self._place(due), waited, text, where)
            middle = (mark.start + mark.end) / 2
            at = {"late": mark.start, "skipped": middle}.get(mark.kind, mark.end)
            icon = self._place(at) if mark.kind in _ICONS else ""
            yield Shape(mark.kind, x, width, text, where, icon)

    def _ghosts(self, lane: Lane) -> Mapping[str, str]:
        """The outlines of what comes, and of what goes on for as long as it usually takes."""
        runs = any(mark.kind == "running" for mark in lane.marks)
        found: dict[str, list[Planned]] = {"planned": [], "tick": [], "rest": []}
        for each in lane.planned:
            if runs and each.start <= self._timeline.now:
                found["rest"].append(each)
            else:
                found["planned"].append(each)
                found["tick"].append(each._replace(end=each.start))
        return {kind: self._outline(spans) for kind, spans in found.items() if spans}

    def _outline(self, spans: Iterable[Mark | Planned]) -> str:
        """The path of many bars, in hundredths of per cent, and 10 high; they are on the axis."""
        parts, scale = [], 10_000 / self._seconds
        for each in spans:
            x, end = round((each.start - self._start) * scale), (each.end - self._start) * scale
            parts.append(f"M{x} 0V10H{end:.0f}V0z" if end > x + 1 else f"M{x} 0V10")
        return "".join(parts)

    def _coming(self, lane: Lane) -> str:
        """When a schedule runs next, and for how long."""
        if not lane.next:
            return ""
        shown = ", ".join(short_time(time, self._timeline.now) for time in lane.next)
        usual = "" if lane.usual is None else f"; usually takes {format_took(lane.usual)}"
        return f"next {shown}{usual}"

"""The timeline: what ran, what did not and why, and what is planned, as lanes on one axis.

A lane is a schedule; or all tasks of a type that run once; or, if the schedules are too many, all
schedules with a label or of a type. Now is in the middle of the axis.

What a page costs is bounded, however many schedules and records there are: so many rows and records
are read, and so many marks are made. Then neighbouring runs of one kind become one mark, which says
how many they are.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from dataclasses import replace as changed
from heapq import nsmallest
from statistics import median
from typing import Any, NamedTuple, TypedDict

from psched.base.errors import InvalidError, NotSupportedError, SchemaError
from psched.base.texts import counted
from psched.cli.shown import DUE, shown_reason, shown_status
from psched.cli.time_format import short_time
from psched.core.definition import Definition, parse_row
from psched.core.history.records import WHOLE
from psched.core.history.run import Run
from psched.core.model import PAUSED, RUNNING, Row
from psched.core.operations.extra_runs import schedule_key, schedule_of
from psched.core.operations.overview import DURATIONS
from psched.reports.load import Coming, coming_of, estimate
from psched.triggers.cron import clock_change_effects
from psched.web.asked import Asked
from psched.web.fates import kind_of, told
from psched.web.search import MOST_READ, Found, Search, parse_search

SPANS: Mapping[str, int] = {
    "20m": 1200,
    "1h": 3600,
    "4h": 14_400,
    "12h": 43_200,
    "2d": 172_800,
    "1w": 604_800,
    "2w": 1_209_600,
}
"""How many seconds the axis can have, by what the links say."""

USUAL_SPAN = "12h"

GROUPINGS = ("schedule", "label", "type")  # what the lanes can be

SORTS = ("key", "trouble")  # in which order

MOST_LANES = 500  # more schedules are grouped

_MOST_RECORDS = 20_000  # the most records that are read, the newest
_MOST_TOLD = 3000  # of more records, those that finished have no texts
_MOST_MARKS = 250  # more marks of one lane could not be told apart
_MOST_ASKED = 1000  # the most schedules whose earlier runs are searched for their durations
_MOST_INSTANTS = 30  # occurrences that did not run are shown one by one up to this number
_MOST_ONE_BY_ONE = 3000  # and on the page up to this one: each is a question to a trigger
_NEXT = 4  # the coming times that are named
_COLUMNS = 60  # the columns of each half of the strip
_MOST_PRESENT = 10  # more tasks of a lane that run, or are late, are one mark
_SMALL = 200  # the most characters of a payload that may stay in memory
_MOST_OF_GROUP = 90  # marks of a group are less close, because they would hide each other
_STATUSES = {RUNNING: "running", DUE: "late", PAUSED: "paused"}  # of rows that are counted
_WORST = ("failing", "late", "failed", "retried", "stopped", "released", "skipped")
_PROBLEMS = 3  # the most problems that are named


class Mark(NamedTuple):
    """Something on a lane. Times are Unix seconds.

    Attributes:
        kind: its kind, see `psched.web.fates.KINDS`.
        end: equals ``start`` if it took no time.
        text: what a person is told about it, in one line; empty for what has merely finished, if
            the records are many.
        key: the key of its record; empty if it stands for several.
        time: the scheduled time; None if it stands for several, or has none.
        due: since when the run could have started; None if it is not known.
        number: for how many runs or occurrences it stands.
    """

    kind: str
    start: float
    end: float
    text: str
    key: str = ""
    time: int | None = None
    due: float | None = None
    number: int = 1


class Planned(NamedTuple):
    """A run that is planned, for as long as it usually takes; or the ``number`` of a time."""

    start: float
    end: float
    number: int = 1


@dataclass(slots=True, kw_only=True)
class Lane:
    """A lane of the timeline.

    Attributes:
        by: what it stands for, of `GROUPINGS`; ``tasks`` for tasks of a type that run once.
        name: the key, the label or the type.
        rows: the rows of its schedules and tasks.
        marks: what happened, and what goes on.
        planned: what comes, without what ``pauses`` prevent.
        next: the first times of what comes, also of what is together in ``planned``.
        pauses: from when until when it is paused, which may be later than the axis ends, and why.
        usual: how many seconds its runs usually take; None if it is not known or they differ.
    """

    by: str
    name: str
    rows: list[Row] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    planned: list[Planned] = field(default_factory=list)
    next: list[int] = field(default_factory=list)
    pauses: list[Mark] = field(default_factory=list)
    clock_changes: list[Mark] = field(default_factory=list)
    usual: float | None = None
    status: str = ""
    trigger: str | None = None


class Busy(NamedTuple):
    """A column of the strip: the most runs at one moment in it."""

    start: float
    end: float
    slots: float
    is_planned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What the timeline shows.

    Attributes:
        by: what its lanes are, of `GROUPINGS`.
        counts: the number of records of each kind, and of schedules that run, are late or paused.
        slots: how many tasks the live workers can run at the same time; None if it is not known.
        remarks: what is missing in the picture, and why.
    """

    now: float
    start: int
    end: int
    search: Search
    by: str
    lanes: Sequence[Lane]
    schedules: int
    counts: Mapping[str, int]
    busy: Sequence[Busy]
    slots: int | None
    remarks: Sequence[str]


def read_timeline(asked: Asked) -> Timeline:
    """Read what the query asks for: ``span``, ``q``, ``by`` and ``sort``."""
    span = SPANS[asked.choice("span", SPANS, USUAL_SPAN)]
    search, by = parse_search(asked.query.get("q", "")), asked.choice("by", GROUPINGS, "")
    sort = asked.choice("sort", SORTS, SORTS[0])
    now = asked.schedules.now()
    return _Reading(asked, search, now, span).read(by, sort)


class _Reading:
    """Reads a timeline, and collects remarks on what is missing."""

    def __init__(self, asked: Asked, search: Search, now: float, span: int) -> None:
        self._asked = asked
        self._search = search
        self._now = now
        self._start = int(now) - span // 2
        self._end = self._start + span
        self._rows: Mapping[str, Row] = {}  # by their keys
        self._one_by_one = 0  # how many occurrences that did not run have been searched
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._untold = set[str]()  # the kinds of marks that have no texts
        self._remarks: list[str] = []
        self._problems: list[str] = []

    def read(self, by: str, sort: str) -> Timeline:
        rows = self._read_rows()
        self._rows = {row.key: row for row in rows}
        if not by:
            by = self._grouping(rows)
        for row in rows:
            self._lane(self._place(by, row, row)).rows.append(row)
        runs, slots = self._read_history(rows, by)
        lanes = self._chosen(sort)
        usual = self._usual(rows, runs)
        if len(runs) > _MOST_TOLD:
            self._untold.add("finished")
        for lane in lanes:
            self._describe(lane, usual)
            lane.marks = [*self._past(lane), *self._present(lane)]
        busy = [*self._past_busy(runs, rows), *self._plan(rows, usual, by)]
        problems = [*dict.fromkeys(self._problems)]
        self._remarks += [f"cannot be planned: {each}" for each in problems[:_PROBLEMS]]
        if more := problems[_PROBLEMS:]:
            self._remarks.append(f"cannot be planned: {len(more)} more")
        counts = Counter(map(kind_of, runs))
        statuses = (shown_status(row, self._now) for row in rows)
        counts.update(_STATUSES[status] for status in statuses if status in _STATUSES)
        return Timeline(
            now=self._now,
            start=self._start,
            end=self._end,
            search=self._search,
            by=by,
            lanes=lanes,
            schedules=len({schedule_key(row.key) for row in rows}),
            counts=counts,
            busy=busy,
            slots=slots,
            remarks=self._remarks,
        )

    # --- rows and lanes ---

    def _read_rows(self) -> list[Row]:
        found = Found(self._asked, self._search, self._now, with_last=False)
        # The payloads are not shown. Those that are large are dropped; a copy of a row takes longer
        # than to read it, and more memory than a small payload.
        rows = [
            row if len(row.data or "") <= _SMALL else changed(row, data=None)
            for row, _ in found.rows
        ]
        if found.is_cut:
            self._remarks.append(f"only the first {MOST_READ:,} schedules and tasks were read")
        return rows

    def _grouping(self, rows: Sequence[Row]) -> str:
        """What the lanes are, unless the reader chooses: of too many schedules, groups."""
        schedules = [row for row in rows if row.cron is not None]
        if len(schedules) <= MOST_LANES:
            return "schedule"
        labels, types = ({row.label for row in schedules}, {row.type for row in schedules})
        if len(labels) == len(types) == 1:
            return "schedule"  # of which the first are shown
        by = "label" if 1 < len(labels) <= MOST_LANES else "type"
        self._remarks.append(f"grouped by {by}, because there are {len(schedules):,} schedules")
        return by

    def _place(self, by: str, of: Row | Run, row: Row | None) -> tuple[str, str]:
        """The lane of a row, or of a record; of the latter, ``row`` is its schedule or task."""
        known = of if row is None else row
        if by == "label":
            return by, known.label or ""
        if by == "type":
            return by, known.type
        place = by, schedule_key(of.key)
        is_schedule = row is not None and (row.cron is not None or schedule_of(row.key) is not None)
        return place if is_schedule or place in self._lanes else ("tasks", known.type)

    def _lane(self, place: tuple[str, str]) -> Lane:
        if place not in self._lanes:
            self._lanes[place] = Lane(by=place[0], name=place[1])
        return self._lanes[place]

    def _chosen(self, sort: str) -> list[Lane]:
        """The lanes in their order, at most `MOST_LANES`."""
        lanes = sorted(self._lanes.values(), key=lambda lane: (lane.by == "tasks", lane.name))
        if sort == "trouble":
            lanes.sort(key=self._trouble)
        if (more := len(lanes) - MOST_LANES) > 0:
            self._remarks.append(f"{counted(more, 'lane')} more; search, or group them")
        return lanes[:MOST_LANES]

    def _trouble(self, lane: Lane) -> int:
        """The place of the worst of a lane among `_WORST`."""
        kinds = {kind_of(run) for run in lane.runs}
        newest = next((run for run in lane.runs if run.outcome is not None), None)
        if newest is not None and kind_of(newest) == "failed":
            kinds.add("failing")
        if any(shown_status(row, self._now) == DUE for row in lane.rows):
            kinds.add("late")
        return next((n for n, kind in enumerate(_WORST) if kind in kinds), len(_WORST))

    def _describe(self, lane: Lane, usual: Mapping[str, float]) -> None:
        if lane.by != "schedule":
            return
        lane.usual = usual.get(lane.name)
        row = next((row for row in lane.rows if row.key == lane.name), None)
        if row is None:
            return
        lane.pauses = [*self._pauses(lane)]
        newest = next((run for run in lane.runs if run.key == lane.name and run.fate), None)
        lane.status = shown_status(row, self._now, newest)
        lane.trigger = None if row.cron is None else self._asked.redaction.text(row.cron)
        definition = self._definition(row)
        if definition is None or row.status == PAUSED:
            return
        for each in clock_change_effects(definition.trigger, int(self._now), self._end):
            instant = each.change.instant
            lane.clock_changes.append(Mark("clock", instant, instant, each.text))

    def _definition(self, row: Row) -> Definition | None:
        try:
            return parse_row(row, self._asked.settings)
        except InvalidError as error:
            self._problems.append(f"{row.key}: {error}")
            return None

    # --- the past ---

    def _read_history(self, rows: Sequence[Row], by: str) -> tuple[list[Run], int | None]:
        schedules = self._asked.schedules
        try:
            runs = [*self._read_runs(rows)]
            slots = sum(worker.slots for worker in schedules.live_workers())
        except (NotSupportedError, SchemaError) as error:
            self._remarks.append(f"no run history: {error}")
            return [], None
        for run in runs:
            row = self._rows.get(run.key) or self._rows.get(schedule_key(run.key))
            self._lane(self._place(by, run, row)).runs.append(run)
        return runs, slots

    def _read_runs(self, rows: Sequence[Row]) -> Iterator[Run]:
        """The records that fit the search, the newest first."""
        search = self._search
        known = {schedule_key(row.key) for row in rows} if search else None
        found = self._asked.schedules.runs(
            type=search.types or None, since=self._start, limit=_MOST_RECORDS
        )
        number, ended = 0, self._now
        for run in found:
            number, ended = number + 1, run.ended
            if known is None or schedule_key(run.key) in known or search.finds_record(run):
                record = run.record
                # Errors and results can be large.
                yield (
                    changed(run, record=changed(record, error=None, result=None))
                    if (record.error or record.result)
                    else run
                )
        if number == _MOST_RECORDS:
            since = short_time(int(ended), self._now)
            self._remarks.append(
                f"only the newest {_MOST_RECORDS:,} records were read, back to {since}; zoom in"
            )

    def _past(self, lane: Lane) -> Iterator[Mark]:
        """The marks of what is recorded; of too many, neighbours of one kind are one mark."""
        items = [*self._items(lane)]
        most = _MOST_MARKS if lane.by == "schedule" else _MOST_OF_GROUP
        if len(items) <= most:
            for kind, begin, end, run in items:
                is_told = kind not in self._untold
                text = told(run, self._clock, self._asked.redaction) if is_told else ""
                due = run.due if run.outcome is not None else None
                number = run.count or 1
                yield Mark(kind, begin, end, text, run.key, run.scheduled_time, due, number)
            return
        part = (self._now - self._start) / most
        parts = defaultdict[tuple[int, str], list[tuple[float, float, int]]](list)
        for kind, begin, end, run in items:
            place = int((begin - self._start) / part), kind
            parts[place].append((begin, end, run.count or 1))
        for (_, kind), found in sorted(parts.items()):
            begin, end = min(each[0] for each in found), max(each[1] for each in found)
            number = sum(each[2] for each in found)
            text = f"{number} {kind}, {self._clock(begin)} to {self._clock(end)}"
            yield Mark(kind, begin, end, text, number=number)

    def _items(self, lane: Lane) -> Iterator[tuple[str, float, float, Run]]:
        """Kind, begin and end of each run, and of each occurrence that did not run."""
        for recorded in lane.runs:
            kind = kind_of(recorded)
            for run in self._occurrences(recorded):
                record = run.record
                begin, end = float(record.scheduled_time), float(record.last)
                if run.outcome is not None:
                    begin, end = record.began / 1000, run.ended
                if begin <= self._end and end >= self._start:
                    yield kind, max(begin, self._start), min(end, self._end), run

    def _occurrences(self, run: Run) -> Iterable[Run]:
        """The occurrences of a span one by one, if the trigger still has so many of them."""
        if run.count is None or not 1 < run.count <= _MOST_INSTANTS or run.until is None:
            return (run,)
        if self._one_by_one + run.count > _MOST_ONE_BY_ONE:
            return (run,)
        self._one_by_one += run.count
        row = self._rows.get(run.key)
        definition = None if row is None else self._definition(row)
        if definition is None or definition.trigger is None:
            return (run,)
        times, time = list[int](), definition.trigger.next_after(run.scheduled_time - 1)
        while time is not None and time <= run.until and len(times) <= run.count:
            times.append(time)
            time = definition.trigger.next_after(time)
        one = changed(run.record, until=None, count=1)
        each = (changed(run, record=changed(one, scheduled_time=time)) for time in times)
        return each if len(times) == run.count else (run,)

    # --- the present ---

    def _present(self, lane: Lane) -> Iterator[Mark]:
        """The marks of what runs or is late; many of one kind are one mark."""
        found = defaultdict[str, list[tuple[int, Row]]](list)
        for row in lane.rows:
            if shown_status(row, self._now) == DUE:
                found["late"].append((row.next_run_time or 0, row))
            elif row.owner is not None and row.claimed_at is not None:
                found["running"].append((row.claimed_at, row))
        for kind, rows in found.items():
            # A row that was inserted by plain SQL can have the time 0, which means at once.
            since = min((time for time, _ in rows if time > 0), default=int(self._now))
            if len(rows) > _MOST_PRESENT:
                text = f"{len(rows):,} {kind}, since {self._clock(since)}"
                yield Mark(kind, since, self._now, text, number=len(rows))
                continue
            for given, row in rows:
                time = given if given > 0 else int(self._now)
                text = f"{kind} since {self._clock(time)}"
                if row.reason:
                    text = f"{text}: {self._asked.sentence(row.reason)}"
                yield Mark(kind, time, self._now, text, row.key, row.next_time)

    def _pauses(self, lane: Lane) -> Iterator[Mark]:
        for row in lane.rows:
            if row.status == PAUSED:
                until = self._end if row.next_run_time is None else row.next_run_time
                text = f"paused {self._asked.sentence(shown_reason(row, self._now))}"
                yield Mark("paused", self._now, until, text, row.key)

    # --- the future ---

    def _usual(self, rows: Iterable[Row], runs: Iterable[Run]) -> Mapping[str, float]:
        """How many seconds the runs of each schedule usually take."""
        took: dict[str, list[float]] = {schedule_key(row.key): [] for row in rows}
        for record in (run.record for run in runs):
            found = took.get(schedule_key(record.key))
            if found is None or len(found) == DURATIONS or record.took is None:
                continue
            if record.outcome in WHOLE:
                found.append(record.took)
        missing = [row.key for row in rows if row.cron is not None and not took.get(row.key)]
        with suppress(NotSupportedError, SchemaError):
            for key, durations in self._asked.schedules.durations(missing[:_MOST_ASKED]).items():
                took[key] = [each / 1000 for each in durations]
        return {key: median(found) for key, found in took.items() if found}

    def _plan(self, rows: Sequence[Row], usual: Mapping[str, float], by: str) -> list[Busy]:
        """Give the lanes what is planned, and return how busy that makes the workers."""
        start, coming = int(self._now), list[Coming]()
        for row in rows:
            # So far in the future, or at rest, or paused until somebody resumes it.
            if row.next_run_time is None or row.next_run_time >= self._end:
                continue
            try:
                took = usual.get(schedule_key(row.key))
                coming.append(coming_of(row, self._asked.settings, start, took))
            except InvalidError as error:
                self._problems.append(f"{row.key}: {error}")
        step = max(1, (self._end - start) // _COLUMNS)
        load, runs = estimate(coming, start, self._end, per=step)
        self._problems += [f"{key}: {why}" for key, why in load.broken.items()]
        planned = defaultdict[tuple[str, str], list[tuple[Sequence[int], float, float | None]]](
            list
        )
        for group in runs.groups:
            for key, took in group.members:
                row = self._rows[key]
                place = self._place(by, row, row)
                planned[place].append((group.times, took, group.rest))
        for place, found in planned.items():
            lane, times = self._lanes[place], (time for each in found for time in each[0])
            lane.next = nsmallest(_NEXT, (time for time in times if time > self._now))
            lane.planned = [*self._planned(found)]
        return [
            Busy(max(each.start, start), min(each.start + step, self._end), each.slots, True)  # noqa: FBT003
            for each in load.intervals
        ]

    def _planned(
        self, found: Sequence[tuple[Sequence[int], float, float | None]]
    ) -> Iterator[Planned]:
        """What is planned on a lane, in order; of too many runs, how many come in each part."""
        if sum(len(times) for times, _, _ in found) <= _MOST_MARKS:
            runs = sorted((time, took) for times, took, _ in found for time in times)
            yield from (Planned(time, min(time + took, self._end)) for time, took in runs)
        else:
            part = (self._end - self._now) / _MOST_MARKS
            parts = Counter(int((t - self._now) / part) for times, _, _ in found for t in times)
            for place, number in sorted(parts.items()):
                start = self._now + place * part
                yield Planned(start, start + part, number)
        for _, _, rest in found:
            if rest is not None and rest < self._end:
                yield Planned(rest, self._end, 0)

    # --- the strip ---

    def _past_busy(self, runs: Iterable[Run], rows: Iterable[Row]) -> list[Busy]:
        """How many runs were going on at the same time, at most in each column."""
        spans = [(run.started, run.ended) for run in runs if run.started is not None]
        spans += [(row.claimed_at, self._now) for row in rows if row.owner and row.claimed_at]
        begins = sorted(max(begin, self._start) for begin, _ in spans)
        ends = sorted(min(end, self._now) for _, end in spans)
        step, found = (self._now - self._start) / _COLUMNS, list[Busy]()
        for column in range(_COLUMNS):
            start, end = self._start + column * step, self._start + (column + 1) * step
            before, until = bisect_left(begins, start), bisect_left(begins, end)
            levels = [before - bisect_left(ends, start)]
            # A run that ends when another one begins does not go on at the same time.
            levels += (at + 1 - bisect_right(ends, begins[at]) for at in range(before, until))
            found.append(Busy(start, end, max(levels)))
        return found

    # --- texts ---

    def _clock(self, time: float) -> str:
        return short_time(int(time), self._now, seconds=True)


class LaneDocument(TypedDict):
    """A lane."""

    by: str
    name: str
    schedules: int
    status: str
    trigger: str | None
    usual: float | None
    marks: Sequence[Mark]
    next: Sequence[int]
    planned: Sequence[Planned]
    pauses: Sequence[Mark]
    clock_changes: Sequence[Mark]


class TimelineDocument(TypedDict):
    """The timeline: what ran, what did not and why, and what is planned."""

    now: float
    start: int
    end: int
    search: str
    by: str
    schedules: int
    counts: Mapping[str, int]
    slots: int | None
    busy: Sequence[Busy]
    remarks: Sequence[str]
    lanes: Sequence[LaneDocument]


def document(timeline: Timeline, shown: Callable[[str], str]) -> dict[str, Any]:
    """The timeline as JSON; ``shown`` hides what is to be hidden in labels."""
    return {
        "now": timeline.now,
        "start": timeline.start,
        "end": timeline.end,
        "search": timeline.search.text,
        "by": timeline.by,
        "schedules": timeline.schedules,
        "counts": dict(timeline.counts),
        "slots": timeline.slots,
        "busy": [each._asdict() for each in timeline.busy],
        "remarks": [*map(shown, timeline.remarks)],
        "lanes": [_lane_object(lane, shown) for lane in timeline.lanes],
    }


def _lane_object(lane: Lane, shown: Callable[[str], str]) -> dict[str, Any]:
    return {
        "by": lane.by,
        "name": shown(lane.name) if lane.by == "label" else lane.name,
        "schedules": len(lane.rows),
        "status": lane.status,
        "trigger": lane.trigger,
        "usual": lane.usual,
        "marks": [mark._asdict() for mark in lane.marks],
        "next": lane.next,
        "planned": [each._asdict() for each in lane.planned],
        "pauses": [mark._asdict() for mark in lane.pauses],
        "clock_changes": [mark._asdict() for mark in lane.clock_changes],
    }

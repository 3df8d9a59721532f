"""When the coming runs are most: how many tasks run at each moment, if each starts when it is due.

`estimate` computes the runs of all schedules in a period, second by second: a run occupies a slot
for as long as the runs of its schedule usually take. A run that takes half a second occupies half a
slot for one second. A run with ``jitter`` is spread evenly over the time in which it may start.

The work is bounded. Schedules with the same trigger are computed together, and of each trigger at
most `MOST_TIMES` times are computed (`MOST_ASKED` of a user's trigger). If it has more, its further
runs are spread evenly, as often as it ran until then.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from itertools import accumulate
from math import ceil
from statistics import median
from typing import NamedTuple

from psched.base.errors import InvalidError
from psched.config import Config
from psched.core.definition import parse_row
from psched.core.model import PAUSED, Row
from psched.core.operations.extra_runs import schedule_of
from psched.triggers.custom import CustomTrigger
from psched.triggers.trigger import Trigger

ASSUMED = 1.0
"""How many seconds a run takes if nothing is known about it."""

TINY = 1e-6
"""A load below this is an error of rounding."""

MOST_TIMES = 1500
"""The most times of a trigger that are computed: as many as a day has minutes, and some more."""

MOST_ASKED = 200
"""The most times of a user's trigger that are computed: each is a question to another process."""

LONGEST = 31 * 86_400
"""The longest period, in seconds."""

_DISTINCT = 200
"""The durations of a group are rounded if more of them are different."""

_WORST = 5
"""How many of the worst intervals are explained."""

_CAUSES = 5
"""How many schedules an explanation names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """A schedule whose runs are estimated. Times are Unix seconds, and durations are seconds."""

    key: str
    type: str
    trigger: Trigger | None  # its trigger; None if it runs once. So is the trigger's ``text``.
    text: str | None
    # The scheduled time of the occurrence that is due or running next; None if it is not known.
    cursor: int | None
    first: int | None  # the earliest run of that occurrence; None if it runs already
    delay: int = 0
    jitter: int = 0
    took: float | None = None  # how long its runs usually take; None if it is not known
    ran: float | None = None  # for how long it has run so far; None if it does not run


def has_past(row: Row) -> bool:
    """Whether earlier runs of the row can be known; a task that runs once has none."""
    return row.cron is not None or schedule_of(row.key) is not None


def coming_of(row: Row, settings: Config, start: int, took: float | None) -> Coming:
    """What is estimated of a row as people see it, from ``start`` on, in Unix seconds.

    It raises an `InvalidError` if the row is invalid.
    """
    definition = parse_row(row, settings)
    runs = row.owner is not None
    if row.status == PAUSED and definition.trigger is not None:
        # It goes on at the end of the pause; what becomes due until then is skipped.
        row = changed(row, next_time=row.next_run_time, next_run_time=None)
    return Coming(
        key=row.key,
        type=row.type,
        trigger=definition.trigger,
        text=row.cron,
        cursor=row.next_time,
        first=None if runs else row.next_run_time,
        delay=definition.delay,
        jitter=definition.settings.jitter,
        took=took,
        ran=float(max(0, start - (row.claimed_at or start))) if runs else None,
    )


class Cause(NamedTuple):
    """A schedule that runs at the worst moment of an interval, and for how many seconds.

    ``share`` says how many slots it occupies then; below 1 if it may also run before or after.
    """

    key: str
    share: float
    took: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A minute, or another interval."""

    start: int  # its beginning, in Unix seconds
    runs: float  # how many runs begin in it
    busy: float  # for how many seconds all slots together are occupied
    slots: float  # the most slots that are occupied at one moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """One of the intervals in which the most slots are occupied."""

    interval: Interval
    at: int  # the second in which the most slots are occupied, in Unix seconds
    causes: Sequence[Cause]  # schedules that run then, those that take longest first
    more: int  # how many other schedules run then


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The coming runs of a period, from ``start`` to ``end`` in Unix seconds."""

    start: int
    end: int
    schedules: int  # the number of schedules that run in it
    runs: float  # the number of runs
    intervals: Sequence[Interval]
    # The worst intervals, the worst first; the others have fewer occupied slots.
    worst: Sequence[Worst]
    slots: float  # the most slots that are occupied at one moment
    guessed: int  # the number of schedules for which the durations of others of their type are used
    # The number of schedules about whose durations nothing is known; each of their runs counts as
    # `ASSUMED` seconds.
    unknown: int
    thinned: Sequence[str]  # the keys of schedules with more runs than were computed
    # The keys of schedules whose runs take longer than the time until the next one.
    crowded: Sequence[str]
    broken: Mapping[str, str]  # why the runs of some schedules are not known, by key

    @property
    def slots_needed(self) -> int:
        """How many slots are needed so that no run waits for one."""
        return slots_needed(self.slots)


def slots_needed(slots: float) -> int:
    """The whole number of slots for so many that are occupied on average within a second."""
    return ceil(slots - TINY)


@dataclass(slots=True, kw_only=True)
class Group:
    """Schedules that run at the same times."""

    trigger: Trigger | None = None  # their trigger; None if they run once
    text: str | None = None  # the text of the trigger
    times: Sequence[int]  # when a run of each of them may start at the earliest, in Unix seconds
    gap: float | None = None  # the average seconds between two runs; None if there are not two
    # From when on further runs are spread evenly; None if all are among ``times``.
    rest: float | None = None
    jitter: int = 0  # for how many seconds each start is spread
    # The keys of the schedules, and how long their runs take, at most ``gap``; those that take
    # longest first.
    members: list[tuple[str, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of all schedules in a period of Unix seconds."""

    start: int
    end: int
    groups: Sequence[Group]
    load: list[float]  # the occupied slots in each second


def estimate(
    schedules: Iterable[Coming], start: int, end: int, *, per: int = 60
) -> tuple[Load, Runs]:
    """Estimate the load of a period, and return also the runs from which it was computed."""
    given = [*schedules]
    of_type: defaultdict[str, list[float]] = defaultdict(list)
    for each in given:
        if each.took is not None:
            of_type[each.type].append(each.took)
    usual = {type_: median(took) for type_, took in of_type.items()}
    collected = _Collected(start, end)
    for each in given:
        took = usual.get(each.type, ASSUMED) if each.took is None else each.took
        collected.add(each, took)
    groups = collected.groups()
    begun = _begun(groups, start, end, per)
    runs = spread(groups, start, end)
    whole = [
        Interval(start=each, runs=number, busy=sum(runs.load[part]), slots=max(runs.load[part]))
        for (each, part), number in zip(_parts(start, end, per), begun, strict=True)
    ]
    new = [each.type in usual for each in given if each.took is None]
    load = Load(
        start=start,
        end=end,
        schedules=len({key for group in groups for key, _ in group.members}),
        runs=sum(each.runs for each in whole),
        intervals=whole,
        worst=[*_worst(runs, whole, per)],
        slots=max((each.slots for each in whole), default=0.0),
        guessed=new.count(True),
        unknown=new.count(False),
        thinned=sorted(key for g in groups if g.rest is not None for key, _ in g.members),
        crowded=sorted(collected.crowded),
        broken=collected.broken,
    )
    return load, runs


class _Times(NamedTuple):
    """The times of a trigger in the period; see `Group`."""

    times: Sequence[int]
    gap: float | None
    rest: float | None


class _Collected:
    """Collects schedules in groups; see `Load` for what is ``crowded`` or ``broken``."""

    def __init__(self, start: int, end: int) -> None:
        self._start = start
        self._end = end
        self._times: dict[tuple[Trigger, int], _Times] = {}
        self._groups: dict[object, Group] = {}  # by what their schedules have in common
        self.crowded: set[str] = set()
        self.broken: dict[str, str] = {}

    def add(self, schedule: Coming, took: float) -> None:
        """Add a schedule whose runs take so many seconds."""
        after = self._add_next(schedule, took)
        if schedule.trigger is None:
            return
        try:
            times, gap, rest = self._times_of(schedule.trigger, schedule.delay)
        except InvalidError as error:
            self.broken[schedule.key] = str(error)
            return
        begin = bisect_right(times, after)
        if begin == len(times) and rest is None:
            return
        if gap is not None and took > gap:
            self.crowded.add(schedule.key)
            took = gap
        place = (schedule.trigger, schedule.text, schedule.delay, schedule.jitter, begin)
        if place not in self._groups:
            self._groups[place] = Group(
                trigger=schedule.trigger,
                text=schedule.text,
                times=times[begin:],
                gap=gap,
                rest=rest,
                jitter=schedule.jitter,
            )
        self._groups[place].members.append((schedule.key, took))

    def groups(self) -> list[Group]:
        """The schedules that run in the period; those that run once come last."""
        for group in self._groups.values():
            group.members = _longest_first(group.members, group.gap)
        return sorted(self._groups.values(), key=lambda group: group.trigger is None)

    def _add_next(self, schedule: Coming, took: float) -> int:
        """Add the run that goes on, or comes next if it is not one of the trigger's usual ones.

        It returns the time after which the trigger's runs are still to be added.
        """
        if schedule.ran is not None:
            left = max(took - schedule.ran, 1.0)  # it is not over yet
            self._add_once(schedule.key, self._start, left)
        elif schedule.trigger is not None and self._is_usual(schedule):
            return (
                self._start - 1 if schedule.cursor is None else schedule.cursor + schedule.delay - 1
            )
        elif schedule.first is not None and schedule.first < self._end:
            self._add_once(schedule.key, max(schedule.first, self._start), took)
        # Occurrences between the cursor and the beginning are left to the setting catchup.
        known = schedule.cursor if schedule.cursor is not None else self._start
        return max(known + schedule.delay, self._start - 1)

    def _add_once(self, key: str, time: int, took: float) -> None:
        self._groups.setdefault(time, Group(times=(time,))).members.append((key, took))

    def _is_usual(self, schedule: Coming) -> bool:
        """Whether the next run comes when the trigger says, and not for example as a retry."""
        if schedule.cursor is None or schedule.first is None:
            return False
        planned = schedule.cursor + schedule.delay
        return planned >= self._start and planned <= schedule.first <= planned + schedule.jitter

    def _times_of(self, trigger: Trigger, delay: int) -> _Times:
        if (trigger, delay) not in self._times:
            self._times[trigger, delay] = self._compute(trigger, delay)
        return self._times[trigger, delay]

    def _compute(self, trigger: Trigger, delay: int) -> _Times:
        most = MOST_ASKED if isinstance(trigger, CustomTrigger) else MOST_TIMES
        times: list[int] = []
        time = trigger.next_after(self._start - delay - 1)
        while time is not None and time + delay < self._end and len(times) < most:
            times.append(time + delay)
            time = trigger.next_after(time)
        if not times or time is None:
            return _Times(tuple(times), None, None)
        # The gap until the first time after those that are known counts, too.
        following = time + delay
        gap = (following - times[0]) / len(times)
        return _Times(tuple(times), gap, None if following >= self._end else following)


def _longest_first(
    members: Sequence[tuple[str, float]], most: float | None
) -> list[tuple[str, float]]:
    """The members of a group in order. If their durations are very many, these are rounded."""
    if len({took for _, took in members}) > _DISTINCT:
        members = [(key, min(_rounded(took), most or took)) for key, took in members]
    return sorted(members, key=lambda each: (-each[1], each[0]))


def _rounded(took: float) -> float:
    """A duration that is at most 2 % off, so that there are not many different ones."""
    if took < 64:  # noqa: PLR2004  # up to a minute, tenths of seconds are different
        return round(took, 1)
    digits = int(took).bit_length() - 6
    return float(round(took / 2**digits) * 2**digits)


def spread(groups: Sequence[Group], start: int, end: int) -> Runs:
    """Compute how many slots are occupied in each second."""
    # A period can have millions of seconds, so there are few lists of them at a time.
    size = end - start
    steps = [0.0] * size  # how much the load grows from one second to the next
    spread_out = [group for group in groups if group.jitter]
    for group in spread_out:  # they come first: they tell how much the steps grow
        kernel = _spread_kernel(group)
        for time in group.times:
            _add_kernel(steps, kernel, time - start, size)
    if spread_out:
        steps = [*accumulate(steps)]
    for group in groups:
        if not group.jitter:
            kernel = _kernel(took for _, took in group.members)
            for time in group.times:
                _add_kernel(steps, kernel, time - start, size)
        if group.rest is not None and group.gap:
            began = max(0, int(group.rest) - start)
            busy = sum(took for _, took in group.members) / group.gap
            _add_evenly(steps, began, size, busy * (size - began), size)
    return Runs(start, end, groups, _summed(steps))


def _begun(groups: Sequence[Group], start: int, end: int, per: int) -> list[float]:
    """How many runs begin in each interval."""
    size = end - start
    begun = [0.0] * size
    for group in groups:
        number = len(group.members)
        for time in group.times if group.jitter else ():
            place = time - start
            _add_evenly(begun, place, place + group.jitter + 1, number, size)
        if group.rest is not None and group.gap:
            began = max(0, int(group.rest) - start)
            _add_evenly(begun, began, size, number / group.gap * (size - began), size)
    if any(begun):
        begun = _summed(begun)
    for group in groups:
        for time in () if group.jitter else group.times:
            begun[time - start] += len(group.members)
    return [sum(begun[part]) for _, part in _parts(start, end, per)]


def _summed(changes: list[float]) -> list[float]:
    """The sums of changes up to each place; the list itself is changed."""
    for place, each in enumerate(accumulate(changes)):
        changes[place] = each if each > TINY else 0.0
    return changes


def _kernel(durations: Iterable[float]) -> list[tuple[int, float]]:
    """How the load changes so many seconds after the beginning of runs that take so long."""
    changes: defaultdict[int, float] = defaultdict(float)
    for took in durations:
        whole, part = divmod(took, 1.0)
        changes[0] += 1.0 if whole else part
        if whole:
            changes[int(whole)] -= 1.0 - part
        changes[int(whole) + 1] -= part
    return [(offset, change) for offset, change in changes.items() if change]


def _spread_kernel(group: Group) -> list[tuple[int, float]]:
    """How the steps change so many seconds after the beginning of runs whose start is spread."""
    width = group.jitter + 1
    changes: defaultdict[int, float] = defaultdict(float)
    for _, took in group.members:
        length = max(1, round(took))
        height = min(1.0, took) / width
        for offset, sign in ((0, 1), (width, -1), (length, -1), (length + width, 1)):
            changes[offset] += sign * height
    return [(offset, change) for offset, change in changes.items() if change]


def _add_kernel(
    target: list[float], kernel: Sequence[tuple[int, float]], place: int, size: int
) -> None:
    """Add changes after a place; those before the beginning count from the beginning on."""
    for offset, change in kernel:
        at = place + offset
        if at < size:
            target[max(at, 0)] += change


def _add_evenly(steps: list[float], begin: int, end: int, amount: float, size: int) -> None:
    """Add an amount that is spread evenly over the seconds from begin to end."""
    if end <= begin:
        return
    height = amount / (end - begin)
    if begin < size:
        steps[max(begin, 0)] += height
    if end < size:
        steps[max(end, 0)] -= height


def _parts(start: int, end: int, per: int) -> Iterator[tuple[int, slice]]:
    """The beginnings and the seconds of a clock's intervals; the first and last can be shorter."""
    for begin in range(start - start % per, end, per):
        yield begin, slice(max(0, begin - start), begin + per - start)


def _worst(runs: Runs, intervals: Sequence[Interval], per: int) -> Iterator[Worst]:
    busiest = sorted(intervals, key=lambda each: (-each.slots, -each.runs, each.start))
    for interval in busiest[:_WORST]:
        if interval.slots <= 0:
            return
        begin = max(0, interval.start - runs.start)
        part = runs.load[begin : interval.start - runs.start + per]
        at = runs.start + begin + part.index(max(part))
        causes = [*causes_at(runs, at)]
        causes.sort(key=lambda each: (-each.share, -each.took, each.key))
        yield Worst(
            interval=interval,
            at=at,
            causes=causes[:_CAUSES],
            more=len(causes) - len(causes[:_CAUSES]),
        )


def causes_at(runs: Runs, second: int) -> Iterator[Cause]:
    """The schedules that occupy a slot in a second, in Unix seconds."""
    for group in runs.groups:
        longest = group.members[0][1]
        since = bisect_left(group.times, second - ceil(longest) - group.jitter - 1)
        until = bisect_right(group.times, second)
        begun = group.times[since:until]
        spread = group.rest is not None and group.gap and second >= group.rest
        for key, took in group.members if begun or spread else ():
            share = sum(_share(second - time, took, group.jitter) for time in begun)
            if spread and group.gap:
                share += took / group.gap
            if share > TINY:
                yield Cause(key, min(1.0, share), took)


def _share(age: int, took: float, jitter: int) -> float:
    """How many slots a run occupies in the second that begins so long after its time."""
    if not jitter:
        return max(0.0, min(1.0, took - age))
    width = jitter + 1
    length = max(1, round(took))
    begun = min(1.0, (age + 1) / width)
    ended = min(1.0, max(0.0, (age + 1 - length) / width))
    return (begun - ended) * min(1.0, took)

"""Proposes other times for schedules, so that fewer of them run at the same moment.

Only schedules whose exact time hardly matters are moved, and only within their own interval:

* ``@every`` with an interval of two seconds or more: its offset is changed;
* a cron line that names minutes as plain numbers, and runs every hour of the day: its minutes are
  changed, all by the same number.

A time of day, such as 02:30, may have been chosen for a reason, so such schedules stay where they
are. So do schedules with a ``jitter``, which are spread already, and users' triggers.

The search is greedy. First all schedules that cannot be moved are placed. Then the others are
placed, one after the other, those with the fewest possible times first: each stays where it is if
the load there does not exceed a limit, else it gets the time at which it disturbs least. This is
done twice: the peak that the first pass reaches is the limit of the second one, so that no more
schedules are moved than this peak needs.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from math import inf
from operator import add
from typing import NamedTuple

from psched.reports.load import (
    TINY,
    Coming,
    Group,
    Load,
    Runs,
    estimate,
    slots_needed,
    spread,
)
from psched.triggers.cron import Cron
from psched.triggers.trigger import Every, Trigger, first, parse

_MOST_PLACES = 60
"""The most offsets of ``@every`` that are tried."""

_MOST_WORK = 100_000_000
"""The most numbers that one pass may read: it takes a few seconds at most."""

_FOLDED = 0.3
"""If the runs of schedules with a common interval are longer than so many times the period, the
load in all these intervals is folded into one interval."""

_ROOM = 1.2
"""The limit of the first pass, as a multiple of the average load."""

_MINUTES = re.compile(r"(?:\*/(\d+)|(\d+)-(\d+)(?:/(\d+))?|(\d+)/(\d+)|(\d+))")
_HOUR = 60


class Move(NamedTuple):
    """A proposed change of the text of a schedule's trigger."""

    key: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Which schedules to move."""

    moves: Sequence[Move]  # the changes, the most useful first
    slots: float  # the most slots that are occupied at one moment after all of these changes
    movable: int  # how many schedules could have been moved
    complete: bool  # whether the search has ended by itself, and not because it took too long


def propose(schedules: Sequence[Coming], load: Load, runs: Runs) -> Proposal:
    """Propose changes that lower the peak of a load."""
    movable = [each for each in runs.groups if is_movable(each)]
    fixed = spread([each for each in runs.groups if not is_movable(each)], runs.start, runs.end)
    average = sum(runs.load) / max(1, len(runs.load))
    cycles = _cycles(movable, runs.start, runs.end)
    first_pass = _Pass(fixed, cycles, max(1.0, _ROOM * average, max(fixed.load, default=0.0)))
    second_pass = _Pass(fixed, cycles, first_pass.peak)
    best = min(second_pass, first_pass, key=lambda each: (slots_needed(each.peak), len(each.moves)))
    number = sum(len(each.members) for each in movable)
    if best.moves and slots_needed(best.peak) < load.slots_needed:
        changes = _moved(schedules, {move.key: move for move in best.moves}, runs.start)
        after, _ = estimate(changes, runs.start, runs.end)
        if after.slots_needed < load.slots_needed:
            return Proposal(
                moves=best.moves, slots=after.slots, movable=number, complete=best.complete
            )
    return Proposal(moves=(), slots=load.slots, movable=number, complete=best.complete)


def _moved(schedules: Sequence[Coming], moves: Mapping[str, Move], start: int) -> Iterator[Coming]:
    """The schedules after the changes; like `psched edit`, a change computes the next time anew."""
    for each in schedules:
        move = moves.get(each.key)
        if move is None or each.trigger is None:
            yield each
            continue
        trigger = _parsed(move.after, each.trigger)
        if each.ran is not None:
            yield changed(each, trigger=trigger, text=move.after)
            continue
        cursor = first(trigger, start)
        begin = None if cursor is None else cursor + each.delay
        yield changed(each, trigger=trigger, text=move.after, cursor=cursor, first=begin)


def _parsed(text: str, former: Trigger) -> Trigger:
    if isinstance(former, Cron):
        return parse(text, former.timezone, dst_policy=former.dst_policy, reading=former.reading)
    return parse(text, "UTC")


# --- which times are possible ----------------------------------------------------------------


class _Variant(NamedTuple):
    """A trigger, and when its runs begin after the beginning of each interval, in seconds."""

    text: str
    offsets: Sequence[int]


class _Member(NamedTuple):
    """A schedule that can be moved, with its present trigger and then the other possible ones."""

    key: str
    took: float
    text: str
    variants: Sequence[_Variant]


@dataclass(frozen=True, slots=True)
class _Cycle:
    """Schedules whose runs repeat in the same intervals, which begin at these Unix seconds."""

    length: int
    begins: Sequence[int]
    members: list[_Member]

    @property
    def busy(self) -> float:
        """For how many seconds the runs of all its schedules occupy a slot, about."""
        each = sum(member.took * len(member.variants[0].offsets) for member in self.members)
        return len(self.begins) * each


def is_movable(group: Group) -> bool:
    """Whether the exact time of the schedules of a group hardly matters."""
    trigger = group.trigger
    if group.jitter or group.rest is not None or not group.times:
        return False
    if isinstance(trigger, Every):
        return trigger.gap > 1
    return isinstance(trigger, Cron) and bool(_fields(trigger)[1])


def _cycles(groups: Sequence[Group], start: int, end: int) -> list[_Cycle]:
    """The movable schedules; those come first whose intervals are short.

    Those have fewer possible times, and run more often.
    """
    found: dict[tuple[object, ...], _Cycle] = {}
    for group in groups:
        trigger = group.trigger
        if isinstance(trigger, Every):
            gap = trigger.gap
            of: tuple[object, ...] = (gap,)
            length = gap
            begins: Sequence[int] = range(start - start % gap - gap, end, gap)
            variants = [*_offsets(trigger)]
        elif isinstance(trigger, Cron):
            fields, _ = _fields(trigger)
            of = (*fields[2:], trigger.timezone, trigger.dst_policy)
            length = 3600
            # The hours of local time: zones differ from UTC by quarters of an hour.
            hours = {time - 60 * (trigger.zone.wall(time) // 60 % _HOUR) for time in group.times}
            begins = [min(hours) - 3600, *sorted(hours)]
            variants = [*_minutes(trigger)]
        else:
            raise TypeError(f"{trigger!r} cannot be moved")
        cycle = found.setdefault(of, _Cycle(length, begins, []))
        cycle.members.extend(
            _Member(key, took, group.text or "", variants) for key, took in group.members
        )
    for cycle in found.values():
        cycle.members.sort(key=lambda each: (len(each.variants), -each.took, each.key))
    return sorted(found.values(), key=lambda each: (each.length, -each.busy, each.members[0].key))


def _offsets(trigger: Every) -> Iterator[_Variant]:
    gap = trigger.gap
    for later in range(0, gap, max(1, gap // _MOST_PLACES)):
        phase = (trigger.phase + later) % gap
        yield _Variant(f"@every {gap} +{phase}", [phase])


def _fields(trigger: Cron) -> tuple[Sequence[str], tuple[int, ...]]:
    """The fields of a cron line, and its minutes; no minutes if it is not to be moved."""
    line = "0 * * * *" if trigger.text.strip() == "@hourly" else trigger.text
    fields = line.split()
    if len(fields) != 5 or fields[1] not in {"*", "*/1"}:  # noqa: PLR2004  # of a cron line
        return fields, ()
    minutes = expanded_minutes(fields[0]) or ()
    return fields, () if len(minutes) == _HOUR else minutes


def _minutes(trigger: Cron) -> Iterator[_Variant]:
    fields, minutes = _fields(trigger)
    known = set()
    for later in range(_HOUR):
        moved = tuple(sorted((minute + later) % _HOUR for minute in minutes))
        if moved not in known:
            known.add(moved)
            line = " ".join([written_minutes(moved), *fields[1:]])
            yield _Variant(line, [60 * minute for minute in moved])


def expanded_minutes(text: str) -> tuple[int, ...] | None:
    """The minutes that a field of plain numbers names, sorted; None for any other field."""
    found: set[int] = set()
    for item in text.split(","):
        match = _MINUTES.fullmatch(item)
        if match is None:
            return None
        every, low, high, step, begin, from_step, single = match.groups()
        if every is not None:
            found.update(range(0, _HOUR, int(every)))
        elif low is not None:
            found.update(range(int(low), int(high) + 1, int(step or 1)))
        elif begin is not None:
            found.update(range(int(begin), _HOUR, int(from_step)))
        else:
            found.add(int(single))
    return tuple(sorted(found)) or None


def written_minutes(minutes: Sequence[int]) -> str:
    """A field of a cron line that names these minutes, in its shortest form."""
    step = _HOUR // len(minutes)
    evenly = range(minutes[0], _HOUR, step)
    if len(minutes) > 1 and _HOUR % len(minutes) == 0 and [*minutes] == [*evenly]:
        return f"*/{step}" if minutes[0] == 0 else f"{minutes[0]}-59/{step}"
    return ",".join(map(str, minutes))


# --- the search ------------------------------------------------------------------------------


class _Pass:
    """Places schedules one after the other, beside the runs of those that cannot be moved.

    A schedule stays where it is if the load there does not exceed the limit. The result is which
    moves, the peak of the load in the end, and whether there was time to look at all schedules.
    """

    def __init__(self, fixed: Runs, cycles: Sequence[_Cycle], limit: float) -> None:
        self._start = fixed.start
        self._load = [*fixed.load]
        self._limit = limit + TINY
        self._work = 0
        self.moves: list[Move] = []
        for cycle in cycles:
            if cycle.busy > _FOLDED * len(self._load):
                self._place_folded(cycle)
            else:
                self._place(cycle)
        self.peak = max(self._load, default=0.0)
        self.complete = self._work <= _MOST_WORK

    def _place(self, cycle: _Cycle) -> None:
        """Place schedules, for each of which all its runs are looked at."""
        for member in cycle.members:
            shape = _shape(member.took)
            offsets = self._choose(member, partial(self._highest, cycle, shape)).offsets
            for begin in cycle.begins:
                for offset in offsets:
                    _add(self._load, shape, begin + offset - self._start)
            self._work += len(cycle.begins) * len(offsets) * len(shape)

    def _place_folded(self, cycle: _Cycle) -> None:
        """Place schedules, for which the highest load of all intervals is looked at."""
        length = cycle.length
        # Two intervals, so that a run that does not end in the first one goes on in the second.
        twice = self._fold(cycle) * 2
        added = [0.0] * (2 * length + 1)
        self._work += 2 * len(self._load)
        for member in cycle.members:
            shape = _shape(member.took)
            highest = partial(self._highest_folded, twice, shape)
            for offset in self._choose(member, highest).offsets:
                _add(added, shape, offset)
                for begin in (offset - length, offset, offset + length):
                    _add(twice, shape, begin)
        for begin in cycle.begins:
            _add(self._load, added, begin - self._start)

    def _fold(self, cycle: _Cycle) -> list[float]:
        """The highest load of all intervals, for each second of an interval."""
        parts = []
        for begin in cycle.begins:
            at = begin - self._start
            before = [0.0] * min(max(-at, 0), cycle.length)
            part = before + self._load[max(at, 0) : max(at + cycle.length, 0)]
            parts.append(part + [0.0] * (cycle.length - len(part)))
        return [max(column) for column in zip(*parts, strict=True)]

    def _choose(
        self, member: _Member, highest: Callable[[Sequence[int], float], float]
    ) -> _Variant:
        """Choose when a schedule runs, and note it if the schedule does not stay."""
        present, *others = member.variants
        if self._work > _MOST_WORK:
            return present
        best, chosen = highest(present.offsets, inf), present
        if best <= self._limit:
            return present
        for variant in others:
            top = highest(variant.offsets, best)
            if top < best - TINY:
                chosen, best = variant, top
        if chosen is not present:
            self.moves.append(Move(member.key, member.text, chosen.text))
        return chosen

    def _highest_folded(
        self, twice: Sequence[float], shape: Sequence[float], offsets: Sequence[int], _limit: float
    ) -> float:
        self._work += len(offsets) * len(shape)
        tops = (max(twice[offset : offset + len(shape)]) for offset in offsets)
        return float(max(tops)) + shape[0]

    def _highest(
        self, cycle: _Cycle, shape: Sequence[float], offsets: Sequence[int], limit: float
    ) -> float:
        """The highest load if runs are added; at least the limit as soon as it is reached."""
        load, top, length = self._load, 0.0, len(shape)
        for begin in cycle.begins:
            for offset in offsets:
                at = begin + offset - self._start
                part = load[max(at, 0) : max(at + length, 0)]
                if part and (highest := max(part)) > top:
                    top = highest
            self._work += length * len(offsets)
            if top + shape[0] >= limit:
                break
        return float(top + shape[0])


def _add(load: list[float], heights: Sequence[float], place: int) -> None:
    """Add heights to a load from a place on; what is outside is left out."""
    begin, end = max(place, 0), min(place + len(heights), len(load))
    if begin < end:
        load[begin:end] = map(add, load[begin:end], heights[begin - place : end - place])


def _shape(took: float) -> Sequence[float]:
    """How much of a slot a run occupies in each second after its beginning."""
    whole, part = divmod(took, 1.0)
    return [1.0] * int(whole) + ([part] if part or not whole else [])

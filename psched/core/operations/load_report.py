"""The result of `psched.core.operations.load.estimate`: when the coming runs are most."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

ASSUMED = 1.0
"""How many seconds a run takes if nothing is known about it."""

TINY = 1e-6
"""A load below this is an error of rounding."""


class Cause(NamedTuple):
    """A schedule that runs at the worst moment of an interval.

    Attributes:
        key: its key.
        share: how many slots it occupies then; below 1 if it may also run before or after.
        took: how long its runs take, in seconds.
    """

    key: str
    share: float
    took: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A minute, or another interval.

    Attributes:
        start: its beginning, in Unix seconds.
        runs: how many runs begin in it.
        busy: for how many seconds all slots together are occupied.
        slots: the most slots that are occupied at one moment.
    """

    start: int
    runs: float
    busy: float
    slots: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """One of the intervals in which the most slots are occupied.

    Attributes:
        interval: the interval.
        at: the second in which the most slots are occupied, in Unix seconds.
        causes: schedules that run then, those that take longest first.
        more: how many other schedules run then.
    """

    interval: Interval
    at: int
    causes: Sequence[Cause]
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The coming runs of a period.

    Attributes:
        start: the beginning of the period, in Unix seconds.
        end: its end.
        schedules: the number of schedules that run in it.
        runs: the number of runs.
        intervals: its intervals, in order.
        worst: the worst ones, the worst first; the others have fewer occupied slots.
        slots: the most slots that are occupied at one moment.
        guessed: the number of schedules for which the durations of others of their type are used.
        unknown: the number of schedules about whose durations nothing is known; each of their runs
            counts as `ASSUMED` seconds.
        thinned: the keys of schedules with more runs than were computed.
        crowded: the keys of schedules whose runs take longer than the time until the next one.
        broken: why the runs of some schedules are not known, by key.
    """

    start: int
    end: int
    schedules: int
    runs: float
    intervals: Sequence[Interval]
    worst: Sequence[Worst]
    slots: float
    guessed: int
    unknown: int
    thinned: Sequence[str]
    crowded: Sequence[str]
    broken: Mapping[str, str]

    @property
    def slots_needed(self) -> int:
        """How many slots are needed so that no run waits for one."""
        return slots_needed(self.slots)


def slots_needed(slots: float) -> int:
    """The whole number of slots for so many that are occupied on average within a second."""
    return ceil(slots - TINY)

"""Sets of instants, as sorted lists of intervals that do not touch each other."""

from collections.abc import Iterable
from math import inf

Interval = tuple[float, float]
"""The start and the end of an interval; the end does not belong to it."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The instants that are in any of the intervals, which may overlap."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif start < end:
            found.append((start, end))
    return found


def within(intervals: Iterable[Interval], start: float, end: float) -> list[Interval]:
    """The part of the intervals from ``start`` to ``end``."""
    return union((max(a, start), min(b, end)) for a, b in intervals)


def without(intervals: Iterable[Interval], removed: Iterable[Interval]) -> list[Interval]:
    """The instants that are in ``intervals``, but not in ``removed``."""
    kept = union(intervals)
    for start, end in removed:
        kept = union(
            part
            for a, b in kept
            for part in ((a, min(b, start)), (max(a, end), b))
            if part[0] < part[1]
        )
    return kept


def length(intervals: Iterable[Interval]) -> float:
    """The sum of the lengths of the intervals."""
    return sum(end - start for start, end in intervals)


def crowded(intervals: Iterable[Interval], limit: int) -> list[Interval]:
    """The instants that are in at least ``limit`` of the intervals."""
    if limit <= 0:
        return [(-inf, inf)]
    changes = [change for start, end in intervals for change in ((start, 1), (end, -1))]
    found, number, since = list[Interval](), 0, 0.0
    # At one instant, ends come before starts, because an end does not belong to its interval.
    for instant, step in sorted(changes):
        if number < limit <= number + step:
            since = instant
        elif number + step < limit <= number:
            found.append((since, instant))
        number += step
    return union(found)

"""Leaves out of a failing simulation whatever the failure does not need."""

from collections.abc import Callable, Sequence

_MOST_RUNS = 200
"""After so many simulations, what is left is short enough."""


def shrink(numbers: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """Find a small part of a plan that still fails; return the steps that are left."""
    left, size, runs = [*numbers], max(1, len(numbers) // 2), 0
    while True:
        place = 0
        while place < len(left) and runs < _MOST_RUNS:
            fewer = left[:place] + left[place + size :]
            runs += 1
            if fails(fewer):
                left = fewer
            else:
                place += size
        if size == 1 or runs >= _MOST_RUNS:
            return left
        size //= 2

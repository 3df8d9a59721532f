"""Finds out from which lanes a host claims; see `psched.core.hosts`."""

import logging
from collections.abc import Callable, Sequence
from math import inf

from psched.base.clock import Clock
from psched.core.hosts import (
    LOOK_INTERVAL,
    MOST_PATTERNS,
    PATTERNS,
    lanes_served,
    serves,
    too_many_lanes,
)

_log = logging.getLogger("psched.worker")

_SHARE = 100
"""A look takes at most one part in so many of the time."""


class Lanes:
    """The lanes of one host besides NULL, looked up now and then.

    While no row has a lane, the host has none, so that a claim costs what it costs without lanes.

    Args:
        names: the name and the labels of the host.
        patterns: reads lanes of several names and of patterns, the first `MOST_PATTERNS` that come
            after a text; None if no row has any lane.
        clock: tells when to look again.
        waits: whether a row of a lane waits or is leased, so that others need no place among the
            lanes of a host; by default all do.

    Attributes:
        served: the lanes.
    """

    def __init__(
        self,
        names: Sequence[str],
        patterns: Callable[[str], Sequence[str] | None],
        clock: Clock,
        waits: Callable[[str], bool] | None = None,
    ) -> None:
        self._names = names
        self._patterns = patterns
        self._clock = clock
        self._waits = waits
        self._next_look = -inf
        self._told: Sequence[str] = ()
        # Where the next look continues, the lanes of this host that were found since the beginning,
        # and those of the last time that all were read.
        self._after = PATTERNS[0]
        self._found: Sequence[str] = ()
        self._known: Sequence[str] = ()
        self.served: Sequence[str] = ()

    @property
    def is_to_look(self) -> bool:
        """Whether a look is due."""
        return self._clock.monotonic() >= self._next_look

    def look(self) -> Sequence[str]:
        """The lanes; find them if a look is due."""
        if not self.is_to_look:
            return self.served
        began = self._clock.monotonic()
        patterns = self._patterns(self._after)
        left: Sequence[str] = ()
        self.served = ()
        self._found = [
            *self._found,
            *(lane for lane in patterns or () if serves(self._names, lane)),
        ]
        if patterns is not None and len(patterns) == MOST_PATTERNS:
            self._after = patterns[-1]
        else:
            self._after, self._known, self._found = PATTERNS[0], self._found, ()
        if patterns is not None:
            found = sorted({*self._known, *self._found})
            self.served, left = lanes_served(self._names, found)
            if left and self._waits is not None:
                self.served, left = lanes_served(self._names, filter(self._waits, found))
        # A table to which `psched init` has not added the index of lanes is read as a whole.
        took = self._clock.monotonic() - began
        self._next_look = began + took + max(LOOK_INTERVAL, took * _SHARE)
        if left and left != self._told:
            _log.error("%s", too_many_lanes(self._names[0], left))
        self._told = left
        return self.served

"""Finds out from which lanes a host claims; see `psched.core.hosts`."""

import logging
from collections.abc import Callable, Sequence
from math import inf

from psched.base.clock import Clock
from psched.core.hosts import LOOK_INTERVAL, lanes_served, too_many_lanes

_log = logging.getLogger("psched.worker")


class Lanes:
    """The lanes of one host besides NULL, looked up now and then.

    While no row has a lane, the host has none, so that a claim costs what it costs without lanes.

    Args:
        names: the name and the labels of the host.
        patterns: reads the lanes of several names and of patterns; None if no row has any lane.
        clock: tells when to look again.

    Attributes:
        served: the lanes.
    """

    def __init__(
        self, names: Sequence[str], patterns: Callable[[], Sequence[str] | None], clock: Clock
    ) -> None:
        self._names = names
        self._patterns = patterns
        self._clock = clock
        self._next_look = -inf
        self._told: Sequence[str] = ()
        self.served: Sequence[str] = ()

    @property
    def is_to_look(self) -> bool:
        """Whether a look is due."""
        return self._clock.monotonic() >= self._next_look

    def look(self) -> Sequence[str]:
        """The lanes; find them if a look is due."""
        if not self.is_to_look:
            return self.served
        patterns = self._patterns()
        left: Sequence[str] = ()
        self.served = ()
        if patterns is not None:
            self.served, left = lanes_served(self._names, patterns)
        self._next_look = self._clock.monotonic() + LOOK_INTERVAL
        if left and left != self._told:
            _log.error("%s", too_many_lanes(self._names[0], left))
        self._told = left
        return self.served

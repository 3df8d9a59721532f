"""Time zones: what the clocks of a zone show, in whole seconds.

There are two counts of seconds, which have different names throughout psched:

* an *instant* is a point in time, in Unix seconds;
* a *wall* time is what the zone's clocks show, counted as if they showed UTC: its minute
  is ``wall // 60 % 60`` whatever the zone.

A wall time is shown once, except near a clock change: a clock that is set back shows some wall
times twice, and one that is set forward skips some.

Zone data come from the PyPI package ``tzdata``, never from the system, because two hosts with
different files would compute different next times for one row. The files are read directly
from the package, because the ways to make ``zoneinfo`` prefer it (``PYTHONTZPATH``,
``zoneinfo.reset_tzpath``) would change every zone of the process, the handlers' included.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from zoneinfo import ZoneInfo

import tzdata  # type: ignore[import-untyped]

from psched.base.errors import InvalidError

VERSION: str = tzdata.IANA_VERSION
"""The release of the zone data, as IANA names it: ``2026b``."""

LATEST = 253_402_214_400
"""9999-12-31T00:00Z; a trigger has no later time, so that each can be shown in every zone."""

_DAY = 86_400

_LONGEST_NAME = 64
"""Characters of an unknown name that errors show; every zone's name is shorter."""


@dataclass(frozen=True, slots=True)
class Change:
    """A clock change: the wall times it skips or shows twice.

    Attributes:
        instant: the first instant at which the new offset holds.
        start: the first wall time that is skipped or shown twice.
        end: the wall time after the last of them.
    """

    instant: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """Seconds by which the clock was set forward or back."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Zone:
    """The clock of one zone. Made by `find_zone`.

    It works for the years 1 to 9999, which are `datetime`'s limits, except for a day at either end.
    It assumes that no zone changes its clock twice within `Change.size`: since 1970, all changes of
    a zone are at least six days apart.
    """

    name: str
    _info: ZoneInfo = field(repr=False, compare=False)

    def wall(self, instant: int) -> int:
        """Return the wall time shown at an instant."""
        shown = datetime.fromtimestamp(instant, self._info)
        return int(shown.replace(tzinfo=UTC).timestamp())

    def instants(self, wall: int) -> tuple[int, ...]:
        """Return the instants, in order, at which a wall time is shown: none, one or two."""
        old, new = self._readings(wall)
        if old == new:
            return (old,)
        return (old, new) if old < new else ()

    def change(self, wall: int) -> Change:
        """Return the clock change that skips a wall time or shows it twice.

        For a wall time that is shown once, a change of size 0.
        """
        old, new = self._readings(wall)
        # Converted by the old offset, a repeated wall time is before the change, and a skipped one
        # after it. By the new offset, it is the other way round. So the change is between the two.
        early, late = sorted((old, new))
        instant = early + bisect_left(
            range(early, late), x=True, key=lambda moment: self.wall(moment) - moment != wall - old
        )
        return Change(instant, start=instant + wall - late, end=instant + wall - early)

    def changes(self, start: int, end: int) -> Iterator[Change]:
        """Find the clock changes after an instant and up to another, in order.

        `instants` of a wall time in the change says whether it is skipped or shown twice.
        """
        offset = self._offset(start)
        for day in range(start, end, _DAY):
            until = min(day + _DAY, end)
            if (new := self._offset(until)) != offset:
                instant = (day + 1) + bisect_left(
                    range(day + 1, until), x=True, key=lambda at: self._offset(at) != offset
                )
                yield Change(instant, instant + min(offset, new), instant + max(offset, new))
                offset = new

    def _offset(self, instant: int) -> int:
        return self.wall(instant) - instant

    def _readings(self, wall: int) -> tuple[int, int]:
        """Convert a wall time by the offset before a near change, and by the one after it.

        For a wall time that is shown once both are equal. For one shown twice the first instant is
        the earlier one, and for a skipped one the later (PEP 495, "fold").
        """
        shown = datetime.fromtimestamp(wall, UTC).replace(tzinfo=self._info)
        return int(shown.timestamp()), int(shown.replace(fold=1).timestamp())


def find_zone(name: str) -> Zone:
    """Return the zone of an IANA name.

    Raises:
        InvalidError: the name (``timezone``) is not in tzdata's own list. So no file outside the
            package is ever opened, nor a zone that counts leap seconds (``right/…``) or depends on
            the host (``localtime``).
    """
    if name not in zone_names():
        raise InvalidError("timezone", f"{name[:_LONGEST_NAME]!r} is not a zone; {_hint(name)}")
    return _load(name)


@cache
def zone_names() -> frozenset[str]:
    """Return every accepted name."""
    # "Factory" is not a zone, but stands for one that has not been chosen yet.
    return frozenset(files(tzdata).joinpath("zones").read_text("ascii").split()) - {"Factory"}


@cache
def _load(name: str) -> Zone:
    with files(tzdata).joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return Zone(name, ZoneInfo.from_file(file, key=name))


def _hint(name: str) -> str:
    by_lower_case = {known.lower(): known for known in zone_names()}
    close = get_close_matches(name[:_LONGEST_NAME].lower(), by_lower_case, n=1)
    if close:
        return f"did you mean {by_lower_case[close[0]]!r}?"
    return "use a name such as 'Europe/Paris' or 'UTC'"

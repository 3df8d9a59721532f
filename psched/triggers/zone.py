"""Time zones: the times that the clocks of a zone show, in whole seconds.

psched counts seconds in two ways, and uses a different name for each:

* an *instant* is a point in time, in Unix seconds;
* a *wall* time is the date and time that the zone's clocks show, converted to Unix seconds as if
  they were UTC. So the minute on the clock is ``wall // 60 % 60`` in every zone.

The clocks show most wall times once. A clock that is set back shows some wall times twice. A clock
that is set forward skips some wall times.

psched uses the zone data of the PyPI package ``tzdata``, not those of the system, because hosts
with different data would compute different next times for one row. psched reads the files directly
from the package. psched does not make ``zoneinfo`` prefer it (``PYTHONTZPATH``,
``zoneinfo.reset_tzpath``), because that would also change the zones that handlers use.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import cache
from pathlib import Path
from typing import NamedTuple

import tzdata  # type: ignore[import-untyped]

from psched.base.errors import InvalidError

VERSION: str = tzdata.IANA_VERSION  # IANA's name of the release of the zone data, such as ``2026b``

LATEST = 253_402_214_400
"""9999-12-31T00:00Z in Unix seconds. Triggers return only times before it, because not every zone
can show a later time."""

_DATA = Path(tzdata.__file__).parent

_DAY = 86_400

_LONGEST_NAME = 64
"""The number of characters of an unknown name that errors show. Every zone's name is shorter."""


class Change(NamedTuple):
    """A clock change, with the wall times that it skips or repeats."""

    instant: int  # the first instant with the new offset from UTC
    start: int  # the first wall time that is skipped or shown twice
    end: int  # the wall time one second after the last one that is skipped or shown twice

    @property
    def size(self) -> int:
        """Seconds by which the clock was set forward or back."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Zone:
    """The clock of one time zone. Created by `find_zone`, or for the reader of a command.

    The methods work for the years 1 to 9999, the limits of `datetime`, except for the first and the
    last day. The methods assume that two clock changes of a zone are further apart than
    `Change.size`. This is true: since 1970, all changes of a zone are at least six days apart.
    """

    name: str
    _info: tzinfo = field(repr=False, compare=False)

    def at(self, instant: float) -> datetime:
        """An instant as an aware datetime in this zone; in UTC if it is `LATEST` or later."""
        return datetime.fromtimestamp(instant, self._info if instant < LATEST else UTC)

    def wall(self, instant: int) -> int:
        """Return the wall time shown at an instant."""
        shown = datetime.fromtimestamp(instant, self._info)
        return int(shown.replace(tzinfo=UTC).timestamp())

    def shown(self, instant: int) -> tuple[str, str]:
        """The date and time of day at an instant, as 2026-11-22 and 02:30 CET; seconds unless 0."""
        local = datetime.fromtimestamp(instant, self._info)
        clock = local.strftime("%H:%M:%S" if local.second else "%H:%M")
        return local.strftime("%Y-%m-%d"), f"{clock} {local.tzname()}"

    def instants(self, wall: int) -> tuple[int, ...]:
        """Return the instants at which a wall time is shown, in order: no instant, one or two."""
        old, new = self.readings(wall)
        if old == new:
            return (old,)
        return (old, new) if old < new else ()

    def change(self, wall: int) -> Change:
        """The clock change that skips a wall time or shows it twice; one of size 0 without any."""
        old, new = self.readings(wall)
        # We search the instant of the change between ``old`` and ``new``. If the wall time is
        # repeated, ``old`` is before the change, and ``new`` is at or after the change. If the wall
        # time is skipped, ``new`` is before the change, and ``old`` is at or after it.
        early, late = sorted((old, new))
        instant = early + bisect_left(
            range(early, late), x=True, key=lambda moment: self.wall(moment) - moment != wall - old
        )
        return Change(instant, start=instant + wall - late, end=instant + wall - early)

    def changes(self, start: int, end: int) -> Iterator[Change]:
        """Yield the clock changes after the instant ``start``, up to ``end``, in order.

        Call `instants` with a wall time in the change to find out whether the change skips or
        repeats it.
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

    def readings(self, wall: int) -> tuple[int, int]:
        """Convert a wall time to two instants: by the offsets before and after a clock change.

        If the wall time is shown once, the two instants are equal. If it is shown twice, the first
        instant is the earlier one. If it is skipped, the first instant is the later one (PEP 495,
        "fold").
        """
        shown = datetime.fromtimestamp(wall, UTC).replace(tzinfo=self._info)
        return int(shown.timestamp()), int(shown.replace(fold=1).timestamp())


def find_zone(name: str) -> Zone:
    """Return the time zone with an IANA name.

    Only names in tzdata's own list are accepted. So a name cannot open a file outside the package,
    a zone that counts leap seconds (``right/…``), or a zone that depends on the host
    (``localtime``).
    """
    if name not in zone_names():
        raise InvalidError("timezone", f"{name[:_LONGEST_NAME]!r} is not a zone; {_hint(name)}")
    return _load(name)


@cache
def zone_names() -> frozenset[str]:
    """Return the names of all accepted time zones."""
    # "Factory" is removed, because it is a placeholder for a zone that has not been chosen yet.
    return frozenset((_DATA / "zones").read_text("ascii").split()) - {"Factory"}


@cache
def _load(name: str) -> Zone:
    from zoneinfo import ZoneInfo  # noqa: PLC0415  # it takes time, and not every command needs it

    with (_DATA / "zoneinfo" / name).open("rb") as file:
        return Zone(name, ZoneInfo.from_file(file, key=name))


def _hint(name: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415  # only for this error

    by_lower_case = {known.lower(): known for known in zone_names()}
    close = get_close_matches(name[:_LONGEST_NAME].lower(), by_lower_case, n=1)
    if close:
        return f"did you mean {by_lower_case[close[0]]!r}?"
    return "use a name such as 'Europe/Paris' or 'UTC'"

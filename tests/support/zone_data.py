"""Other zone data than those that are installed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta, timezone

import pytest

from psched.core import definition
from psched.triggers import cron as crons
from psched.triggers import trigger
from psched.triggers import zone as zones
from psched.triggers.zone import Zone

NAME = "Africa/Abidjan"
"""The zone whose offset `zone_data` sets; so does every other zone of a cron line."""


@contextmanager
def zone_data(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, str], None]]:
    """Yield a function that gives this process an offset in minutes, and a release."""

    def use(offset: int, release: str) -> None:
        zone = Zone(NAME, timezone(timedelta(minutes=offset)))
        monkeypatch.setattr(crons, "find_zone", lambda _name: zone)
        monkeypatch.setattr(zones, "VERSION", release)
        _forget()

    yield use
    _forget()


def _forget() -> None:
    """Forget what was parsed with the zone data before."""
    for module in definition, trigger:
        for each in vars(module).values():
            if hasattr(each, "cache_clear"):
                each.cache_clear()

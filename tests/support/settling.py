"""Ending of leases in tests that lose no answer."""

from collections.abc import Mapping, Sequence
from typing import Any

from psched.base.clock import SystemClock
from psched.config import Config
from psched.core.settling import Ending, Settler
from psched.core.store_protocol import Settled, Store


def settle(
    store: Store, endings: Sequence[Ending], settings: Config, **parts: Any
) -> Mapping[str, Settled]:
    """End leases by a new `Settler`, with its other parts by their names."""
    return Settler(settings, SystemClock(), **parts).settle(store, endings)

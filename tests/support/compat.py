"""Stores on PerfectSched's table, as a worker makes them."""

import contextlib
import random
from collections.abc import Iterator

from psched.base.clock import SystemClock
from psched.contrib.perfectsched.store.store import PerfectSchedStore
from support.stores import parameters_of


@contextlib.contextmanager
def compat_factory(url, *, alive_time=3600, **parameters) -> Iterator:
    """Makes stores on one database, and disconnects them at the end."""
    opened, given = [], parameters_of(url, alive_time=alive_time, **parameters)

    def open_store():
        rng = random.Random()  # noqa: S311  # jitter
        opened.append(PerfectSchedStore(given, clock=SystemClock(), rng=rng))
        return opened[-1]

    try:
        yield open_store
    finally:
        for store in opened:
            store.disconnect()

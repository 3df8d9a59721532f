"""Stores on PerfectSched's table, as a worker makes them."""

import contextlib
import random
from collections.abc import Iterator
from dataclasses import replace

from psched.base.clock import SystemClock
from psched.config import from_mapping
from psched.contrib.perfectsched.store.store import PerfectSchedStore
from support.stores import LONG


@contextlib.contextmanager
def compat_factory(url, *, table="psched", timeout=None, alive_time=3600) -> Iterator:
    """Makes stores on one database, and disconnects them at the end."""
    settings = from_mapping({"type": "rdb_compat", "url": url, "table": table})
    # No configuration could have these: tests need short leases, and urls as SQLAlchemy reads them.
    settings = replace(settings, url=url, database_timeout=timeout or LONG, alive_time=alive_time)
    opened = []

    def open_store():
        rng = random.Random()  # noqa: S311  # jitter
        opened.append(PerfectSchedStore(settings, clock=SystemClock(), rng=rng))
        return opened[-1]

    try:
        yield open_store
    finally:
        for store in opened:
            store.disconnect()

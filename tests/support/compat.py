"""Stores on PerfectSched's table, as a worker makes them."""

import contextlib
import random
from collections.abc import Iterator

from psched.base.clock import SystemClock
from psched.contrib.perfectsched.store.store import PerfectSchedStore
from support.waiting import scaled


@contextlib.contextmanager
def compat_factory(url, *, table="psched", timeout=None, **how) -> Iterator:
    """Makes stores on one database, and disconnects them at the end."""
    opened = []

    def open_store():
        rng = random.Random()  # noqa: S311  # jitter
        made = {"table": table, "timeout": timeout or scaled(5.0), "clock": SystemClock(), **how}
        store = PerfectSchedStore(url, rng=rng, **made)
        opened.append(store)
        return store

    try:
        yield open_store
    finally:
        for store in opened:
            store.disconnect()

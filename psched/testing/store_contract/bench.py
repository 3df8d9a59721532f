"""Functions that the suites share: they create rows, claim them, and wait for leases to end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as changed
from typing import Any

from psched.base.clock import SystemClock
from psched.core.model import Row, Settlement
from psched.core.store_protocol import Claimed, Store

BackendFactory = Callable[[], Store]
"""Opens the test's store once more and returns the new instance, independent of the others."""

LEASE = 60
"""The length, in seconds, of a lease that does not end during a test."""

MOMENT = {"alive_time": 0, "shortest": 0}
"""Arguments of a claim whose leases end when the current second ends."""

LONG_AGO = 1_000_000_000
"""A time in the past, for rows that are due; Unix seconds."""

LATER = 2_100_000_000
"""A time far in the future that fits into every column for times; Unix seconds."""

_PATIENCE = 30.0
"""Seconds within which a lease of `MOMENT` must have ended."""

_clock = SystemClock()


def due(key: str, since: int = LONG_AGO, **columns: Any) -> Row:  # noqa: ANN401  # a Row's fields
    """Create, but do not add, a row that is due since ``since``."""
    columns = {"cron": "* * * * *", **columns}
    return Row(key=key, next_time=since, next_run_time=since, **columns)


def add(store: Store, *keys: str) -> None:
    """Add rows that are due."""
    store.add([due(key) for key in keys], nonce="added")


def found(store: Store, key: str) -> Row:
    """Read the row with a key; fail if the row does not exist."""
    row = store.get(key)
    assert row is not None, f"the row {key!r} is gone"
    return row


def claim(
    store: Store,
    owner: str,
    *,
    limit: int = 10,
    alive_time: int = LEASE,
    shortest: int = 1,
    horizon: float = 0,
) -> Claimed:
    """Claim due rows as a worker does."""
    return store.claim(
        owner, limit=limit, alive_time=alive_time, shortest=shortest, horizon=horizon
    )


def claim_all(store: Store, owner: str, *, alive_time: int = LEASE) -> list[Row]:
    """Lease all due rows by several claims, whose owners are ``owner.1``, ``owner.2`` etc."""
    rows: list[Row] = []
    for count in range(1, 1000):
        claimed = claim(store, f"{owner}.{count}", limit=1000, alive_time=alive_time)
        rows += claimed.rows
        if not claimed.more:
            return rows
    raise AssertionError("the claims never end")


def leased(store: Store, key: str, owner: str = "worker.1") -> Row:
    """Add a row and lease it; return the leased row."""
    add(store, key)
    (row,) = claim(store, owner).rows
    return row


def leased_for_a_moment(store: Store, *keys: str, owner: str = "worker.1") -> list[Row]:
    """Add rows, lease them, and wait until the leases have ended by the store's clock."""
    add(store, *keys)
    rows = claim(store, owner, limit=len(keys), **MOMENT).rows
    for key in keys:
        wait_for_end(store, key)
    if len(rows) == len(keys):
        return [*rows]
    # Try again: the claim returned too few rows, because this process was suspended until after
    # the leases had ended.
    for key in keys:
        store.delete(key)
    return leased_for_a_moment(store, *keys, owner=f"{owner}.again")


def wait_for_end(store: Store, key: str) -> None:
    """Wait until a row's ``next_run_time`` has passed by the store's clock."""
    end = found(store, key).next_run_time or 0
    give_up_at = _clock.monotonic() + _PATIENCE
    while store.now() < end:
        assert _clock.monotonic() < give_up_at, f"the lease of {key!r} does not end"
        _clock.sleep(0.02)


def ending(row: Row, **changes: Any) -> Settlement:  # noqa: ANN401  # a Settlement's fields
    """A settlement with these changes; without any, the same occurrence runs again at once."""
    return changed(Settlement.of(row), **changes)


def payload(stored: str | bytes | None) -> str | None:
    """A payload as text; a store may return text or bytes."""
    return stored.decode() if isinstance(stored, bytes) else stored


@contextmanager
def refused(kind: type[Exception]) -> Iterator[None]:
    """Check that the block raises an error of this kind."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"no {kind.__name__} was raised")

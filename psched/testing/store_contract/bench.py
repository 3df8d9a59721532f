"""Functions for all tests of stores: they create rows, claim rows, and wait for leases to end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as changed
from typing import Any

from psched.base.clock import Clock, SystemClock
from psched.core.model import Row, Settlement
from psched.core.store_protocol import Claimed, Store

try:
    from pytest import fixture  # noqa: PT013  # the name is the one below, too
except ModuleNotFoundError:  # the classes can be imported without pytest, though not run
    fixture = staticmethod  # type: ignore[assignment]

BackendFactory = Callable[[], Store]
"""Opens the test's store; each call returns a new instance, independent of earlier instances."""

LEASE = 60  # the length of a lease, in seconds; such a lease does not end during a test

MOMENT = {"alive_time": 0, "shortest": 0}
"""Arguments of a claim that make its leases end when the current second ends."""

LONG_AGO = 1_000_000_000  # a time in the past, in Unix seconds: a row with this time is due

LATER = 2_100_000_000
"""A time far in the future, in Unix seconds; the columns of every store can contain it."""

PATIENCE = 30.0
"""The longest wait of a test in seconds, for example for the end of a lease, before it fails."""

clock: Clock = SystemClock()
"""What the tests wait by; to replace if the store's clock is a manual one."""


class WithStore:
    """What the classes of tests share: two instances for the test's store."""

    @fixture
    def store(self, backend_factory: BackendFactory) -> Store:
        """An instance for the test's store."""
        return backend_factory()

    @fixture
    def other(self, backend_factory: BackendFactory) -> Store:
        """Another instance, as that of another worker."""
        return backend_factory()


def due(key: str, since: int = LONG_AGO, **columns: Any) -> Row:  # noqa: ANN401  # a Row's fields
    """Create a row that is due since ``since``, without adding it to a store."""
    columns = {"cron": "* * * * *", **columns}
    return Row(key=key, next_time=since, next_run_time=since, **columns)


def add(store: Store, *keys: str) -> None:
    """Add rows with these keys, all of them due, to a store."""
    store.add([due(key) for key in keys], nonce="added")


def found(store: Store, key: str) -> Row:
    """Read the row with this key; the test fails if the row does not exist."""
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
    """Claim due rows, with default arguments for tests."""
    return store.claim(
        owner, limit=limit, alive_time=alive_time, shortest=shortest, horizon=horizon
    )


def claim_all(store: Store, owner: str, *, alive_time: int = LEASE) -> list[Row]:
    """Claim all due rows by several claims, whose owners are ``owner.1``, ``owner.2`` and so on."""
    rows: list[Row] = []
    for count in range(1, 1000):
        claimed = claim(store, f"{owner}.{count}", limit=1000, alive_time=alive_time)
        rows += claimed.rows
        if not claimed.more:
            return rows
    raise AssertionError("the claims never end")


def leased(store: Store, key: str, owner: str = "worker.1") -> Row:
    """Add a row that is due and claim the row; return the claimed row."""
    add(store, key)
    (row,) = claim(store, owner).rows
    return row


def leased_for_a_moment(store: Store, *keys: str, owner: str = "worker.1") -> list[Row]:
    """Add rows, claim them, and wait until their leases have ended by the store's clock."""
    add(store, *keys)
    rows = claim(store, owner, limit=len(keys), **MOMENT).rows
    for key in keys:
        wait_for_end(store, key)
    if len(rows) == len(keys):
        return [*rows]
    # The claim returned too few rows, because this process was suspended until the leases had
    # ended. So the test tries again with another owner.
    for key in keys:
        store.delete(key)
    return leased_for_a_moment(store, *keys, owner=f"{owner}.again")


def wait_for_end(store: Store, key: str) -> None:
    """Wait until the store's clock has reached a row's ``next_run_time``."""
    wait_for_time(store, found(store, key).next_run_time or 0)


def wait_for_time(store: Store, end: int) -> None:
    """Wait until the store's clock has reached a time."""
    wait_until(lambda: store.now() >= end, f"the store's clock reaches {end}")


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition is true."""
    give_up_at = clock.monotonic() + PATIENCE
    while not condition():
        assert clock.monotonic() < give_up_at, f"the test has waited too long: {what}"
        clock.sleep(0.01)


def ending(row: Row, **changes: Any) -> Settlement:  # noqa: ANN401  # a Settlement's fields
    """A settlement of a row with these changes; without changes, the occurrence is due again."""
    return changed(Settlement.of(row), **changes)


def payload(stored: str | bytes | None) -> str | None:
    """A payload as text. Stores are allowed to return text or bytes, so tests compare the text."""
    return stored.decode() if isinstance(stored, bytes) else stored


@contextmanager
def refused(kind: type[Exception]) -> Iterator[None]:
    """Check that the ``with`` block raises an error of this class."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"no {kind.__name__} was raised")

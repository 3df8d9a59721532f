"""How often what has ended is purged."""

import random

import pytest

from psched.base.errors import StoreBusyError, StoreUnavailableError
from psched.config import from_mapping
from psched.worker.janitor import Janitor
from psched.worker.store_backoff import Slowness, StoreBackoff


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


class Store:
    """Has so much to purge, or fails."""

    def __init__(self):
        self.left = 0
        self.failure = None
        self.asked = 0

    def purge(self, limit):
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        purged = min(limit, self.left)
        self.left -= purged
        return purged


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def sweep(store, clock):
    rng = random.Random(1)  # noqa: S311  # jitter
    asker = StoreBackoff(
        clock=clock,
        rng=rng,
        longest_pause=5,
        before=lambda: None,
        slowness=Slowness(from_mapping({"url": "sqlite:///unused.db"}), clock),
    )
    janitor = Janitor(store, asker, clock=clock, rng=rng)

    def sweep_after(seconds):
        clock.now += seconds
        janitor.sweep()
        return store.asked

    return sweep_after


def test_it_looks_about_once_a_minute_and_again_soon_while_there_is_more(sweep, store):
    store.left = 700
    assert sweep(60) == 1
    assert sweep(1) == 2
    assert store.left == 0
    assert sweep(29) == 2
    assert sweep(31) == 3


def test_what_cannot_be_removed_is_left_alone_for_as_long(sweep, store):
    """A row that somebody has locked, say: each try may take a second of a worker's time."""
    store.failure = StoreBusyError("locked")
    with pytest.raises(StoreUnavailableError):
        sweep(60)
    assert sweep(10) == 1
    store.failure = None
    assert sweep(50) == 2

"""Tests of how often a worker purges finished rows."""

import pytest

from psched.base.errors import StoreBusyError, StoreUnavailableError
from psched.testing import ManualClock
from psched.worker.chores import Janitor
from support.worker import context


class Store:
    """A store with ``left`` rows to purge, or with a failure; serves as its own gateway."""

    def __init__(self):
        self.left = 0
        self.failure = None
        self.asked = 0

    def request(self, send):
        return send()

    def purge(self, limit):
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        purged = min(limit, self.left)
        self.left -= purged
        return purged


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def purge_after(store, clock):
    janitor = Janitor(context(clock, store=store), store)

    def purge_after(seconds):
        clock.advance(seconds)
        if clock.monotonic() >= janitor.due:
            janitor.purge()
        return store.asked

    return purge_after


def test_it_purges_about_once_a_minute_and_again_soon_while_there_is_more(purge_after, store):
    store.left = 700
    assert purge_after(60) == 1
    assert purge_after(1) == 2
    assert store.left == 0
    assert purge_after(29) == 2
    assert purge_after(31) == 3


def test_what_cannot_be_removed_is_left_alone_for_as_long(purge_after, store):
    """Each try to purge a locked row, for example, can take a second of the worker's time."""
    store.failure = StoreBusyError("locked")
    with pytest.raises(StoreUnavailableError):
        purge_after(60)
    assert purge_after(10) == 1
    store.failure = None
    assert purge_after(50) == 2

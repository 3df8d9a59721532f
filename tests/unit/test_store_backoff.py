"""Tests of the pauses between requests to an unavailable store, and of what is logged."""

import logging
import random

import pytest

from psched.base.errors import (
    SchemaError,
    StoreError,
    StoreUnavailableError,
    TransientStoreError,
    UnknownOutcomeError,
)
from psched.config import from_mapping
from psched.core.history.counts import Counts
from psched.testing import ManualClock
from psched.worker.store_gateway import Slowness, StoreBackoff


def slowness(clock):
    return Slowness(from_mapping({"url": "sqlite:///unused.db"}), clock)


class Highest(random.Random):
    """A random source that always returns the longest pause."""

    def uniform(self, a, b):
        return max(a, b)


class Store:
    """A store that answers, or raises ``failure`` if this is set, and counts its requests."""

    def __init__(self):
        self.failure = None
        self.asked = 0

    def __call__(self):
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return "answer"


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def backoff(clock):
    return StoreBackoff(
        clock=clock, rng=Highest(), longest_pause=5.0, slowness=slowness(clock), counts=Counts()
    )


def pass_pause(backoff, clock):
    clock.advance(backoff.not_before - clock.monotonic())


def refused(backoff, store):
    with pytest.raises(TransientStoreError) as caught:
        backoff.ask(store)
    return caught.value


def lines(caplog):
    return [(record.levelno, record.getMessage()) for record in caplog.records]


def test_an_answer_is_handed_on_and_nothing_is_said(backoff, store, caplog):
    assert backoff.ask(store) == "answer"
    assert backoff.ready
    assert lines(caplog) == []


def test_an_outage_is_one_line_when_it_begins_and_one_when_it_ends(backoff, store, clock, caplog):
    store.failure = StoreUnavailableError("the database is unavailable: gone")
    for _ in range(20):
        refused(backoff, store)
        pass_pause(backoff, clock)
    store.failure = None
    for _ in range(2):
        backoff.ask(store)
        backoff.all_answered()
    [began, ended] = lines(caplog)
    assert began[0] == logging.ERROR
    assert "the database is unavailable: gone" in began[1]
    assert ended[0] == logging.WARNING
    assert f"after {clock.monotonic() - 1000:.1f} s" in ended[1]


def test_the_pauses_grow_to_their_limit_and_begin_anew_after_an_answer(backoff, store, clock):
    def pauses(number):
        store.failure = StoreUnavailableError("gone")
        for _ in range(number):
            refused(backoff, store)
            yield round(backoff.not_before - clock.monotonic(), 3)
            pass_pause(backoff, clock)

    assert [*pauses(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    store.failure = None
    backoff.ask(store)
    backoff.all_answered()
    assert [*pauses(2)] == [0.1, 0.2]


def test_an_outage_is_not_over_when_only_some_requests_are_answered(backoff, store, clock, caplog):
    """A store that is read-only or full can still answer some requests."""
    pauses = []
    for _ in range(6):
        store.failure = None
        backoff.ask(store)
        store.failure = StoreUnavailableError("read-only")
        refused(backoff, store)
        pauses.append(round(backoff.not_before - clock.monotonic(), 3))
        pass_pause(backoff, clock)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
    assert backoff.away == "read-only"
    assert len(lines(caplog)) == 1


def test_what_keeps_an_outage_up_is_said_once(backoff, store, clock, caplog):
    caplog.set_level(logging.INFO)
    for reason in ["broke", "no host", "broke", "no rights", "no host", *map(str, range(20))]:
        store.failure = StoreUnavailableError(reason)
        refused(backoff, store)
        pass_pause(backoff, clock)
    begun, *later = [text for _, text in lines(caplog)]
    assert begun.startswith("broke; ")
    said = ["no host", "no rights", "0", "1"]
    assert later == [f"the store is still away: {reason}" for reason in said]


def test_an_outage_is_not_over_when_nothing_was_asked(backoff, store, clock, caplog):
    store.failure = StoreUnavailableError("gone")
    refused(backoff, store)
    pass_pause(backoff, clock)
    backoff.all_answered()
    assert backoff.away == "gone"
    assert len(lines(caplog)) == 1


def test_a_store_that_is_to_be_left_alone_is_not_asked_by_anybody(backoff, store, clock):
    """A task can request an extension of its lease at any time, even in a loop."""
    store.failure = StoreUnavailableError("the database is unavailable: gone")
    refused(backoff, store)
    assert not backoff.ready
    for _ in range(10):
        assert "gone" in str(refused(backoff, store))
    assert store.asked == 1
    pass_pause(backoff, clock)
    assert backoff.ready
    refused(backoff, store)
    assert store.asked == 2


@pytest.mark.parametrize("failure", [SchemaError("no table"), StoreError("no rights")])
def test_what_somebody_may_be_about_to_mend_is_waited_for(backoff, store, failure, caplog):
    store.failure = failure
    error = refused(backoff, store)
    assert str(error) == str(failure)
    assert not backoff.ready
    assert str(failure) in caplog.text


def test_an_unknown_outcome_stays_one(backoff, store):
    store.failure = UnknownOutcomeError("the connection broke")
    assert refused(backoff, store) is store.failure


def test_what_is_not_the_stores_failure_is_not_an_outage(backoff, store):
    store.failure = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        backoff.ask(store)
    assert backoff.ready


@pytest.mark.parametrize("seed", range(10))
def test_workers_do_not_come_back_in_step(seed, clock, store):
    rng = random.Random(seed)  # noqa: S311  # jitter
    backoff = StoreBackoff(
        clock=clock, rng=rng, longest_pause=5.0, slowness=slowness(clock), counts=Counts()
    )
    store.failure = StoreUnavailableError("gone")
    refused(backoff, store)
    assert 0.05 <= backoff.not_before - clock.monotonic() <= 0.1

"""The pace of requests to a store that may be away, and what is said about it."""

import logging
import random

import pytest

from psched.base.errors import SchemaError, StoreError, StoreUnavailableError, UnknownOutcomeError
from psched.config import from_mapping
from psched.worker.store_backoff import Slowness, StoreBackoff


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


def slowness(clock):
    return Slowness(from_mapping({"url": "sqlite:///unused.db"}), clock)


class Highest(random.Random):
    """Draws the longest pause."""

    def uniform(self, a, b):
        return max(a, b)


class Store:
    """Answers, or fails as it is told to, and counts."""

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
    return Clock()


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def before():
    return []


@pytest.fixture
def asker(clock, before):
    return StoreBackoff(
        clock=clock,
        rng=Highest(),
        longest_pause=5.0,
        before=lambda: before.append(clock.now),
        slowness=slowness(clock),
    )


def refused(asker, store):
    with pytest.raises(StoreUnavailableError) as caught:
        asker.ask(store)
    return caught.value


def lines(caplog):
    return [(record.levelno, record.getMessage()) for record in caplog.records]


def test_an_answer_is_handed_on_and_nothing_is_said(asker, store, caplog):
    assert asker.ask(store) == "answer"
    assert asker.ready
    assert lines(caplog) == []


def test_what_must_be_done_before_each_request_is_done_before_each(asker, store, before):
    asker.ask(store)
    asker.ask(store)
    assert before == [1000.0, 1000.0]


def test_an_outage_is_one_line_when_it_begins_and_one_when_it_ends(asker, store, clock, caplog):
    store.failure = StoreUnavailableError("the database is unavailable: gone")
    for _ in range(20):
        refused(asker, store)
        clock.now = asker.not_before
    store.failure = None
    for _ in range(2):
        asker.ask(store)
        asker.all_answered()
    [began, ended] = lines(caplog)
    assert began[0] == logging.ERROR
    assert "the database is unavailable: gone" in began[1]
    assert ended[0] == logging.WARNING
    assert f"after {clock.now - 1000:.1f} s" in ended[1]


def test_the_pauses_grow_to_their_limit_and_begin_anew_after_an_answer(asker, store, clock):
    def pauses(number):
        store.failure = StoreUnavailableError("gone")
        for _ in range(number):
            refused(asker, store)
            yield round(asker.not_before - clock.now, 3)
            clock.now = asker.not_before

    assert [*pauses(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    store.failure = None
    asker.ask(store)
    asker.all_answered()
    assert [*pauses(2)] == [0.1, 0.2]


def test_an_outage_is_not_over_when_only_some_requests_are_answered(asker, store, clock, caplog):
    """What is read-only, or full, can still be read."""
    pauses = []
    for _ in range(6):
        store.failure = None
        asker.ask(store)
        store.failure = StoreUnavailableError("read-only")
        refused(asker, store)
        pauses.append(round(asker.not_before - clock.now, 3))
        clock.now = asker.not_before
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
    assert asker.away == "read-only"
    assert len(lines(caplog)) == 1


def test_what_keeps_an_outage_up_is_said_once(asker, store, clock, caplog):
    caplog.set_level(logging.INFO)
    for reason in ["broke", "no host", "broke", "no rights", "no host", *map(str, range(20))]:
        store.failure = StoreUnavailableError(reason)
        refused(asker, store)
        clock.now = asker.not_before
    begun, *later = [text for _, text in lines(caplog)]
    assert begun.startswith("broke; ")
    said = ["no host", "no rights", "0", "1"]
    assert later == [f"the store is still away: {reason}" for reason in said]


def test_an_outage_is_not_over_when_nothing_was_asked(asker, store, clock, caplog):
    store.failure = StoreUnavailableError("gone")
    refused(asker, store)
    clock.now = asker.not_before
    asker.all_answered()
    assert asker.away == "gone"
    assert len(lines(caplog)) == 1


def test_a_store_that_is_to_be_left_alone_is_not_asked_by_anybody(asker, store, clock, before):
    """A task may ask to extend its lease, in a loop, at any time."""
    store.failure = StoreUnavailableError("the database is unavailable: gone")
    refused(asker, store)
    assert not asker.ready
    for _ in range(10):
        assert "gone" in str(refused(asker, store))
    assert store.asked == 1
    assert len(before) == 1
    clock.now = asker.not_before
    assert asker.ready
    refused(asker, store)
    assert store.asked == 2


def test_what_is_done_before_a_request_may_find_the_store_away(asker, store):
    other = Store()
    other.failure = StoreUnavailableError("gone")

    def extend_first():
        asker.before = lambda: None
        refused(asker, other)

    asker.before = extend_first
    assert str(refused(asker, store)) == "gone"
    assert (other.asked, store.asked) == (1, 0)


@pytest.mark.parametrize("failure", [SchemaError("no table"), StoreError("no rights")])
def test_what_somebody_may_be_about_to_mend_is_waited_for(asker, store, failure, caplog):
    store.failure = failure
    error = refused(asker, store)
    assert str(error) == str(failure)
    assert not asker.ready
    assert str(failure) in caplog.text


def test_an_unknown_outcome_stays_one(asker, store):
    store.failure = UnknownOutcomeError("the connection broke")
    assert refused(asker, store) is store.failure


def test_what_is_not_the_stores_failure_is_not_the_askers_either(asker, store):
    store.failure = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        asker.ask(store)
    assert asker.ready


@pytest.mark.parametrize("seed", range(10))
def test_workers_do_not_come_back_in_step(seed, clock, store):
    rng = random.Random(seed)  # noqa: S311  # jitter
    asker = StoreBackoff(
        clock=clock, rng=rng, longest_pause=5.0, before=lambda: None, slowness=slowness(clock)
    )
    store.failure = StoreUnavailableError("gone")
    refused(asker, store)
    assert 0.05 <= asker.not_before - clock.now <= 0.1

"""The estimate of the store's clock."""

from psched.core.history.recording import StoreClock
from psched.testing import ManualClock


def read(clock, estimate, *, now, took):
    """The store tells its time in the middle of a request."""
    sent = clock.boottime()
    clock.advance(took)
    estimate.read(now, sent, clock.boottime())


def test_it_is_what_the_store_has_told_and_the_time_since_then():
    clock = ManualClock()
    estimate = StoreClock(clock)
    read(clock, estimate, now=5_000.0, took=0.2)
    clock.advance(10.0)
    assert estimate.milliseconds() == 5_010_100


def test_an_answer_that_took_long_does_not_spoil_it():
    """The worker may have been stopped when the answer came."""
    clock = ManualClock()
    estimate = StoreClock(clock)
    read(clock, estimate, now=5_000.0, took=0.2)
    read(clock, estimate, now=5_000.2, took=15.0)
    assert estimate.milliseconds() == 5_015_100


def test_an_answer_that_took_long_is_better_than_none_and_than_a_longer_one():
    clock = ManualClock()
    estimate = StoreClock(clock)
    read(clock, estimate, now=5_000.0, took=30.0)
    assert estimate.milliseconds() == 5_015_000
    read(clock, estimate, now=6_000.0, took=4.0)
    assert estimate.milliseconds() == 6_002_000
    read(clock, estimate, now=7_000.0, took=5.0)
    assert estimate.milliseconds() == 6_007_000

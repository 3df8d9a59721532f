"""Tests of the signals that the kill ladder sends, as a function of time."""

from signal import SIGKILL, SIGTERM

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched.process.child import KillLadder

seconds = st.floats(min_value=0, max_value=10_000)
intervals = st.floats(min_value=0.01, max_value=1000)


def climbed(ladder, until):
    """The signals until a time, each with its time, if every call is made when it is due."""
    sent = []
    while ladder.wakes <= until:
        now = ladder.wakes
        sent.append((now, ladder.due(now)))
    return sent


def test_term_comes_at_once_and_again_and_then_kill_until_it_has_worked():
    ladder = KillLadder(100.0, interval=60.0, limit=150.0)
    assert climbed(ladder, 252.0) == [
        (100.0, SIGTERM),
        (160.0, SIGTERM),
        (220.0, SIGTERM),
        (250.0, SIGKILL),
        (251.0, SIGKILL),
        (252.0, SIGKILL),
    ]


def test_nothing_is_due_before_its_time():
    ladder = KillLadder(100.0, interval=60.0, limit=150.0)
    assert ladder.due(99.9) is None
    assert ladder.due(100.0) is SIGTERM
    assert ladder.due(100.0) is None
    assert ladder.due(159.9) is None


def test_without_a_limit_the_first_signal_is_kill():
    ladder = KillLadder(100.0, interval=60.0, limit=0)
    assert not ladder.killing
    assert ladder.due(100.0) is SIGKILL
    assert ladder.killing


def test_a_ladder_may_be_set_up_for_later():
    ladder = KillLadder(100.0, interval=1.0, limit=0)
    assert ladder.wakes == 100.0
    assert ladder.due(50.0) is None


def test_who_comes_late_gets_one_signal_and_no_backlog():
    ladder = KillLadder(100.0, interval=1.0, limit=50.0)
    assert ladder.due(100.0) is SIGTERM
    assert ladder.due(120.5) is SIGTERM
    assert ladder.due(120.6) is None
    assert ladder.due(1000.0) is SIGKILL
    assert ladder.due(1000.5) is None


def test_hastening_brings_the_kill_forward():
    ladder = KillLadder(100.0, interval=60.0, limit=150.0)
    ladder.due(100.0)
    ladder.hasten(110.0, 2.0)
    assert ladder.wakes == 112.0
    assert ladder.due(111.9) is None
    assert ladder.due(112.0) is SIGKILL


def test_hastening_to_nothing_kills_at_once():
    ladder = KillLadder(100.0, interval=60.0, limit=150.0)
    ladder.due(100.0)
    ladder.hasten(110.0, 0)
    assert ladder.due(110.0) is SIGKILL


@pytest.mark.parametrize("limit", [140.0, 141.0, 1000.0])
def test_hastening_never_puts_the_kill_off(limit):
    ladder = KillLadder(100.0, interval=60.0, limit=150.0)
    ladder.due(100.0)
    ladder.hasten(110.0, limit)
    assert (250.0, SIGKILL) in climbed(ladder, 250.0)


def test_who_is_being_killed_already_goes_on_being_killed():
    ladder = KillLadder(100.0, interval=60.0, limit=0)
    ladder.due(100.0)
    ladder.hasten(100.5, 150.0)
    assert ladder.due(101.0) is SIGKILL


@given(started=seconds, interval=intervals, limit=seconds, visits=st.lists(seconds))
def test_every_kill_comes_after_the_limit_and_no_term_does(started, interval, limit, visits):
    ladder = KillLadder(started, interval, limit)
    for now in sorted(visits):
        number = ladder.due(now)
        assert number in (None, SIGTERM, SIGKILL)
        if number is not None:
            assert now >= started
            assert (number is SIGKILL) == (now >= started + limit)


@given(started=seconds, interval=intervals, limit=seconds, late=seconds)
def test_at_the_limit_a_kill_is_due_whatever_was_sent_before(started, interval, limit, late):
    ladder = KillLadder(started, interval, limit)
    for now in (started, started + limit / 2):
        ladder.due(now)
    if not ladder.killing:
        assert ladder.wakes <= started + limit
        assert ladder.due(started + limit + late) is SIGKILL

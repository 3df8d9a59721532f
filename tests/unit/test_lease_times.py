"""Tests that two runs of a task cannot overlap, for every lease that the settings allow."""

from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched import config
from psched.base.errors import ConfigError
from psched.base.lease_times import (
    LONGEST_ALIVE_TIME,
    MARGIN_LIMIT,
    SHORTEST_ALIVE_TIME,
    Deadlines,
    default_driver_timeout,
    extend_interval,
    lease_time,
    longest_answer,
    margin,
    shortest_alive_time,
    slow_request,
    sufficient_alive_time,
)

LEASES = st.integers(SHORTEST_ALIVE_TIME, LONGEST_ALIVE_TIME)
SENT = st.floats(0, 1e9)
"""Draws the time at which a request is sent, in seconds since boot."""

TINY = 1e-6
"""Seconds; more than the rounding error in a sum of drawn times."""


@st.composite
def deadlines(draw):
    """Draw the deadlines of a lease, with a driver timeout that is valid for the lease."""
    lease = draw(LEASES)
    timeout = draw(st.floats(0.001, 0.999)) * margin(lease) / 2
    return Deadlines(draw(SENT), lease, timeout)


def test_the_lengths_are_those_of_the_documentation():
    """Stores and hosts with other versions count on them, too."""
    assert [margin(lease) for lease in (6, 20, 60, 300)] == pytest.approx([2.4, 8, 15, 15])
    assert [default_driver_timeout(lease) for lease in (10, 60)] == pytest.approx([1.8, 5])
    assert shortest_alive_time(0.001) == 6
    assert lease_time(10**9, 60, 6) == 366 * 24 * 3600


def test_answers_may_take_a_third_of_what_is_left_until_the_kill_and_are_slow_from_a_half_on():
    assert longest_answer(6, 1) == pytest.approx((6 - 2.4 - 1) / 3)
    assert longest_answer(60, 5) == 5  # a longer one is none
    assert slow_request(60, 5) == (60 - 15 - 5) / 2
    assert sufficient_alive_time(40 / 3, 5.0) == 60
    assert sufficient_alive_time(40.01 / 3, 5.0) == 61


def test_the_instants_of_a_lease_of_a_minute():
    d = Deadlines(sent=100, lease=60, driver_timeout=5)
    assert (d.extend, d.warn, d.last_start, d.kill) == (115, 130, 135, 140)
    assert (d.deadman, d.end) == (152.5, 160)


@given(deadlines())
def test_the_instants_of_a_lease_come_in_their_order(d):
    assert d.sent <= d.last_start < d.kill < d.deadman < d.end
    assert d.sent < d.extend < d.kill


@given(deadlines())
def test_a_call_begun_just_before_the_kill_ends_before_the_margin(d):
    assert d.kill + d.driver_timeout <= d.end - margin(d.lease) + TINY


@given(deadlines())
def test_a_reconnect_and_a_call_end_before_the_kernels_timer(d):
    assert d.kill + 2 * d.driver_timeout < d.deadman + TINY


@given(deadlines())
def test_a_task_that_was_started_at_the_last_moment_has_time_to_be_killed(d):
    assert d.kill - d.last_start > d.driver_timeout - TINY


@given(deadlines())
def test_a_task_that_was_started_at_the_last_moment_is_killed_in_time_after_any_request(d):
    assert d.last_start + 2 * d.driver_timeout <= d.end - margin(d.lease) + TINY


@pytest.mark.parametrize(
    ("lease", "timeout", "interval"),
    [
        (60, 5, 15),  # a quarter
        (32, 4, 7.2),  # so that two requests of 4 s end before the KILL, at 32 - 12.8 - 4
        (60, 15, 7.5),  # no less than an eighth
    ],
)
def test_an_extend_is_due_as_early_as_it_must(lease, timeout, interval):
    assert extend_interval(lease, timeout) == pytest.approx(interval)


@given(deadlines())
def test_a_request_that_was_begun_before_an_extend_was_due_ends_before_the_kill(d):
    """The exception is an extend that is due before an eighth of the lease has passed."""
    begun = d.extend - TINY
    assert begun + 2 * d.driver_timeout <= d.kill + TINY or d.extend <= d.sent + d.lease / 8 + TINY


@given(deadlines(), st.floats(0, 1))
def test_an_extend_and_a_claim_fit_between_two_extends_if_answers_are_as_short_as_is_said(d, part):
    answer = part * longest_answer(d.lease, d.driver_timeout)
    assert d.sent + 3 * answer <= d.kill + TINY
    assert answer <= d.driver_timeout


@given(st.floats(0.001, 20), st.none() | st.floats(0.1, 7))
def test_a_lease_that_is_long_enough_for_an_answer_is_the_shortest_such(answer, given_timeout):
    def enough(lease):
        timeout = default_driver_timeout(lease) if given_timeout is None else given_timeout
        return lease - margin(lease) - timeout >= 3 * answer

    lease = sufficient_alive_time(answer, given_timeout)
    assert enough(lease)
    assert lease == SHORTEST_ALIVE_TIME or not enough(lease - 1)


@given(deadlines())
def test_a_lease_in_danger_has_used_up_half_of_its_length(d):
    assert d.warn >= d.sent + d.lease / 2 - TINY
    assert d.warn >= d.end - 2 * margin(d.lease)


@given(LEASES.filter(lambda lease: lease > 40), SENT)
def test_a_task_is_warned_before_it_is_killed_if_its_lease_is_not_very_short(lease, sent):
    d = Deadlines(sent, lease, default_driver_timeout(lease))
    assert d.extend + 2 * d.driver_timeout < d.warn < d.kill


@given(deadlines(), st.floats(0, 2e9), st.floats(0, 100), st.floats(0, 1))
def test_the_holders_end_comes_before_the_stores(d, store_clock, delay, fraction):
    """This is true whatever the store's clock shows, and however long the request takes."""
    read_at = store_clock + fraction + delay
    ends_in_the_store = floor(read_at) + d.lease + 1
    # The holder's clock counts from before the request was sent.
    assert d.end <= d.sent + delay + (ends_in_the_store - read_at) + TINY


@given(LEASES)
def test_the_default_driver_timeout_fits_into_the_margin_twice(lease):
    assert 0 < 2 * default_driver_timeout(lease) < margin(lease)


@given(LEASES)
def test_the_margin_leaves_most_of_a_lease(lease):
    assert 0 < margin(lease) <= min(MARGIN_LIMIT, 0.4 * lease)
    assert extend_interval(lease, default_driver_timeout(lease)) + margin(lease) < lease


@given(st.floats(0.001, MARGIN_LIMIT / 2, exclude_max=True))
def test_the_shortest_lease_has_room_for_two_driver_timeouts_and_is_the_shortest(timeout):
    shortest = shortest_alive_time(timeout)
    assert shortest >= SHORTEST_ALIVE_TIME
    assert margin(shortest) > 2 * timeout
    if shortest > SHORTEST_ALIVE_TIME:
        assert margin(shortest - 1) <= 2 * timeout + TINY


@given(
    own=st.none() | st.integers(-(2**63), 2**63 - 1),
    setting=LEASES,
    shortest=st.integers(SHORTEST_ALIVE_TIME, 40),
)
def test_no_lease_is_shorter_than_can_be_guarded_or_longer_than_a_year(own, setting, shortest):
    lease = lease_time(own, setting, shortest)
    assert shortest <= lease <= LONGEST_ALIVE_TIME
    if own is None:
        assert lease == max(setting, shortest)
    elif shortest <= own <= LONGEST_ALIVE_TIME:
        assert lease == own


@given(alive_time=st.integers(SHORTEST_ALIVE_TIME, 1000), timeout=st.floats(0.01, 10))
def test_settings_that_cannot_meet_this_are_refused(alive_time, timeout):
    given_settings = {
        "url": "sqlite:///unused.db", "alive_time": alive_time, "database_timeout": timeout
    }  # fmt: skip
    if 2 * timeout < margin(alive_time):
        assert config.from_mapping(given_settings).driver_timeout == timeout
    else:
        with pytest.raises(ConfigError, match="database_timeout"):
            config.from_mapping(given_settings)


@given(LEASES)
def test_settings_without_a_timeout_have_one_that_fits(alive_time):
    settings = config.from_mapping({"url": "sqlite:///unused.db", "alive_time": alive_time})
    assert 2 * settings.driver_timeout < margin(alive_time)
    assert shortest_alive_time(settings.driver_timeout) <= alive_time

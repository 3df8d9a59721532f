"""Tests of when a dead worker is replaced, and when the master gives up."""

import random

import pytest

from psched.master.workers import Respawn


class Middle(random.Random):
    """A random source that returns the middle of a range, so that there is no jitter."""

    def uniform(self, a, b):
        return (a + b) / 2


@pytest.fixture
def respawn():
    return Respawn(Middle())


def pauses(respawn, failures, *, lived=0.0):
    """The pauses, in seconds, after each of some successive failures."""
    now, found = 1000.0, []
    for _ in range(failures):
        respawn.failed(0, lived, now)
        if respawn.allowed(0, now):
            found.append(0.0)
        else:
            found.append(respawn.wakes(now) - now)
            now = respawn.wakes(now)
            assert respawn.allowed(0, now)
        now += lived
    return found


def test_a_place_that_never_failed_may_be_filled(respawn):
    assert respawn.allowed(0, 1000.0)
    assert respawn.wakes(1000.0) == float("inf")


def test_the_first_failure_is_answered_at_once_and_each_further_one_twice_as_late(respawn):
    assert pauses(respawn, 9) == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_a_worker_that_had_lived_well_begins_anew(respawn):
    assert pauses(respawn, 4, lived=60.0) == [0, 0, 0, 0]
    assert pauses(respawn, 3, lived=59.0) == [1, 2, 4]


def test_places_fail_by_themselves(respawn):
    for _ in range(3):
        respawn.failed(1, 0.0, 1000.0)
    assert respawn.allowed(0, 1000.0)
    assert not respawn.allowed(1, 1001.9)
    assert respawn.allowed(1, 1002.0)


def test_it_wakes_for_the_place_that_may_be_filled_first(respawn):
    for number, failures in (0, 4), (1, 2), (2, 1):
        for _ in range(failures):
            respawn.failed(number, 0.0, 1000.0)
    assert respawn.wakes(1000.0) == 1001.0
    assert respawn.wakes(1001.0) == 1004.0
    assert respawn.wakes(1004.0) == float("inf")


def test_a_fork_that_the_system_refuses_is_tried_again_later_and_is_no_failure(respawn):
    for _ in range(10):
        respawn.refused(0, 1000.0)
    assert not respawn.allowed(0, 1000.9)
    assert respawn.allowed(0, 1001.0)
    assert not respawn.is_crash_loop(1)
    assert pauses(respawn, 2) == [0, 1]


def test_a_new_generation_is_not_judged_by_the_failures_of_the_old_one(respawn):
    for _ in range(5):
        respawn.failed(0, 0.0, 1000.0)
    respawn.forget()
    assert respawn.allowed(0, 1000.0)
    assert not respawn.is_crash_loop(1)
    assert pauses(respawn, 2) == [0, 1]


def test_it_is_hopeless_when_every_place_has_failed_five_times_in_a_row(respawn):
    for number in range(3):
        assert not respawn.is_crash_loop(3)
        for _ in range(4):
            respawn.failed(number, 0.0, 1000.0)
        assert not respawn.is_crash_loop(number + 1)
        respawn.failed(number, 0.0, 1000.0)
    assert respawn.is_crash_loop(3)
    assert not respawn.is_crash_loop(4)
    respawn.failed(1, 60.0, 1000.0)
    assert not respawn.is_crash_loop(3)


def test_no_places_are_not_a_crash_loop(respawn):
    assert not respawn.is_crash_loop(0)


@pytest.mark.parametrize("seed", range(20))
def test_jitter_keeps_hosts_out_of_step_within_a_fifth(seed):
    respawn = Respawn(random.Random(seed))  # noqa: S311  # jitter
    for _ in range(4):
        respawn.failed(0, 0.0, 1000.0)
    pause = respawn.wakes(1000.0) - 1000.0
    assert 4 * 0.8 <= pause <= 4 * 1.2
    assert pause != 4

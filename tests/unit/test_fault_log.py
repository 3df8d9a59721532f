"""Tests that one line is logged when a fault begins, and one when the fault ends."""

import logging

import pytest

from psched.base.fault_log import FaultLog
from psched.testing.manual_clock import ManualClock


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def fault(clock):
    return FaultLog("cannot fork", logging.getLogger("psched.test"), clock)


def test_a_fault_at_every_tick_is_logged_when_it_begins_and_when_it_is_over(fault, clock, caplog):
    assert not fault.ongoing
    for _ in range(1000):
        fault.failed(OSError("no more"))
        fault.passed()
        clock.advance(0.01)
        assert fault.ongoing
    clock.advance(4.9)
    fault.passed()
    assert fault.ongoing
    clock.advance(0.1)
    for _ in range(3):
        fault.passed()
    assert not fault.ongoing
    assert caplog.messages == ["cannot fork: no more", "cannot fork: over after 10.0 s, 1000 times"]


def test_the_next_fault_is_logged_again(fault, clock, caplog):
    for _ in range(2):
        fault.failed(OSError("no more"))
        clock.advance(5)
        fault.passed()
    assert caplog.messages == 2 * ["cannot fork: no more", "cannot fork: over, it happened once"]


def test_each_of_a_few_reasons_is_logged_once(fault, caplog):
    for number in range(100):
        fault.failed(OSError(f"reason {number % 10}"))
    assert caplog.messages == [f"cannot fork: reason {number}" for number in range(5)]


def test_the_same_errno_is_the_same_reason_whatever_the_file(fault, caplog):
    for name in "a", "b":
        fault.failed(OSError(28, "No space left on device", name))
    assert caplog.messages == ["cannot fork: [Errno 28] No space left on device: 'a'"]


def test_the_end_says_how_long_and_how_often(fault, clock, caplog):
    for times in 1, 2:
        for _ in range(times):
            fault.failed("full")
        clock.advance(5)
        fault.passed()
    assert caplog.messages[1::2] == [
        "cannot fork: over, it happened once",
        "cannot fork: over after 0.0 s, 2 times",
    ]


@pytest.fixture
def lasting(clock):
    return FaultLog("no answer", logging.getLogger("psched.test"), clock, patience=60)


def test_what_does_not_last_is_not_logged(lasting, clock, caplog):
    for _ in range(3):
        lasting.failed("gone")
        clock.advance(59)
        lasting.failed("gone")
        lasting.passed()
        assert not lasting.ongoing
        clock.advance(1)
    assert caplog.messages == []


def test_the_length_of_what_lasts_is_from_the_first_time_to_the_recovery(lasting, clock, caplog):
    for _ in range(2):
        lasting.failed("gone")
        clock.advance(60)
    lasting.failed("gone")
    clock.advance(4)
    lasting.passed()
    clock.advance(3)
    lasting.passed()
    assert caplog.messages == ["no answer: gone", "no answer: over after 124.0 s, 3 times"]


def test_without_a_fault_nothing_is_logged(fault, clock, caplog):
    clock.advance(100)
    fault.passed()
    assert caplog.messages == []

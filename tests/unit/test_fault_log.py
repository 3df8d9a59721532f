"""One line when a fault begins, one when it is over."""

import logging

import pytest

from psched.base.fault_log import FaultLog


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def outage(clock):
    return FaultLog("cannot fork", logging.getLogger("psched.test"), clock)


def test_a_fault_at_every_tick_is_told_when_it_begins_and_when_it_is_over(outage, clock, caplog):
    assert not outage.ongoing
    for _ in range(1000):
        outage.failed(OSError("no more"))
        outage.passed()
        clock.now += 0.01
        assert outage.ongoing
    clock.now += 4.9
    outage.passed()
    assert outage.ongoing
    clock.now += 0.1
    for _ in range(3):
        outage.passed()
    assert not outage.ongoing
    assert caplog.messages == ["cannot fork: no more", "cannot fork: over after 10.0 s, 1000 times"]


def test_the_next_fault_of_the_kind_is_told_again(outage, clock, caplog):
    for _ in range(2):
        outage.failed(OSError("no more"))
        clock.now += 5
        outage.passed()
    assert caplog.messages == 2 * ["cannot fork: no more", "cannot fork: over, it happened once"]


def test_each_of_a_few_reasons_is_told_once(outage, caplog):
    for number in range(100):
        outage.failed(OSError(f"reason {number % 10}"))
    assert caplog.messages == [f"cannot fork: reason {number}" for number in range(5)]


def test_an_error_of_the_system_is_the_same_reason_for_another_file(outage, caplog):
    for name in "a", "b":
        outage.failed(OSError(28, "No space left on device", name))
    assert caplog.messages == ["cannot fork: [Errno 28] No space left on device: 'a'"]


def test_without_a_fault_nothing_is_told(outage, clock, caplog):
    clock.now += 100
    outage.passed()
    assert caplog.messages == []

"""Tests of the monitor's loop, whose time and duties the tests control."""

import logging

import pytest

from psched.master.messages import FROM_MONITOR
from psched.monitor.monitor import Monitor, Observed
from psched.process.link import Link
from psched.testing import ManualClock


class Steps:
    """A duty that notes when it is called.

    Args:
        every: seconds between two steps; an exception is raised.
    """

    name = "a duty of a test"

    def __init__(self, every):
        self.every = every
        self.calls = []
        self.closed = 0

    def step(self, now):
        self.calls.append(now)
        if isinstance(self.every, Exception):
            raise self.every
        return self.every

    def close(self):
        self.closed += 1
        if isinstance(self.every, Exception):
            raise self.every


class Inbox:
    """Lets time pass instead of sleeping, and calls a function from time to time."""

    def __init__(self, clock):
        self.clock = clock
        self.sleeps = []

    def wait(self, timeout, links=()):
        assert [*links]
        self.sleeps.append(timeout)
        self.clock.advance(timeout)
        return ()


class Bench:
    """A monitor with some duties, and the master's end of its link."""

    def __init__(self, *duties, beat=15.0, on_run=None):
        self.clock = ManualClock()
        self.master, link = Link.pair()
        self.master.expects = FROM_MONITOR
        self.inbox = Inbox(self.clock)
        self.log = FakeLog()
        self.link = link
        self.observed = Observed(self.clock)
        self.monitor = Monitor(
            link,
            duties,
            observed=self.observed,
            inbox=self.inbox,
            log=self.log,
            clock=self.clock,
            beat=beat,
            on_run=on_run,
        )

    def run_for(self, seconds):
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            self.inbox.wait(self.monitor.tick(), [self.link])

    def close(self):
        self.master.close()
        self.link.close()


class FakeLog:
    def __init__(self):
        self.reopened = 0

    def reopen(self):
        self.reopened += 1


@pytest.fixture
def bench():
    made = []

    def make(*duties, **options):
        made.append(Bench(*duties, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_without_duties_it_only_sleeps_and_gives_signs_of_life(bench):
    made = bench(beat=15.0)

    made.run_for(600)

    assert len(made.master.receive()) == pytest.approx(40, abs=1)
    assert min(made.inbox.sleeps) == pytest.approx(15)


def test_each_duty_is_done_when_it_is_due(bench):
    often, seldom = Steps(1.0), Steps(20.0)
    bench(often, seldom).run_for(60)

    assert len(often.calls) == pytest.approx(60, abs=2)
    assert len(seldom.calls) == 3


def test_a_fault_in_a_duty_stops_only_this_duty_and_only_for_a_while(bench, caplog):
    faulty, sound = Steps(ValueError("wrong")), Steps(1.0)
    made = bench(faulty, sound)

    with caplog.at_level(logging.ERROR):
        made.run_for(600)

    pauses = [b - a for a, b in zip(faulty.calls, faulty.calls[1:], strict=False)]
    assert pauses == pytest.approx([1, 2, 4, 8, 16, 32, *[60] * (len(pauses) - 6)])
    assert len(sound.calls) == pytest.approx(600, abs=2)
    assert "a fault in a duty of a test: wrong" in caplog.text


def test_it_ends_when_the_master_says_so_or_is_gone_and_closes_all_duties(bench):
    faulty, sound = Steps(ValueError("wrong")), Steps(1.0)
    for end in (lambda master: master.send({"stop": True})), Link.close:
        made = bench(faulty, sound)
        end(made.master)

        assert made.monitor.run() == 0

    assert faulty.closed == sound.closed == 2


def test_the_master_can_have_the_log_opened_again(bench):
    made = bench()
    made.master.send({"reopen": True})

    made.monitor.tick()

    assert made.log.reopened == 1
    assert not made.monitor.is_over


def test_an_invalid_message_of_the_master_ends_it(bench):
    made = bench()
    made.master.send({"go": True})

    assert made.monitor.run() == 0


RUN = {"ping": "backup", "key": "key", "run": "x", "what": "fail", "exit": 3, "text": "text"}


def test_what_the_master_tells_of_runs_is_passed_on_in_order(bench):
    heard = []
    made = bench(on_run=heard.append)
    made.master.send(RUN)
    made.master.send({**RUN, "tail": True}, b"x" * 2**16)
    made.master.send({"lost_pings": 3})
    made.run_for(1)
    assert heard == [RUN, {**RUN, "tail": True, "data": b"x" * 2**16}, {"lost_pings": 3}]


def test_what_the_master_tells_of_runs_before_the_end_is_passed_on(bench):
    heard = []
    made = bench(on_run=heard.append)
    made.master.send(RUN)
    made.master.send({"stop": True})
    assert made.monitor.run() == 0
    assert heard == [RUN]


def test_without_a_listener_what_the_master_tells_of_runs_is_ignored(bench):
    made = bench()
    made.master.send(RUN)
    made.run_for(1)
    assert not made.link.closed


def test_a_fault_about_a_run_is_logged_and_stops_nothing_else(bench, caplog):
    def fail(_message):
        raise RuntimeError("can't start new thread")

    duty = Steps(1.0)
    made = bench(duty, on_run=fail)
    made.master.send(RUN)
    made.run_for(5)
    assert len(duty.calls) == pytest.approx(5, abs=1)
    assert "a fault about a run: can't start new thread" in caplog.text

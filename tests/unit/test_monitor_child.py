"""Tests of the master's care for its monitor, whose time and processes the tests control."""

from contextlib import closing
from signal import SIGHUP, SIGKILL, SIGTERM

import pytest

from psched.testing import ManualSpawner, MasterDriver

LIMIT = 60.0


@pytest.fixture
def driver():
    """A driver with one worker, and with a monitor."""
    with closing(MasterDriver(processors=1, monitor_limit=LIMIT)) as made:
        made.boot()
        made.tick()
        yield made


def monitor(driver):
    return driver.monitors[-1]


def beat(driver):
    monitor(driver).say(beat=True)
    driver.tick()


def end(driver):
    """Have the only worker exit as it was told, and the monitor too."""
    driver.worker(0).exits()
    driver.tick()
    monitor(driver).exits()
    driver.tick()


def test_a_monitor_is_started_when_a_generation_serves_and_is_ready_after_its_first_beat(driver):
    assert driver.monitor.describe() == {"pid": monitor(driver).pid, "state": "starting"}

    beat(driver)

    assert driver.monitor.describe() == {"pid": monitor(driver).pid, "state": "ready"}


def test_without_the_setting_there_is_no_monitor():
    with closing(MasterDriver()) as driver:
        driver.boot()
        driver.advance(10)
        assert driver.monitors == []
        assert driver.monitor.describe() is None


def test_a_monitor_that_dies_is_replaced_after_pauses_that_grow_and_costs_no_worker(driver):
    worker, born = driver.worker(0), []
    for _ in range(4):
        beat(driver)
        monitor(driver).dies()
        before = len(driver.monitors)
        for seconds in range(1, 100):
            driver.advance(1)
            if len(driver.monitors) > before:
                born.append(seconds)
                break

    assert born == sorted(born)
    assert born[0] == 1 < born[-1]
    assert driver.worker(0) is worker
    assert worker.lives
    assert driver.workers.deaths == 0
    assert not driver.master.has_stopped


def test_a_monitor_that_dies_again_and_again_is_no_crash_loop(driver):
    for _ in range(20):
        monitor(driver).exits(70)
        driver.advance(70)

    assert not driver.master.has_stopped
    assert driver.worker(0).lives


def test_a_silent_monitor_is_killed_and_replaced(driver):
    beat(driver)
    silent = monitor(driver)

    driver.advance(LIMIT - 1)
    assert silent.lives
    driver.advance(3)

    assert silent.signals == [SIGKILL]
    assert monitor(driver) is not silent
    assert driver.worker(0).lives


def test_a_monitor_that_sends_garbage_is_killed_and_replaced(driver):
    beat(driver)
    wrong = monitor(driver)
    wrong.say(ready=True)

    driver.advance(2)

    assert wrong.signals == [SIGKILL]
    assert monitor(driver).lives
    assert driver.worker(0).lives


def test_a_monitor_is_not_taken_for_silent_because_the_master_has_stood_still(driver):
    beat(driver)
    kept = monitor(driver)

    driver.clock.advance(LIMIT + 100)
    driver.tick()

    assert kept.lives
    driver.advance(LIMIT + 3)
    assert not kept.lives


def test_a_monitor_that_is_stopped_is_killed_before_it_counts_as_silent(driver):
    beat(driver)
    stopped = monitor(driver)
    stopped.stopped = True
    driver.advance(LIMIT / 4 + 9)
    assert not stopped.lives


def test_a_monitor_that_hangs_is_found_though_each_turn_of_the_master_is_late(driver):
    beat(driver)
    hung = monitor(driver)
    for _ in range(100):
        driver.clock.advance(10)
        driver.tick()
    assert not hung.lives


def test_the_monitor_is_told_from_time_to_time_that_nothing_has_changed(driver):
    beat(driver)
    driver.advance(20)
    heard = len(monitor(driver).received)

    driver.advance(30)

    told = [message["totals"] for message in monitor(driver).received[heard:]]
    assert told in ([[]] * 2, [[]] * 3)


def test_at_a_stop_the_monitor_ends_after_the_workers(driver):
    beat(driver)
    driver.send(SIGTERM)
    driver.advance(1)
    assert {"stop": True} not in monitor(driver).received

    driver.worker(0).exits()
    driver.tick()
    assert {"stop": True} in monitor(driver).received
    assert not driver.master.has_stopped

    monitor(driver).exits()
    driver.tick()
    assert driver.master.has_stopped
    assert driver.master.close() == 0
    assert len(driver.monitors) == 1


@pytest.mark.parametrize("immortal", [False, True])
def test_a_monitor_that_does_not_end_is_killed_and_keeps_no_master_from_stopping(driver, immortal):
    beat(driver)
    monitor(driver).stuck = immortal
    driver.send(SIGTERM)
    driver.worker(0).exits()

    driver.advance(12)

    assert SIGKILL in monitor(driver).signals
    assert driver.master.has_stopped
    assert driver.master.close() == 0


def test_a_new_generation_gets_a_new_monitor_when_the_old_one_has_ended(driver):
    beat(driver)
    old = monitor(driver)

    driver.send(SIGHUP)
    driver.boot()
    driver.tick()
    assert {"stop": True} in old.received
    assert monitor(driver) is old

    old.exits()
    driver.advance(0.1)
    driver.advance(0.1)
    assert monitor(driver) is not old


def test_a_new_generation_without_a_monitor_ends_that_of_the_old_one(driver):
    beat(driver)
    old = monitor(driver)
    driver.monitor_limit = None

    driver.send(SIGHUP)
    driver.boot()
    driver.tick()
    old.exits()
    driver.advance(2)

    assert driver.monitor.describe() is None


def test_if_no_monitor_can_be_forked_it_is_tried_again(driver):
    driver.spawner.refusal = OSError("no process is left")
    monitor(driver).dies()
    driver.advance(1)
    assert driver.monitor.describe() is None

    driver.spawner.refusal = None
    driver.advance(3)
    assert driver.monitor.describe() is not None
    assert driver.worker(0).lives


class Faulty(ManualSpawner):
    """A spawner with a bug, which meets only monitors.

    Attributes:
        fails: whether it fails now.
    """

    fails = True

    def spawn(self, main, *, keep):
        if self.fails and len(self.born) == 1:
            raise ValueError("a bug")
        return super().spawn(main, keep=keep)


def test_a_fault_in_the_care_for_the_monitor_slows_nothing_down_and_ends_by_itself(caplog):
    spawner = Faulty()
    with closing(MasterDriver(monitor_limit=LIMIT, spawner=spawner)) as driver:
        driver.boot()
        waits = []
        for _ in range(20):
            waits.append(driver.tick())
            driver.clock.advance(waits[-1])

        assert min(waits) >= 0.9
        assert not driver.master._fault
        assert caplog.text.count("a fault about the monitor") == 1
        assert driver.worker(0).lives

        spawner.fails = False
        driver.advance(2)
        assert driver.monitor.describe() is not None


def test_a_fault_in_the_care_for_the_monitor_keeps_no_master_from_stopping(driver):
    beat(driver)
    [link] = driver.monitor.links
    link.flush = None  # each step fails
    driver.send(SIGTERM)
    driver.worker(0).exits()

    driver.advance(12)

    assert driver.master.has_stopped
    assert driver.master.close() == 0
    link.close()

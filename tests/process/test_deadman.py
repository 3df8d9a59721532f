"""The dead man's switch: the kernel kills who does not say in time that it is well."""

import os
import select
import signal
import time

import pytest

from psched.base.clock import SystemClock
from psched.process import tree
from psched.process.deadman import Deadline, DeadMan
from psched.process.signals import SignalInbox, unblock
from psched.process.spawn import spawn
from support.isolated import isolated, say, started_isolated
from support.waiting import wait_until

CLOCK = SystemClock()
SHORT, SAFE, LONG = 0.7, 5.0, 1000.0
"""Seconds; what must be done before `SAFE` is over is done on a slow machine, too."""


def idle_until(instant):
    while (left := instant - CLOCK.boottime()) > 0:
        select.select([], [], [], left)


def armed(seconds, way):
    if way == "with all signals blocked":
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    deadman = DeadMan()
    at = CLOCK.boottime() + seconds
    deadman.set(at)
    say(at)
    if way == "stopped":
        tree.send(os.getpid(), signal.SIGSTOP)
    elif way == "blocked in read":
        os.read(os.pipe()[0], 1)
    elif way == "spinning":
        while True:
            pass
    else:
        idle_until(at + LONG)


@pytest.mark.parametrize("seconds", [SHORT, -1])
@pytest.mark.parametrize(
    "way", ["stopped", "blocked in read", "spinning", "with all signals blocked"]
)
def test_who_is_silent_is_killed_at_its_time_and_not_before(way, seconds):
    with started_isolated(armed, seconds, way) as process:
        assert process.wait() == -signal.SIGKILL
        # An instant that has passed kills before a word can be said.
        for at in process.text.split():
            assert CLOCK.boottime() >= float(at)


def set_again(at):
    deadman = DeadMan()
    due = CLOCK.boottime() + SAFE
    deadman.set(due)
    deadman.set(None if at is None else CLOCK.boottime() + at)
    idle_until(due + 0.2)
    return "alive"


@pytest.mark.parametrize("at", [LONG, None])
def test_who_sets_it_again_or_takes_it_back_lives_on(at):
    assert isolated(set_again, at) == "alive"


def brought_forward():
    deadman = DeadMan()
    for at in LONG, None, LONG, 0:
        deadman.set(None if at is None else CLOCK.boottime() + at)
    idle_until(CLOCK.boottime() + LONG)


def test_it_can_be_set_after_it_was_taken_back_and_earlier_than_before():
    with started_isolated(brought_forward) as process:
        assert process.wait() == -signal.SIGKILL


def hastened(ats):
    deadman = DeadMan()
    begun = CLOCK.boottime()
    for at in ats:
        deadman.hasten(begun + at)
    idle_until(begun + SHORT + 0.2)


@pytest.mark.parametrize("ats", [[SHORT], [LONG, SHORT], [SHORT, LONG]])
def test_it_can_be_hastened_and_is_never_put_off_by_that(ats):
    with started_isolated(hastened, ats) as process:
        assert process.wait() == -signal.SIGKILL


def forked():
    deadman = DeadMan()
    at = CLOCK.boottime() + SAFE
    deadman.set(at)

    def child(_link):
        unblock()
        idle_until(at + 0.2)
        say("alive")
        return 0

    spawn(child)
    SignalInbox([]).wait(LONG)


def test_a_child_does_not_inherit_it():
    with started_isolated(forked) as process:
        assert process.wait() == -signal.SIGKILL
        wait_until(lambda: process.text == "alive\n", what="the child")


def kept_up(times):
    deadman = DeadMan()
    before = time.process_time()
    for _ in range(times):
        deadman.set(CLOCK.boottime() + LONG)
    return (time.process_time() - before) / times


def test_setting_it_before_each_request_costs_next_to_nothing():
    assert isolated(kept_up, 1000) < 0.001


def noted_for_its_parent(at):
    deadline = Deadline()

    def child(_link):
        DeadMan(deadline).set(None if at is None else CLOCK.boottime() + at)
        idle_until(CLOCK.boottime() + LONG)
        return 0

    pid, _ = spawn(child)
    if at is None or at > SHORT:
        tree.send(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return deadline.has_passed(CLOCK.boottime()), os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize(("at", "fired"), [(SHORT, True), (-1, True), (LONG, False), (None, False)])
def test_the_parent_can_tell_it_from_another_kill(at, fired):
    assert isolated(noted_for_its_parent, at) == [fired, -signal.SIGKILL]


def changed_until_killed():
    deadline = Deadline()

    def child(_link):
        while True:
            deadline.write(LONG)
            deadline.write(None)

    pid, _ = spawn(child)
    passed = sum(deadline.has_passed(SHORT) for _ in range(200_000))
    tree.send(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return passed


def test_the_parent_never_reads_a_half_written_instant():
    assert isolated(changed_until_killed) == 0

"""Tests of how a leased occurrence ends."""

import pytest

from psched.base.lease_times import Deadlines
from psched.config import from_mapping
from psched.core.definition import parse_row
from psched.core.history.recording import StoreClock
from psched.core.model import Finish, Occurrence, Release, Retry, Row
from psched.process.child import KillLadder
from psched.process.link import Link
from psched.runner.runner_pool import RunnerChild
from psched.runner.shared_memory import Reason, StopFlags
from psched.testing import ManualClock
from psched.worker.running_task import RunningTask

STOPS = [Reason.SHUTDOWN, Reason.DELETED, Reason.LEASE]
NOBODY = 2**22 + 1
"""A pid that no process can have."""
LADDER = KillLadder(0.0, 60.0, 150.0)


@pytest.fixture
def task():
    row = Row(key="k", next_time=60)
    ours, theirs = Link.pair()
    yield RunningTask(
        row=row,
        definition=parse_row(row, from_mapping({"url": "sqlite:///unused.db"})),
        occurrence=Occurrence("k", 60),
        deadlines=Deadlines(0.0, 300, 5.0),
        runner=RunnerChild(NOBODY, ours, 0.0, StopFlags()),
        started=0.0,
        store_clock=StoreClock(ManualClock()),
    )
    ours.close()
    theirs.close()


def test_a_run_that_returns_has_finished(task):
    task.run_over(None, 1.0)
    assert task.conclusion == Finish()


def test_a_run_that_fails_is_tried_again_with_the_failure_as_the_reason(task):
    task.run_over("ValueError: no", 1.0)
    assert task.conclusion == Retry(reason="ValueError: no")


@pytest.mark.parametrize("failure", [None, "ValueError: no"])
@pytest.mark.parametrize("decision", [Finish(), Release(), Retry(5.0, "asked for")])
@pytest.mark.parametrize("reason", Reason)
def test_what_the_task_has_decided_stands(task, decision, failure, reason):
    if reason is not Reason.NONE:
        task.stop(reason, LADDER)
    task.decided(decision)
    task.run_over(failure, 1.0)
    assert task.conclusion == decision


@pytest.mark.parametrize("reason", Reason)
def test_what_it_has_completed_is_done_also_if_it_was_to_be_stopped(task, reason):
    if reason is not Reason.NONE:
        task.stop(reason, LADDER)
    task.run_over(None, 1.0)
    assert task.conclusion == Finish()


def test_a_task_stopped_at_its_time_limit_has_failed(task):
    task.stop(Reason.TIMEOUT, LADDER)
    task.run_over("stopped: timeout", 1.0)
    assert task.conclusion == Retry(reason="stopped at its time limit")


@pytest.mark.parametrize("reason", STOPS)
def test_a_task_stopped_through_no_fault_of_its_own_is_released(task, reason):
    task.stop(reason, LADDER)
    task.run_over("its process was killed by SIGKILL", 1.0)
    assert task.conclusion == Release()


@pytest.mark.parametrize("reason", STOPS)
def test_a_failure_stays_one_if_the_task_is_to_be_stopped_after_it(task, reason):
    task.run_over("ValueError: no", 1.0)
    task.stop(reason, LADDER)
    assert task.conclusion == Retry(reason="ValueError: no")


def test_the_first_reason_to_stop_stays(task):
    later = KillLadder(9.0, 60.0, 150.0)
    task.stop(Reason.TIMEOUT, LADDER)
    task.stop(Reason.SHUTDOWN, later)
    assert task.stopping is Reason.TIMEOUT
    assert task.ladder is LADDER
    assert task.runner.stop_flags.read() is Reason.TIMEOUT


def test_the_first_end_of_a_run_is_its_end(task):
    task.run_over(None, 1.0)
    task.run_over("its process was killed by SIGKILL", 2.0)
    assert task.conclusion == Finish()
    assert task.ended == 1.0

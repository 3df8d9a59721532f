"""Tests of what a running task that has ended tells the run history."""

import signal

import pytest

from psched.base.lease_times import Deadlines
from psched.config import from_mapping
from psched.core.definition import parse_row
from psched.core.history.recording import StoreClock
from psched.core.history.records import Outcome
from psched.core.model import Occurrence, Row
from psched.process.child import Exit
from psched.process.link import Link
from psched.runner.runner_pool import RunnerChild
from psched.runner.shared_memory import StopFlags
from psched.testing import ManualClock
from psched.worker.running_task import EndReport, RunningTask

NOBODY = 2**22 + 1
"""A pid that no process can have."""
KILLED = EndReport(exit_signal=signal.SIGKILL)
TOLD = EndReport(exit_status=7, cpu_us=1_500, peak_kb=20_000, error="Traceback\nValueError: no")


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


def test_what_the_runner_has_told_is_recorded(task):
    task.run_over("ValueError: no", 1.0, TOLD)
    task.tree_gone()
    found = task.attempt
    assert (found.exit_status, found.exit_signal, found.cpu_ms, found.peak_kb) == (
        7,
        None,
        2,
        20_000,
    )
    assert (found.error, found.out_of_memory) == (TOLD.error, False)


def test_the_processor_time_of_the_cgroup_is_preferred(task):
    task.run_over(None, 1.0, TOLD)
    task.runner.cpu_us = 0
    task.tree_gone()
    assert task.attempt.cpu_ms == 0


def test_what_a_process_of_one_task_has_used_is_the_tasks(task):
    task.runner.exit = Exit(NOBODY, 0, None, 4_000, 30_000)
    task.run_over(None, 1.0, TOLD)
    task.tree_gone()
    assert (task.attempt.cpu_ms, task.attempt.peak_kb) == (4, 30_000)


def test_what_a_reused_process_has_used_is_not_the_tasks(task):
    task.runner.exit = Exit(NOBODY, 0, None, 4_000, 30_000)
    task.runner.used = True
    task.run_over(None, 1.0, TOLD)
    task.tree_gone()
    assert (task.attempt.cpu_ms, task.attempt.peak_kb) == (2, 20_000)


def test_what_is_told_counts_if_the_kernel_tells_nothing(task):
    task.runner.exit = Exit(NOBODY, 0, None)
    task.run_over(None, 1.0, TOLD)
    task.tree_gone()
    assert (task.attempt.cpu_ms, task.attempt.peak_kb) == (2, 20_000)


def test_what_the_runner_uses_for_its_next_task_does_not_count(task):
    task.run_over(None, 1.0, TOLD)
    task.runner.cpu_us = 3_000
    task.tree_gone()
    task.runner.cpu_us = 9_000
    assert task.attempt.cpu_ms == 3


def test_what_is_told_after_the_end_changes_nothing(task):
    task.run_over(None, 1.0, TOLD)
    task.run_over("its process was killed by SIGKILL", 2.0, KILLED)
    assert task.attempt.exit_status == 7
    assert task.attempt.exit_signal is None


def test_nothing_is_known_of_a_run_about_which_nobody_has_told_anything(task):
    task.run_over("its process has sent garbage", 1.0)
    found = task.attempt
    assert (found.exit_status, found.exit_signal, found.cpu_ms, found.peak_kb) == (None,) * 4
    assert (found.error, found.out_of_memory) == (None, False)


@pytest.mark.parametrize("oom_kills", [None, 5])
def test_a_kill_by_psched_is_no_lack_of_memory(task, oom_kills):
    task.runner.oom_kills = 4
    task.runner.killed = True
    task.run_over("its process was killed by SIGKILL", 1.0, KILLED)
    task.judge_memory(oom_kills)
    assert not task.attempt.out_of_memory


def test_a_death_with_the_fork_server_is_no_lack_of_memory(task):
    task.runner.lost_server = True
    task.runner.exit = Exit(NOBODY, None, signal.SIGKILL)
    task.server_died(1.0)
    task.judge_memory(5)
    found = task.attempt
    assert (found.outcome, found.exit_signal) == (Outcome.LOST, signal.SIGKILL)
    assert not found.out_of_memory

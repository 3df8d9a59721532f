"""Tests of when the guard stops which running task, whether or not the store answers."""

from dataclasses import dataclass, field
from signal import SIGKILL, SIGTERM

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched.base.lease_times import SHORTEST_ALIVE_TIME, Deadlines, default_driver_timeout
from psched.config import from_mapping
from psched.core.definition import parse_row
from psched.core.history.recording import StoreClock
from psched.core.model import Finish, Occurrence, Retry, Row
from psched.runner.shared_memory import Reason
from psched.testing import ManualClock
from psched.worker.running_task import RunningTask
from psched.worker.task_table import TaskGuard

NEVER = float("inf")


@dataclass
class Flags:
    reason: Reason = Reason.NONE
    begun: bool = True

    def write(self, reason):
        self.reason = reason


@dataclass
class Runner:
    """A runner that records the signals that it receives, with their times."""

    clock: ManualClock
    sent: list = field(default_factory=list)
    stop_flags: Flags = field(default_factory=Flags)
    exit: object = None
    stuck: bool = False
    cpu_us: int | None = None
    peak_kb: int | None = None

    def send(self, number):
        self.sent.append((self.clock.monotonic(), number))


class Pool:
    """A pool whose `kill` only sends KILL to the runner."""

    def kill(self, runner):
        runner.send(SIGKILL)


class DeadMan:
    """A kernel timer that only records its last setting."""

    at = "not set"

    def set(self, at):
        self.at = at

    def hasten(self, at):
        self.at = ("hasten", at)


class Scene:
    """A guard and its tasks, with a manual clock."""

    def __init__(self, **settings):
        given_settings = {"url": "sqlite:///unused.db", "kill_timeout": 0, **settings}
        self.settings = from_mapping(given_settings)
        self.clock = ManualClock()
        self.deadman = DeadMan()
        self.tasks = []
        self.guard = TaskGuard(self.settings, Pool(), self.clock, self.deadman)

    def task(self, *, lease=300, **row):
        row = Row(key="k", next_time=60, **row)
        task = RunningTask(
            row=row,
            definition=parse_row(row, self.settings),
            occurrence=Occurrence("k", 60),
            deadlines=Deadlines(self.clock.boottime(), lease, default_driver_timeout(lease)),
            runner=Runner(self.clock),
            started=self.clock.monotonic(),
            store_clock=StoreClock(self.clock),
        )
        self.tasks.append(task)
        return task

    def watch(self):
        return self.guard.watch(self.tasks)

    def run(self, seconds):
        """Move the clock, and call the guard whenever it has asked to be called."""
        end = self.clock.monotonic() + seconds
        while (wakes := self.watch()) <= end:
            assert wakes > self.clock.monotonic(), "it would spin"
            self.clock.advance(wakes - self.clock.monotonic())
        self.clock.advance(end - self.clock.monotonic())


def sent(task):
    """The signals that the task's runner received, each with the seconds since the task's start."""
    return [(round(at - task.started, 3), number) for at, number in task.runner.sent]


# --- the dead man's switch -----------------------------------------------------------


def test_without_a_task_the_switch_is_off_and_nothing_is_due():
    scene = Scene()
    assert scene.watch() == NEVER
    assert scene.deadman.at is None


def test_the_switch_stands_at_the_earliest_of_the_tasks():
    scene = Scene()
    for lease in 300, 60, 100:
        scene.task(lease=lease)
    scene.watch()
    assert scene.deadman.at == scene.tasks[1].deadlines.deadman


def test_a_task_that_begins_is_guarded_before_the_next_watch():
    scene = Scene()
    task = scene.task()
    scene.guard.begin(task)
    assert scene.deadman.at == ("hasten", task.deadlines.deadman)


def test_a_task_of_which_nothing_is_left_sets_no_switch():
    scene = Scene()
    empty, running = scene.task(lease=60), scene.task(lease=300)
    empty.tree_gone()
    scene.watch()
    assert scene.deadman.at == running.deadlines.deadman
    running.tree_gone()
    scene.watch()
    assert scene.deadman.at is None


def test_what_cannot_be_killed_does_not_cost_the_other_tasks_their_worker():
    scene = Scene()
    scene.task(lease=60).runner.stuck = True
    other = scene.task(lease=100)
    scene.watch()
    assert scene.deadman.at == other.deadlines.deadman


def test_a_task_that_is_over_but_not_gone_is_still_guarded():
    scene = Scene()
    task = scene.task(lease=60)
    task.run_over(None, scene.clock.monotonic())
    scene.watch()
    assert scene.deadman.at == task.deadlines.deadman


# --- the time limit ------------------------------------------------------------------


def test_a_task_over_its_time_limit_goes_down_the_ladder():
    scene = Scene(kill_timeout=100, kill_interval=60, graceful_kill_limit=150)
    task = scene.task(lease=10_000)
    scene.run(252.5)
    assert sent(task) == [
        (100, SIGTERM),
        (160, SIGTERM),
        (220, SIGTERM),
        (250, SIGKILL),
        (251, SIGKILL),
        (252, SIGKILL),
    ]
    assert task.runner.stop_flags.reason is Reason.TIMEOUT


def test_a_time_limit_of_0_is_none():
    scene = Scene(kill_timeout=0)
    task = scene.task(lease=1_000_000)
    scene.run(900_000)
    assert sent(task) == []


def test_a_schedule_may_have_a_time_limit_of_its_own():
    scene = Scene(kill_timeout=0, graceful_kill_limit=1)
    task = scene.task(lease=10_000, options='{"kill_timeout": 5}')
    other = scene.task(lease=10_000)
    scene.run(6)
    assert sent(task) == [(5, SIGTERM), (6, SIGKILL)]
    assert sent(other) == []


def test_a_task_that_has_ended_in_time_is_not_stopped_for_its_time():
    scene = Scene(kill_timeout=5)
    task = scene.task(lease=10_000)
    task.run_over("ValueError: no", scene.clock.monotonic() + 4.9)
    task.runner.exit = "gone"
    scene.run(100)
    assert task.stopping is Reason.NONE
    assert task.conclusion == Retry(reason="ValueError: no")


# --- the lease -----------------------------------------------------------------------


@given(lease=st.integers(min_value=SHORTEST_ALIVE_TIME, max_value=100_000))
def test_a_lease_that_is_not_extended_costs_the_task_in_time(lease):
    scene = Scene()
    task = scene.task(lease=lease)
    scene.run(lease)
    deadlines = task.deadlines
    kills = [at for at, number in sent(task) if number is SIGKILL]
    assert kills[0] == pytest.approx(deadlines.kill - deadlines.sent, abs=0.01)
    terms = [at for at, number in sent(task) if number is SIGTERM]
    assert all(at >= lease / 2 for at in terms)
    # A request to the store that begins just before still ends before the timer fires.
    assert deadlines.kill + deadlines.driver_timeout < deadlines.deadman < deadlines.end


def test_a_long_lease_in_danger_is_told_to_the_task_first():
    scene = Scene(kill_interval=5)
    task = scene.task(lease=300)
    scene.run(281)
    assert sent(task) == [
        (270, SIGTERM),
        (275, SIGTERM),
        (280, SIGKILL),
        (281, SIGKILL),
    ]
    assert task.runner.stop_flags.reason is Reason.LEASE


def test_a_lease_that_is_extended_in_time_costs_nothing():
    scene = Scene()
    task = scene.task(lease=60)
    for _ in range(20):
        scene.run(25)
        task.answered(scene.clock.boottime(), held=True)
    assert sent(task) == []


def test_a_lost_lease_is_a_kill_at_once():
    scene = Scene()
    task = scene.task()
    scene.run(10)
    task.answered(0.0, held=False)
    scene.run(2)
    assert sent(task) == [(10, SIGKILL), (11, SIGKILL), (12, SIGKILL)]


def test_a_lost_lease_hastens_a_ladder_that_has_begun():
    scene = Scene(kill_timeout=5, graceful_kill_limit=150)
    task = scene.task(lease=10_000)
    scene.run(8)
    task.answered(0.0, held=False)
    scene.run(0)
    assert sent(task) == [(5, SIGTERM), (8, SIGKILL)]


def test_a_suspend_counts_for_the_lease_and_not_for_the_time_limit():
    scene = Scene(kill_timeout=100)
    task = scene.task(lease=300)
    scene.run(1)
    scene.clock.suspend(1000)
    scene.run(0)
    assert sent(task) == [(1, SIGKILL)]
    assert task.stopping is Reason.LEASE


# --- stopping ------------------------------------------------------------------------


def test_a_task_that_is_stopped_has_as_long_as_the_settings_say():
    scene = Scene(graceful_kill_limit=7)
    task = scene.task()
    scene.guard.stop(task, Reason.DELETED)
    scene.run(7)
    assert sent(task) == [(0, SIGTERM), (7, SIGKILL)]


def test_stopping_again_and_again_neither_repeats_nor_delays_anything():
    scene = Scene(graceful_kill_limit=7)
    task = scene.task()
    for _ in range(7):
        scene.guard.stop(task, Reason.SHUTDOWN)
        scene.run(1)
    scene.run(0)
    assert sent(task) == [(0, SIGTERM), (7, SIGKILL)]


def test_a_hurry_shortens_what_is_left():
    scene = Scene(graceful_kill_limit=100)
    task = scene.task()
    scene.guard.stop(task, Reason.SHUTDOWN)
    scene.run(3)
    scene.guard.stop(task, Reason.SHUTDOWN, 2)
    scene.run(2)
    assert sent(task) == [(0, SIGTERM), (5, SIGKILL)]


@pytest.mark.parametrize(("failure", "conclusion"), [(None, Finish()), ("no", Retry(reason="no"))])
def test_what_has_ended_and_waits_to_be_settled_is_left_alone(failure, conclusion):
    scene = Scene()
    task = scene.task()
    task.run_over(failure, scene.clock.monotonic())
    task.tree_gone()
    scene.guard.stop(task, Reason.SHUTDOWN, 0)
    scene.run(1000)
    assert sent(task) == []
    assert task.runner.stop_flags.reason is Reason.NONE
    assert task.conclusion == conclusion


def test_a_task_that_is_over_gets_no_term_and_is_killed_if_its_process_stays():
    scene = Scene(graceful_kill_limit=100)
    task = scene.task()
    task.run_over(None, scene.clock.monotonic())
    scene.guard.stop(task, Reason.SHUTDOWN)
    scene.run(5)
    assert sent(task) == [(5, SIGKILL)]
    assert task.conclusion == Finish()


def test_a_process_that_stays_after_its_task_is_killed_without_being_asked():
    scene = Scene()
    task = scene.task()
    scene.run(10)
    task.run_over(None, scene.clock.monotonic())
    scene.run(4.9)
    assert sent(task) == []
    scene.run(0.1)
    assert sent(task)[0] == (15, SIGKILL)

"""Tests that a task is guarded before it runs, and before anything can delay the worker."""

import pytest

from psched.base.lease_times import Deadlines
from psched.config import from_mapping
from psched.core.definition import parse_row
from psched.core.model import Row
from psched.core.policy import Run
from psched.testing import ManualClock
from psched.worker.running_task import Lease
from psched.worker.task_table import TaskTable
from support.worker import context

SETTINGS = from_mapping({"url": "sqlite:///unused.db"})


class Scene:
    """Replaces the pool, the runners and the guard; `asked` lists their calls in order."""

    def __init__(self, *, waiting):
        self.waiting = waiting
        self.asked = []
        self.wakes = 0.0
        self.link = self
        self.pipe = None
        self.stored = []
        self.tasks = TaskTable(
            context(ManualClock(), SETTINGS, pool=self), flush_log=lambda: self.asked.append("log")
        )
        self.tasks._guard = self

    def acquire(self):
        return self

    def prepare(self, count, *, unused):
        assert not unused
        self.asked.append(f"fork {count}")

    def begin(self, task):
        self.asked.append(f"guard {task.row.key}")

    def watch(self, tasks):
        self.asked.append("watch " + " ".join(task.row.key for task in tasks))
        return 0.0

    def store(self, message, _data):
        self.stored.append(f"send {message['run']['key']}")

    def flush(self):
        self.asked.append(self.stored.pop(0))

    def start(self, key):
        row = Row(key=key, next_time=60)
        run = Run(parse_row(row, SETTINGS), 60)
        self.tasks.start(Lease(row, Deadlines(0.0, 300, 1.0)), run)


@pytest.mark.parametrize("then", ["guard", "guard_before_blocking"])
def test_a_task_is_guarded_and_logged_before_its_runner_hears_of_it(then):
    scene = Scene(waiting=True)
    for key in "one", "two":
        scene.start(key)
    getattr(scene.tasks, then)()
    begun = ["guard one", "guard two", "log", "send one", "send two"]
    assert scene.asked == [*begun, "watch one two"]
    scene.tasks.guard()
    assert scene.asked == [*begun, "watch one two", "log", "watch one two"]


@pytest.mark.parametrize(("waiting", "watched"), [(False, ["log", "watch one"]), (True, [])])
def test_what_runs_is_watched_before_the_worker_is_held_up_by_a_fork(waiting, watched):
    scene = Scene(waiting=waiting)
    scene.start("one")
    scene.tasks.send_starts()
    scene.asked.clear()
    scene.tasks.prepare(3)
    assert scene.asked == [*watched, "fork 3"]


def test_nothing_is_watched_for_the_first_fork():
    scene = Scene(waiting=False)
    scene.tasks.prepare()
    assert scene.asked == ["log", "fork 1"]

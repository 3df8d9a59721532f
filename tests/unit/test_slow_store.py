"""Tests with a store that answers slowly: leases are kept, and the log says what is wrong."""

import contextlib
import re

import pytest

from psched.base.errors import StoreUnavailableError
from psched.base.lease_times import longest_answer
from psched.config import from_mapping
from psched.core.model import Row
from psched.stores.plain import PlainStore
from psched.testing import ManualClock, ManualDeadMan, ManualRunnerPool
from psched.worker.lease_loop import LeaseLoop
from psched.worker.task_table import TaskTable
from support.worker import context

ALIVE_TIME = 6
EPSILON = 1e-3


class Store(PlainStore):
    """A store in memory that answers each request late.

    Attributes:
        answer: the duration of each answer, in seconds.
        hold_up: by the names of requests, further seconds that these requests take.
        asked: the name of each request, and the time when it was sent.
    """

    def __init__(self, clock):
        self.rows_by_key = {}
        self.clock = clock
        self.answer = 0.0
        self.hold_up = {}
        self.asked = []
        self.failing = False

    @contextlib.contextmanager
    def all(self):
        yield self.rows_by_key

    def now(self):
        return self.clock.monotonic()

    def examine(self):
        raise NotImplementedError

    def _take(self, name, answers=1):
        self.asked.append((name, self.clock.monotonic()))
        self.clock.advance(answers * self.answer + self.hold_up.get(name, 0.0))
        if self.failing:
            raise StoreUnavailableError("away")

    def claim(self, owner, **how):
        """Take one answer, and another one if a row is due, as a claim by compare-and-swap."""
        self._take("claim")
        due = [r for r in self.rows_by_key.values() if (r.next_run_time or 9e9) <= self.now()]
        if due:
            self.clock.advance(self.answer)
        return super().claim(owner, **how)

    def extend(self, leases, **how):
        self._take("extend")
        return super().extend(leases, **how)

    def settle(self, settlements):
        self._take("settle")
        return super().settle(settlements)

    def marked(self, keys):
        self._take("marked")
        return super().marked(keys)

    def recover(self, nonce, **how):
        self._take("recover", 2)
        return super().recover(nonce, **how)

    def purge(self, limit):
        self._take("purge")
        return super().purge(limit)


class Pool(ManualRunnerPool):
    """A pool that records when it kills runners, and never has a runner ready in advance."""

    def __init__(self, clock):
        super().__init__(clock)
        self.killed = []

    def prepare(self, count=1, *, unused=False):
        self._idle.clear()
        super().prepare(count, unused=unused)

    def kill(self, runner):
        if runner.pending_exit is None:
            self.killed.append(self._clock.monotonic())
        super().kill(runner)


SCENES = []


class Scene:
    def __init__(self, answer=0.0, **settings):
        SCENES.append(self)
        given = {"url": "sqlite:///unused.db", "alive_time": ALIVE_TIME, "poll_interval": 1}
        # The store keeps neither, which is not to be warned of.
        given |= {"history": "none", "output": "service"}
        self.settings = from_mapping({**given, **settings})
        self.clock = ManualClock()
        self.store = Store(self.clock)
        self.store.answer = answer
        self.pool = Pool(self.clock)
        deadman = ManualDeadMan(self.clock)
        shared = context(
            self.clock, self.settings, store=self.store, pool=self.pool, deadman=deadman
        )
        table = TaskTable(shared)
        self.tasks = table.running
        self.loop = LeaseLoop(shared, table)

    def add(self, *keys, **columns):
        for key in keys:
            row = Row(key=key, next_time=60, next_run_time=60, **columns)
            self.store.rows_by_key[key] = row

    def run(self, seconds):
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            rest = self.loop.tick()
            self.pool.receive()
            self.clock.advance(max(rest, EPSILON))

    def fence(self, key):
        return self.store.rows_by_key[key].fence

    def times(self, name):
        return [at for asked, at in self.store.asked if asked == name]


@pytest.fixture(autouse=True)
def _closed():
    yield
    while SCENES:
        SCENES.pop().pool.close()


ANSWERS = [0.0, 0.2, 0.5, 0.7, 0.8]


def test_the_answers_of_these_tests_reach_up_to_what_a_lease_bears():
    longest = longest_answer(ALIVE_TIME, Scene().settings.driver_timeout)
    assert ANSWERS[-1] < longest < ANSWERS[-1] + 0.1


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_task_that_is_longer_than_its_lease_keeps_it_on_a_slow_store(answer):
    scene = Scene(answer, concurrency=2)
    scene.add("long")
    scene.run(60)
    assert scene.pool.killed == []
    assert scene.fence("long") == 1
    assert len(scene.tasks) == 1


@pytest.mark.parametrize("answer", ANSWERS)
def test_tasks_are_kept_while_others_come_and_go(answer):
    scene = Scene(answer, concurrency=4)
    scene.add("long")
    scene.run(3)
    for number in range(20):
        scene.add(f"short{number}", f"brief{number}")
        scene.run(1.7)
        for runner in scene.pool.runners:
            if runner.assignment and runner.assignment["key"] != "long":
                runner.finish()
        scene.loop.recover([f"dead{number}"])
    scene.run(5)
    assert scene.pool.killed == []
    assert scene.fence("long") == 1
    assert {row.fence for row in scene.store.rows_by_key.values()} == {1}


@pytest.mark.parametrize("step", ["marked", "claim", "recover", "purge", "fork"])
def test_a_step_that_takes_a_driver_timeout_costs_no_task(step):
    scene = Scene(concurrency=3)
    scene.add("long")
    scene.run(3)
    timeout = scene.settings.driver_timeout
    if step == "fork":
        scene.pool.fork_takes = timeout
    else:
        scene.store.hold_up[step] = timeout
    for number in range(12):
        scene.loop.recover([f"dead{number}", f"gone{number}"])
        scene.loop._janitor.due = 0.0
        scene.run(1)
    assert scene.pool.killed == []
    assert scene.fence("long") == 1


def test_a_running_task_is_kept_while_each_of_many_forks_takes_its_time():
    scene = Scene(concurrency=9)
    scene.add("long")
    scene.run(3)
    scene.pool.fork_takes = 0.4
    scene.add(*[f"k{number}" for number in range(8)])
    scene.run(20)
    assert len(scene.tasks) == 9
    assert scene.pool.killed == []
    assert scene.fence("long") == 1


def test_rows_that_were_claimed_together_are_all_started_on_a_slow_store():
    scene = Scene(0.7, concurrency=8)
    keys = [f"k{number}" for number in range(8)]
    scene.add(*keys)
    scene.run(20)
    assert len(scene.tasks) == 8
    assert {scene.fence(key) for key in keys} == {1}
    assert scene.pool.killed == []


def test_where_nothing_is_due_nothing_is_extended():
    scene = Scene(concurrency=2, alive_time=60)
    scene.add("long")
    scene.run(100)
    begun, *later = scene.times("extend")
    assert begun == pytest.approx(1015, abs=0.1)
    assert len(later) == 5
    assert len(scene.times("claim")) > 90


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_slow_answers_are_said_once_and_so_is_their_end(caplog):
    scene = Scene(0.7, concurrency=8)
    for number in range(10):
        scene.add(f"k{number}")
        scene.run(3)
    scene.store.answer = 0.01
    scene.run(30)
    begun, ended = warnings(caplog)
    assert re.fullmatch(
        r"the store answers slowly: a request took 1\.4 s; with alive_time 6, tasks can be killed"
        r" although the store answers: set alive_time to 1\d or more, or make the store or the way"
        r" to it faster",
        begun,
    )
    assert ended.startswith("the store answers in time again, after ")
    assert ended.endswith("; leases given back unrun: 0")


def test_a_lease_that_is_given_back_for_its_age_is_said_once(caplog):
    scene = Scene(concurrency=2)
    scene.pool.fork_takes = 1.5
    scene.add("late")
    scene.run(20)
    assert len(scene.tasks) == 0
    assert scene.fence("late") > 3
    [said] = warnings(caplog)
    assert said.startswith("late: given back unrun, its lease of 6 s was too old when it could")
    assert "set alive_time to" in said


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_task_is_killed_in_time_if_the_store_ceases_to_answer(answer):
    scene = Scene(answer, concurrency=2)
    scene.add("long")
    scene.run(8)
    [task] = scene.tasks.values()
    scene.store.failing = True
    scene.store.answer = scene.settings.driver_timeout
    scene.run(ALIVE_TIME)
    [killed] = scene.pool.killed
    assert killed <= task.deadlines.end - 0.4 * ALIVE_TIME

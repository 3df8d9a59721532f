"""A store whose answers take their time: leases are kept, and it is said what is wrong."""

import contextlib
import random
import re

import pytest

from psched.base.errors import StoreUnavailableError
from psched.base.lease_times import longest_answer
from psched.config import from_mapping
from psched.core.model import Row
from psched.stores.plain import PlainStore
from psched.worker.lease_loop import LeaseLoop
from psched.worker.task_guard import TaskGuard
from psched.worker.task_table import TaskTable

ALIVE_TIME = 6
EPSILON = 1e-3


class Clock:
    """All clocks of a host and of its store; time passes when something takes time."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    boottime = wall = monotonic


class Store(PlainStore):
    """Rows in memory; each answer arrives after a while.

    Attributes:
        answer: seconds.
        hold_up: what further seconds some requests take, by name.
        asked: the requests, and when they were sent.
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
        return self.clock.now

    def examine(self):
        raise NotImplementedError

    def _take(self, name, answers=1):
        self.asked.append((name, self.clock.now))
        self.clock.now += answers * self.answer + self.hold_up.get(name, 0.0)
        if self.failing:
            raise StoreUnavailableError("away")

    def claim(self, owner, **how):
        """As with compare-and-swap: a look, and an update if anything is due."""
        self._take("claim")
        due = [r for r in self.rows_by_key.values() if (r.next_run_time or 9e9) <= self.now()]
        if due:
            self.clock.now += self.answer
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


class Link:
    def send(self, *_):
        pass


class Note:
    begun = True

    def write(self, reason):
        pass


class Runner:
    def __init__(self):
        self.link, self.stop_flags = Link(), Note()
        self.exit, self.stuck, self.pid = None, False, 1

    def send(self, number):
        pass


class Runners:
    """Takes down when it was told to kill; each fork takes its time."""

    wakes = float("inf")
    waiting = False

    def __init__(self, clock):
        self._clock = clock
        self.fork = 0.0
        self.killed = []

    def prepare(self, _count, *, unused):
        assert not unused
        self._clock.now += self.fork

    def take(self):
        return Runner()

    def kill(self, runner):
        if runner.exit is None:
            runner.exit = "was killed"
            self.killed.append(self._clock.now)


class Silent(TaskTable):
    """Tasks that say nothing; of one that is killed nothing is left."""

    def hear(self, _lessor):
        for slot in self:
            slot.empty = slot.empty or slot.runner.exit is not None


class DeadMan:
    """Would have killed the worker, if it was called too late."""

    def __init__(self, clock):
        self._clock = clock
        self.at = None

    def set(self, at):
        assert self.at is None or self._clock.now < self.at, "the kernel has killed the worker"
        self.at = at

    def hasten(self, at):
        self.at = at if self.at is None else min(self.at, at)


class Scene:
    def __init__(self, answer=0.0, **settings):
        given = {"url": "sqlite:///unused.db", "alive_time": ALIVE_TIME, "poll_interval": 1}
        self.settings = from_mapping({**given, **settings})
        self.clock = Clock()
        self.store = Store(self.clock)
        self.store.answer = answer
        self.runners = Runners(self.clock)
        guard = TaskGuard(
            self.settings, runners=self.runners, clock=self.clock, deadman=DeadMan(self.clock)
        )
        self.tasks = Silent(self.runners, guard, self.clock)
        self.leaser = LeaseLoop(
            self.store,
            self.settings,
            nonce="w",
            tasks=self.tasks,
            clock=self.clock,
            rng=random.Random(1),  # noqa: S311  # jitter
        )

    def add(self, *keys, **columns):
        for key in keys:
            row = Row(key=key, next_time=60, next_run_time=60, **columns)
            self.store.rows_by_key[key] = row

    def run(self, seconds):
        end = self.clock.now + seconds
        while self.clock.now < end:
            rest = self.leaser.tick()
            self.clock.now += max(rest, EPSILON)

    def fence(self, key):
        return self.store.rows_by_key[key].fence

    def times(self, name):
        return [at for asked, at in self.store.asked if asked == name]


ANSWERS = [0.0, 0.2, 0.5, 0.7, 0.8]


def test_the_answers_of_these_tests_reach_up_to_what_a_lease_bears():
    longest = longest_answer(ALIVE_TIME, Scene().settings.driver_timeout)
    assert ANSWERS[-1] < longest < ANSWERS[-1] + 0.1


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_task_that_is_longer_than_its_lease_keeps_it_on_a_slow_store(answer):
    scene = Scene(answer, concurrency=2)
    scene.add("long")
    scene.run(60)
    assert scene.runners.killed == []
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
        for slot in scene.tasks:
            if slot.row.key != "long":
                slot.end(None, scene.clock.now)
                slot.empty = True
        scene.leaser.recover([f"dead{number}"])
    scene.run(5)
    assert scene.runners.killed == []
    assert scene.fence("long") == 1
    assert {row.fence for row in scene.store.rows_by_key.values()} == {1}


@pytest.mark.parametrize("step", ["marked", "claim", "recover", "purge", "fork"])
def test_a_step_that_takes_a_driver_timeout_costs_no_task(step):
    scene = Scene(concurrency=3)
    scene.add("long")
    scene.run(3)
    timeout = scene.settings.driver_timeout
    if step == "fork":
        scene.runners.fork = timeout
    else:
        scene.store.hold_up[step] = timeout
    for number in range(12):
        scene.leaser.recover([f"dead{number}", f"gone{number}"])
        scene.leaser._janitor.next = 0.0
        scene.run(1)
    assert scene.runners.killed == []
    assert scene.fence("long") == 1


def test_a_running_task_is_kept_while_each_of_many_forks_takes_its_time():
    scene = Scene(concurrency=9)
    scene.add("long")
    scene.run(3)
    scene.runners.fork = 0.4
    scene.add(*[f"k{number}" for number in range(8)])
    scene.run(20)
    assert len(scene.tasks) == 9
    assert scene.runners.killed == []
    assert scene.fence("long") == 1


def test_rows_that_were_claimed_together_are_all_started_on_a_slow_store():
    scene = Scene(0.7, concurrency=8)
    keys = [f"k{number}" for number in range(8)]
    scene.add(*keys)
    scene.run(20)
    assert len(scene.tasks) == 8
    assert {scene.fence(key) for key in keys} == {1}
    assert scene.runners.killed == []


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
    scene.runners.fork = 1.5
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
    [slot] = scene.tasks
    scene.store.failing = True
    scene.store.answer = scene.settings.driver_timeout
    scene.run(ALIVE_TIME)
    [killed] = scene.runners.killed
    assert killed <= slot.deadlines.end - 0.4 * ALIVE_TIME

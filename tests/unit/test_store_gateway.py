"""Tests that the gateway guards tasks and extends leases before each request to the store."""

import contextlib

import pytest

from psched.base.errors import StoreBusyError, StoreUnavailableError
from psched.base.lease_times import Deadlines
from psched.config import from_mapping
from psched.core.definition import parse_row
from psched.core.model import Row
from psched.core.policy import Run
from psched.testing import ManualClock, ManualDeadMan, ManualRunnerPool
from psched.worker.running_task import Lease
from psched.worker.store_gateway import StoreGateway
from psched.worker.task_table import TaskTable
from psched.worker.unstarted import UnstartedLeases, WaitingLease
from support.worker import context

LEASE = 60


class Scene:
    """A gateway to a store whose answers a test decides; `happened` lists all calls in order."""

    def __init__(self):
        self.happened = []
        self.failure = None
        self.lost = set()
        self.clock = ManualClock()
        self.settings = from_mapping({"url": "sqlite:///unused.db", "alive_time": LEASE})
        self.pool = ManualRunnerPool(self.clock)
        self.deadman = ManualDeadMan(self.clock)
        shared = context(
            self.clock, self.settings, store=self, pool=self.pool, deadman=self.deadman
        )
        self.tasks = TaskTable(shared)
        watch = self.tasks._guard.watch
        self.tasks._guard.watch = lambda tasks: (self.happened.append("guard"), watch(tasks))[1]
        self.unstarted = UnstartedLeases()
        self.gateway = StoreGateway(shared, self.tasks, self.unstarted)
        self.backoff = self.gateway.backoff

    def start(self, key, length=LEASE):
        row = Row(key=key, next_time=60, owner="w.1", fence=1)
        self.tasks.prepare()
        deadlines = Deadlines(self.clock.boottime(), length, 5.0)
        self.tasks.start(Lease(row, deadlines), Run(parse_row(row, self.settings), 60))
        return self.tasks.running[key]

    def extend(self, leases, *, alive_time, shortest):
        assert alive_time == LEASE
        self.happened.append(f"extend {' '.join(leases)} by {shortest}")
        if self.failure is not None:
            raise self.failure
        return frozenset(leases.keys() - self.lost)

    def ask(self):
        self.happened.append("ask")
        return "answer"

    def request(self):
        self.happened.clear()
        answer = self.gateway.request(self.ask)
        return answer, self.happened


@pytest.fixture
def scene():
    scene = Scene()
    with contextlib.closing(scene.pool):
        yield scene


def test_without_a_task_a_request_is_just_sent(scene):
    assert scene.request() == ("answer", ["ask"])


def test_tasks_are_guarded_before_each_request(scene):
    scene.start("one")
    assert scene.request() == ("answer", ["guard", "ask"])


def test_leases_that_are_due_are_extended_first_and_the_kernels_timer_follows(scene):
    task = scene.start("one")
    before = scene.deadman.at
    scene.clock.advance(LEASE / 4)

    assert scene.request() == ("answer", ["guard", "guard", "extend one by 60", "guard", "ask"])
    assert task.deadlines.sent == scene.clock.boottime()
    assert scene.deadman.at == before + LEASE / 4


def test_if_one_lease_is_due_all_are_extended_those_of_each_length_at_once(scene):
    scene.start("one")
    scene.start("two")
    scene.start("long", 600)
    scene.clock.advance(LEASE / 4)

    _, happened = scene.request()

    extended = [each for each in happened if each.startswith("extend")]
    assert extended == ["extend one two by 60", "extend long by 600"]


def test_a_lease_of_which_the_trigger_is_asked_is_extended_too(scene):
    row = Row(key="asked", next_time=60, owner="w.1", fence=1)
    deadlines = Deadlines(scene.clock.boottime(), LEASE, 5.0)
    scene.unstarted.waiting[row.key] = WaitingLease(row, deadlines, question=None)
    scene.clock.advance(LEASE / 4)

    _, happened = scene.request()

    assert happened == ["extend asked by 60", "ask"]


def test_a_lease_that_is_lost_costs_its_task_before_the_request_is_sent(scene):
    task = scene.start("stolen")
    scene.lost = {"stolen"}
    scene.clock.advance(LEASE / 4)

    _, happened = scene.request()

    assert task.lost
    assert [number.name for _, number in task.runner.signals] == ["SIGKILL"]
    assert happened[-2:] == ["guard", "ask"]
    scene.clock.advance(LEASE)
    assert scene.gateway.next_extension == float("inf")


def test_a_store_that_does_not_extend_is_not_asked_for_anything_else(scene):
    scene.start("one")
    scene.clock.advance(LEASE / 4)
    scene.failure = StoreUnavailableError("gone")

    with pytest.raises(StoreUnavailableError, match="gone"):
        scene.request()
    assert "ask" not in scene.happened

    # Before the end of the pause, no request is sent, so the tasks need not be guarded first.
    with pytest.raises(StoreUnavailableError, match="gone"):
        scene.request()
    assert scene.happened == []


def test_a_row_that_is_locked_does_not_lose_the_others_their_extension(scene):
    one, two, three = map(scene.start, ("one", "two", "three"))
    begun = scene.clock.boottime()
    scene.clock.advance(LEASE / 4)
    scene.failure = StoreBusyError("two is locked", {"one": True, "three": False})

    with pytest.raises(StoreUnavailableError):
        scene.request()

    assert [task.lost for task in (one, two, three)] == [False, False, True]
    assert one.deadlines.sent == scene.clock.boottime()
    assert two.deadlines.sent == begun


def test_what_one_asks_for_is_extended_though_it_is_not_due(scene):
    task = scene.start("one")
    scene.clock.advance(1)

    assert scene.gateway.extend_now(task)
    assert task.deadlines.sent == scene.clock.boottime()
    lease = Lease(task.row, task.deadlines)
    scene.gateway.extend_due([lease])
    assert scene.happened.count("extend one by 60") == 1

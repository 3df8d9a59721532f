"""A worker's tick on a store whose answers get lost, and which is redefined under it."""

from collections import Counter
from dataclasses import replace as changed
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from math import ceil
from pathlib import Path

import pytest

import psched
from psched.app import make_store
from psched.base.clock import SystemClock
from psched.base.errors import StoreUnavailableError, UnknownOutcomeError
from psched.config import from_mapping
from psched.core.history.protocol import KeepsHistory, RunSelection
from psched.core.model import Finish, Settlement
from psched.core.store_protocol import ClaimUnknownError
from psched.runner.shared_memory import Reason
from psched.worker.lease_loop import LeaseLoop
from support.bench import CLOCK, Bench
from support.isolated import isolated
from support.misbehaving_handlers import HANDLERS
from support.stores import Sql
from support.waiting import PATIENCE
from support.worker import context


class Unreliable:
    """A real store, but for some requests that fail before or after they were applied.

    Args:
        store: the real one.

    Attributes:
        faults: how each next request of a name fails: "before", "after"; "late": it is applied
            only after its owner was asked for; none: not at all.
        requests: how often each was sent.
        sent: their names, in order.
        joined: how many settlements were sent with a claim, and failed.
        before: what happens before the next request of a name.
    """

    def __init__(self, store):
        self._store = store
        self.faults = {}
        self.requests = Counter()
        self.sent = []
        self.before = {}
        self.late = None
        self.joined = 0
        # Of its parts, it has only this one, which it is itself.
        self.history = self
        self.output = self.alerts = self.pauses = self.holds = None
        self.announcements = self.light_reads = self.recorded_changes = None
        self.lost_records = 0
        self.unwritten = store.history.unwritten

    def __getattr__(self, name):
        part = self._store.history if hasattr(KeepsHistory, name) else self._store
        request = getattr(part, name)
        if not callable(request):
            return request

        # A settlement that is sent with a claim fails as one that is sent by itself.
        called = "settle" if name == "settle_and_claim" else name

        def ask(*args, **kwargs):
            self.requests[called] += 1
            self.sent.append(called)
            self.before.pop(called, lambda: None)()
            fault = self.faults.get(called, []).pop(0) if self.faults.get(called) else None
            if fault == "away":
                raise StoreUnavailableError("the database is unavailable: test")
            if fault == "late":
                self.late = partial(request, *args, **kwargs)
            answer = request(*args, **kwargs) if fault in {None, "after"} else None
            if name == "held" and self.late:
                self.late()
                self.late = None
            if fault is None:
                return answer
            if name == "claim":
                raise ClaimUnknownError(args[0], self.claimed)
            if name == "settle_and_claim":
                self.joined += 1
                raise ClaimUnknownError(args[1], ())
            raise UnknownOutcomeError("the connection to the database broke: test")

        return ask


class Host(SystemClock):
    """A host's clocks, of which the suspend-proof one can be moved on."""

    def __init__(self):
        self.suspended = 0.0

    def boottime(self):
        return super().boottime() + self.suspended


class Scene:
    """A lease loop over a real SQLite database, with real runners."""

    def __init__(self, *keys, **settings):
        given = {
            "url": "sqlite:///psched.db",
            "poll_interval": 0.05,
            "retry_wait": 0,
            "concurrency": 1,
            "output": "service",  # the store cannot keep it
            **settings,
        }
        self.settings = from_mapping(given)
        self.bench = Bench(HANDLERS, **given)
        self.schedules = psched.open(given)
        self.store = Unreliable(make_store(self.settings))
        self.store.init()
        self.store.claimed = keys
        self.clock = Host()
        shared = context(self.clock, self.settings, store=self.store, pool=self.bench.pool)
        self.loop = LeaseLoop(shared, self.bench.tasks)

    def add(self, key, type_, **fields):
        self.schedules.add(key, type_, next_time=60, **fields)
        self.schedules.close()  # SQLite's must not be open while the process forks

    def row(self, key):
        row = self.schedules.read(key).row
        self.schedules.close()
        return row

    def turn(self):
        timeout = self.loop.tick()
        self.bench.inbox.wait(min(timeout, 0.05), self.bench.tasks.links)

    def until(self, condition):
        end = CLOCK.monotonic() + PATIENCE
        while not condition():
            assert CLOCK.monotonic() < end, "waited in vain"
            self.turn()

    def finished(self, *keys):
        self.until(lambda: all(self.row(key).status == "finished" for key in keys))
        return [self.row(key).fence for key in keys]


def lost_answers(request, faults):
    scene = Scene("one", "two", concurrency=3)
    scene.add("one", "returns")
    scene.add("two", "returns")
    scene.store.faults[request] = faults
    fences = scene.finished("one", "two")
    return fences, scene.store.faults[request]


@pytest.mark.parametrize("fault", ["away", "before", "after"])
@pytest.mark.parametrize("request_", ["claim", "settle"])
def test_a_lost_answer_loses_no_task_and_doubles_none(request_, fault):
    fences, faults = isolated(lost_answers, request_, [fault])
    assert faults == []
    assert fences == [1, 1]


def joined_answers(fault):
    """One slot, and more tasks: the settlement of each goes with the claim of the next."""
    keys = [f"k{number}" for number in range(4)]
    scene = Scene(*keys, concurrency=1)
    for key in keys:
        scene.add(key, "returns")
    scene.finished("k0")
    scene.store.faults["settle"] = [fault]
    scene.finished(*keys)
    # A row that waits too long for the slot is given back, and claimed again: its fence tells that.
    records = [[each.outcome for each in scene.store.runs(RunSelection(key=key))] for key in keys]
    return records, scene.store.faults["settle"], scene.store.joined


@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_lost_answer_to_an_end_and_a_claim_loses_no_task_and_doubles_none(fault):
    assert isolated(joined_answers, fault) == [[["finished"]] * 4, [], 1]


def refused_records():
    scene = Scene("one")
    scene.add("one", "returns")
    with Sql("sqlite:///psched.db").session() as session:
        session("ALTER TABLE psched_runs RENAME TO away")
    scene.finished("one")
    return scene.store.sent[scene.store.sent.index("settle") :][:2], len(scene.store.unwritten)


def test_that_a_record_waits_is_noted_before_anything_else_is_asked():
    assert isolated(refused_records) == [["settle", "audit"], 0]


def stopped_before_it_ran():
    scene = Scene("one")
    scene.add("one", "returns", cron="0 0 1 1 *", catchup="skip")
    first = scene.row("one").next_time
    scene.store.before["settle"] = partial(scene.schedules.stop, "one")
    scene.until(lambda: scene.row("one").next_time != first)
    runs = [run.fate for run in scene.schedules.runs("one") if run.scheduled_time == first]
    return scene.row("one").status, runs


def test_a_stop_that_comes_before_the_run_is_recorded():
    assert isolated(stopped_before_it_ran) == ["waiting", ["stopped"]]


def refused_claims():
    scene = Scene("one", poll_interval=0.01, concurrency=2)
    scene.add("one", "cleans_up", data={"gate": "gate"})
    scene.until(lambda: len(scene.bench.tasks.running) == 1)
    scene.store.faults["claim"] = ["away"] * 6
    begin = CLOCK.monotonic()
    scene.until(lambda: not scene.store.faults["claim"])
    took = CLOCK.monotonic() - begin
    scene.until(lambda: not scene.loop.execution.gateway.backoff.away)
    Path("gate").touch()
    scene.finished("one")
    return took, scene.store.requests["marked"], [*scene.bench.log.recent]


def test_a_store_that_can_only_be_read_is_away_until_it_can_be_written():
    took, looks, said = isolated(refused_claims)
    # Five pauses, each at least half of what it could be.
    assert took > 0.05 * (1 + 2 + 4 + 8 + 16)
    assert looks > 0
    [begun, ended] = said
    assert "running tasks go on" in begun
    assert "answers again" in ended


def refused_claim_that_was_not_due():
    scene = Scene("one", poll_interval=0.05, concurrency=2)
    scene.add("one", "cleans_up", data={"gate": "gate"})
    scene.until(lambda: len(scene.bench.tasks.running) == 1)
    scene.loop.execution.pacing.next_poll = CLOCK.monotonic() + 3600
    # The first to find it away reads; so does what follows, which is answered.
    scene.store.faults = {"marked": ["away"], "claim": ["away"]}
    scene.until(
        lambda: not (scene.store.faults["claim"] or scene.loop.execution.gateway.backoff.away)
    )
    Path("gate").touch()
    scene.finished("one")
    return len(scene.bench.log.recent)


def test_a_store_is_back_only_when_a_claim_was_answered_too():
    assert isolated(refused_claim_that_was_not_due) == 2


def test_what_an_unanswered_claim_has_taken_is_asked_for_until_it_is_known():
    assert isolated(claim_and_its_question_unanswered) == [[1, 1], 0]


def claim_and_its_question_unanswered():
    scene = Scene("one", "two", concurrency=3)
    scene.add("one", "returns")
    scene.add("two", "returns")
    scene.store.faults = {"claim": ["after"], "held": ["away", "away"], "now": ["away"]}
    fences = scene.finished("one", "two")
    return fences, sum(map(len, scene.store.faults.values()))


def stopped_with_an_unanswered_claim():
    scene = Scene("one", database_timeout=1)
    scene.add("one", "returns")
    scene.store.faults = {"claim": ["after"], "held": ["away"]}
    scene.until(lambda: scene.store.requests["held"] == 1)
    scene.loop.stop(None)
    idle = scene.loop.idle
    scene.until(lambda: scene.loop.idle)
    row = scene.row("one")
    return idle, row.owner, row.attempt, row.status


def test_what_an_unanswered_claim_has_taken_is_given_back_at_a_stop():
    assert isolated(stopped_with_an_unanswered_claim) == [False, None, 0, "waiting"]


def applied_late(stopped):
    scene = Scene("one", database_timeout=1)
    scene.add("one", "returns")
    scene.store.faults = {"claim": ["late"]}
    scene.until(lambda: scene.store.requests["held"] == 1)
    if stopped:
        scene.loop.stop(None)
    idle = scene.loop.idle
    scene.until(lambda: scene.loop.idle)
    row = scene.row("one")
    return [idle, row.owner, row.fence, row.status, scene.store.requests["held"] < 20]


@pytest.mark.parametrize(("stopped", "status"), [(False, "finished"), (True, "waiting")])
def test_what_a_claim_takes_after_its_owner_was_asked_for_is_found(stopped, status):
    assert isolated(applied_late, stopped) == [False, None, 1, status, True]


def unanswered_for_a_whole_lease():
    scene = Scene("one", takeover="observed")
    scene.add("one", "returns")
    scene.store.faults = {"claim": ["after"]}
    scene.store.before["held"] = partial(setattr, scene.clock, "suspended", 400)
    scene.until(lambda: len(scene.bench.tasks.running) == 1)
    return scene.store.sent[-2:], scene.finished("one")


def test_what_an_unanswered_claim_has_taken_is_run_after_its_lease_only_once_it_is_extended():
    sent, fences = isolated(unanswered_for_a_whole_lease)
    assert sent[-1] == "extend"
    assert fences == [1]


def unanswered_extends():
    scene = Scene("one", alive_time=30)
    scene.add("one", "cleans_up", data={"gate": "gate"})
    scene.store.faults = {"extend": ["before", "after", "away"]}
    scene.until(lambda: scene.store.requests["extend"] > 3)
    [task] = scene.bench.tasks.running.values()
    extended = task.deadlines.extend - CLOCK.boottime()
    Path("gate").touch()
    return extended > 0, scene.finished("one")


def test_an_extension_without_an_answer_is_asked_for_again_in_time():
    assert isolated(unanswered_extends) == [True, [1]]


def settled_and_extended():
    scene = Scene("one")
    scene.add("one", "returns")
    scene.store.faults = {"settle": ["after"]}
    scene.until(lambda: scene.store.requests["settle"] == 1)
    [task] = scene.bench.tasks.running.values()
    # Its lease is to be extended before its end is written once more.
    task.deadlines = changed(task.deadlines, sent=task.deadlines.sent - task.deadlines.lease / 2)
    scene.until(lambda: not len(scene.bench.tasks.running))
    return scene.row("one").fence, scene.store.requests["extend"], [*scene.bench.log.recent]


def test_a_task_whose_end_was_written_without_an_answer_is_not_said_to_be_preempted():
    fence, extends, said = isolated(settled_and_extended)
    assert (fence, extends) == (1, 1)
    assert not any("preempted" in line for line in said)


def settled_and_run_by_another(late):
    """Its end is written, and never answered; then another worker runs what comes next."""
    scene = Scene("one")
    hours_ago = int(CLOCK.wall()) - 3 * 3600
    scene.schedules.add("one", "returns", cron="@hourly", next_time=hours_ago)
    scene.schedules.close()
    scene.store.faults = {"settle": ["after"]}
    scene.until(lambda: len(scene.bench.tasks.running))
    scene.loop.pause()  # or it would claim what comes next itself
    scene.until(lambda: scene.store.requests["settle"] == 1)
    scene.clock.suspended = late
    other = make_store(scene.settings)
    (row,) = other.claim("other.1", limit=1, alive_time=60, shortest=6, horizon=1).rows
    end = Settlement(key="one", token=row.token, version=row.version, next_time=row.next_time)
    other.settle([end])
    other.disconnect()
    scene.until(lambda: scene.loop.idle)
    return [*scene.bench.log.recent]


def test_an_end_that_was_written_counts_also_if_another_has_run_what_comes_next():
    assert not any("preempted" in line for line in isolated(settled_and_run_by_another, 0))


def test_whether_an_end_without_an_answer_counts_is_not_known_once_the_lease_is_over():
    said = isolated(settled_and_run_by_another, 1000)
    assert any("nobody knows whether what it did counts" in line for line in said)


def preempted_before_its_end(own):
    scene = Scene("one")
    scene.add("one", "cleans_up", data={"gate": "gate"}, **own)
    scene.until(lambda: len(scene.bench.tasks.running))
    other = make_store(scene.settings)
    other.delete("one")
    other.settle([Settlement.of(other.get("one"), remove=True)])
    other.disconnect()
    [task] = scene.bench.tasks.running.values()
    task.decided(Finish())  # it has called finish(), and has not returned yet
    scene.loop.execution.gateway.extend_now(task)
    scene.store.faults = {"settle": ["after"]}
    Path("gate").touch()
    scene.until(lambda: not len(scene.bench.tasks.running))
    scene.until(lambda: scene.store.requests["record"])
    [record] = other.history.runs()
    other.disconnect()
    assert (record.outcome, record.fate, record.pid) == ("preempted", None, task.runner.pid)
    assert (record.owner, record.fence) == (task.row.owner, 1)
    assert 60_000 == record.due < record.started <= record.ended
    return scene.store.requests["settle"], [*scene.bench.log.recent]


# What is not retained may have been removed by whoever took the lease, and finished.
@pytest.mark.parametrize("own", [{}, {"retention_time": 0}])
def test_a_lease_that_was_lost_before_its_end_was_sent_stays_lost(own):
    settles, said = isolated(preempted_before_its_end, own)
    assert settles == 2
    assert any("preempted: what it did counts for nothing" in line for line in said)


def stopped_while_the_store_is_away(how):
    scene = Scene("one")
    scene.add("one", "raises")
    scene.store.faults = {"settle": ["away"] * 5}
    scene.until(lambda: scene.store.requests["settle"] == 1)
    if how == "at once":
        scene.loop.stop(0, hurry=True)
    elif how == "at its limit":
        scene.loop.stop(0.1)
    else:  # as a worker does whose master has died
        for task in scene.bench.tasks.running.values():
            scene.bench.tasks.stop(task, Reason.SHUTDOWN, 0)
        scene.loop.stop(0)
    scene.until(lambda: scene.loop.idle)
    row = scene.row("one")
    return row.owner, row.attempt, row.reason


@pytest.mark.parametrize("how", ["at once", "at its limit", "orphaned"])
def test_a_stop_while_an_end_cannot_be_written_changes_nothing_about_that_end(how):
    assert isolated(stopped_while_the_store_is_away, how) == [None, 1, "ValueError: no"]


def questions_while_the_store_is_away():
    scene = Scene("one", concurrency=2)
    scene.add("one", "asks_while_away")
    scene.store.faults = {"marked": ["away"] * 3}
    scene.finished("one")
    return scene.store.requests["extend"]


def test_a_task_that_asks_all_the_time_does_not_make_its_worker_do_so():
    # Several hundred questions, and the store is to be left alone for a while after each failure.
    assert 1 <= isolated(questions_while_the_store_is_away) < 50


def lost_update():
    scene = Scene("one")
    scene.add("one", "learns_that_nobody_knows")
    scene.store.faults = {"update_data": ["after"]}
    return scene.finished("one")


def test_a_task_is_told_that_nobody_knows_whether_its_data_were_written():
    assert isolated(lost_update) == [1]


def recovered():
    scene = Scene("one", alive_time=300)
    scene.add("one", "returns")
    scene.add("two", "returns")
    dead = make_store(scene.settings)
    dead.claim("dead.1", limit=2, alive_time=300, shortest=6, horizon=1)
    dead.disconnect()
    scene.store.faults = {"recover": ["away", "after"]}
    scene.loop.recover(["dead", "unheard of"])
    fences = scene.finished("one", "two")
    return fences, scene.loop.recovered


def test_what_a_dead_worker_held_is_released_and_run():
    assert isolated(recovered) == [[2, 2], ["dead", "unheard of"]]


def redefined():
    scene = Scene("one")
    scene.add("one", "cleans_up", data={"gate": "gate"}, cron="0 0 1 1 *", catchup="latest")
    scene.until(lambda: len(scene.bench.tasks.running))
    scene.schedules["one"].modify(cron="0 0 1 2 *")
    scene.schedules.close()
    Path("gate").touch()
    scene.until(lambda: not len(scene.bench.tasks.running))
    return scene.row("one").next_time


def watched_while_it_was_redefined():
    scene = Scene("one")
    scene.add("one", "cleans_up", data={"gate": "gate"}, cron="0 0 1 1 *", catchup="latest")
    scene.until(lambda: len(scene.bench.tasks.running))
    scene.schedules["one"].modify(cron="0 0 1 2 *")
    scene.schedules.close()
    tasks, events = scene.bench.tasks, []
    guard = tasks.guard_before_blocking

    def guards():
        events.append("guards")
        guard()

    tasks.guard_before_blocking = guards
    for name in "settle", "settle_and_claim", "look", "now":
        request = getattr(scene.store, name)
        noted = partial(_noted, events, name.removesuffix("_and_claim"), request)
        setattr(scene.store, name, noted)
    Path("gate").touch()
    scene.until(lambda: not len(scene.bench.tasks.running))
    return [(first, then) for first, then in pairwise(events) if then != "guards"]


def _noted(events, name, request, *args, **kwargs):
    events.append(name)
    return request(*args, **kwargs)


def test_what_runs_is_watched_before_each_request_that_ends_the_lease_of_a_redefined_schedule():
    requests = ["settle", "look", "now", "settle"]
    assert isolated(watched_while_it_was_redefined) == [["guards", name] for name in requests]


def test_a_schedule_that_was_redefined_while_its_task_ran_goes_on_as_it_is_now():
    following = datetime.fromtimestamp(isolated(redefined), UTC)
    assert (following.month, following.day, following.hour) == (2, 1, 0)


def lease_shortened():
    scene = Scene("one", alive_time=60)
    scene.add("one", "cleans_up", data={"gate": "gate"})
    scene.until(lambda: len(scene.bench.tasks.running))
    scene.schedules["one"].modify(alive_time=6)
    scene.schedules.close()
    [task] = scene.bench.tasks.running.values()
    scene.loop.execution.gateway.extend_now(task)
    ends_here = task.deadlines.end - CLOCK.boottime()
    ends_there = scene.row("one").next_run_time - CLOCK.wall()
    return ends_here, ends_there


def test_a_lease_ends_for_its_holder_before_it_ends_in_the_store_whatever_was_modified():
    ends_here, ends_there = isolated(lease_shortened)
    assert ends_here <= ends_there


def leases_of_different_lengths():
    scene = Scene(alive_time=60, concurrency=3, database_timeout=1)
    for key, alive_time in ("short", 20), ("default", None), ("long", 600):
        scene.add(key, "cleans_up", data={"gate": "gate"}, alive_time=alive_time)
    scene.until(lambda: len(scene.bench.tasks.running) == 3)
    begun = CLOCK.boottime()
    # All are extended when the shortest is due.
    scene.until(
        lambda: all(task.deadlines.sent > begun for task in scene.bench.tasks.running.values())
    )
    keys = [task.row.key for task in scene.bench.tasks.running.values()]
    there = {key: scene.row(key).next_run_time - CLOCK.wall() for key in keys}
    here = {
        task.row.key: task.deadlines.end - CLOCK.boottime()
        for task in scene.bench.tasks.running.values()
    }
    return here, there


def test_leases_of_different_lengths_keep_them():
    here, there = isolated(leases_of_different_lengths)
    for key, lease in ("short", 20), ("default", 60), ("long", 600):
        assert lease / 2 < here[key] <= there[key] <= lease + 1


def due_soon():
    scene = Scene(poll_interval=60)
    due = ceil(CLOCK.wall()) + 1
    scene.schedules.add("soon", "returns", next_time=due)
    scene.schedules.close()
    scene.until(lambda: scene.store.requests["claim"])
    planned = scene.loop.execution.pacing.wakes - CLOCK.monotonic() + CLOCK.wall() - due
    scene.until(lambda: len(scene.bench.tasks.running))
    return planned, CLOCK.wall() - due


def test_what_will_be_due_soon_is_started_at_its_time_and_not_before():
    planned, started = isolated(due_soon)
    assert started >= 0
    # Without such a row, nobody would look again for half a minute.
    assert planned < 15

"""Rows that a worker leases before it has a free slot, and ends of leases that wait for others."""

import itertools
from math import inf
from types import SimpleNamespace

import pytest

from psched.worker import claims
from psched.worker.unstarted import WaitingLease
from support.driven import driven_host

SOON = 0.003
"""Seconds that a short task takes."""


@pytest.fixture(autouse=True)
def one_per_slot(monkeypatch):
    """Have a worker prefetch at most one row for each slot; tests of more set another number."""
    monkeypatch.setattr(claims, "_MOST_PER_SLOT", 1)


@pytest.fixture
def host(tmp_path):
    with driven_host(tmp_path) as host:
        yield host


def busy(host, *, rows=20, store=None, fields=None, **settings):
    """A worker that has learnt that its tasks are short, with all slots busy, and rows that wait.

    Returns:
        The worker and its store.
    """
    host.add(*(f"k{number:02}" for number in range(rows)), **fields or {})
    store = store or host.remote()
    worker = host.worker(store, **settings)
    worker.advance(0.002)
    # As if these rows had been due for a while.
    worker.worker._lease_loop.execution.pacing._backlog_since = -inf
    for _ in range(3):
        end_all(worker)
    return worker, store


def end_all(worker, *, after=SOON, last=False):
    """End all running tasks together, and have the worker do what is due within a millisecond."""
    worker.advance(after)
    for runner in [*worker.tasks.values()]:
        runner.finish(last=last)
    worker.advance(0.001)


def leased(host):
    """The keys of the leased rows."""
    return {each.key for each in host.schedules.list() if each.row.owner}


def prefetched(host, worker):
    """The keys of the rows that are leased and do not run."""
    unsettled = {task.row.key for task in worker.worker._tasks.running.values() if task.empty}
    return leased(host) - {*worker.tasks} - unsettled


def kept(worker):
    """The leases that wait for a free slot, by key."""
    return worker.worker._lease_loop.execution.unstarted.prefetched


def reusing(host, *keys, took):
    """A worker with a slot for each of these rows, which has run them all at the same time."""
    host.add(*keys)
    worker = host.worker(concurrency=len(keys), max_tasks_per_child=100)
    worker.advance(took)
    assert len(worker.tasks) == len(keys)
    end_all(worker)
    return worker


@pytest.mark.slow
def test_runners_that_are_used_again_exit_after_ten_quiet_minutes(host):
    worker = reusing(host, "a", "b", "c", took=0.002)
    worker.advance(590)
    assert len(worker.pool.runners) == 3
    worker.advance(20)
    [last] = worker.pool.runners
    host.add("d")
    worker.advance(2)
    assert [*worker.tasks.values()] == [last]


@pytest.mark.slow
def test_runners_of_long_tasks_stay_after_their_tasks(host):
    worker = reusing(host, "a", "b", took=1000)
    worker.advance(5)
    assert len(worker.pool.runners) == 2


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_at_most_one_row_per_slot_is_prefetched(host, slots):
    worker, _ = busy(host, rows=40, concurrency=slots)
    seen = set()
    for _ in range(4):
        assert len(worker.tasks) == slots
        seen.add(len(prefetched(host, worker)))
        end_all(worker)
    assert max(seen) == slots


@pytest.mark.parametrize(
    ("took", "per_slot"), [(SOON, 4), (0.007, 3), (0.012, 2), (0.04, 1), (0.09, 1)]
)
def test_the_shorter_tasks_are_the_more_rows_are_prefetched(host, monkeypatch, took, per_slot):
    monkeypatch.setattr(claims, "_MOST_PER_SLOT", 4)
    host.add(*(f"k{number:03}" for number in range(200)))
    worker = host.worker(concurrency=2)
    worker.advance(0.002)
    worker.worker._lease_loop.execution.pacing._backlog_since = -inf
    seen = set()
    for _ in range(12):
        end_all(worker, after=took)
        seen.add(len(kept(worker)))
    assert max(seen) == 2 * per_slot


def test_all_rows_that_wait_behind_a_slow_task_are_given_back_without_an_attempt(host, monkeypatch):
    monkeypatch.setattr(claims, "_MOST_PER_SLOT", 4)
    worker, _ = busy(host, rows=60, concurrency=2)
    waiting = {*kept(worker)}
    assert len(waiting) > 2  # more than one for each slot
    worker.advance(0.3)
    assert leased(host) == {*worker.tasks}
    assert not waiting & leased(host)
    assert {host.row(key).attempt for key in waiting} == {0}


def test_a_mistake_stops_the_prefetch_for_a_second_and_the_next_one_for_two(host):
    worker, _ = busy(host, rows=60)
    pacing_ = worker.worker._lease_loop.execution.pacing
    for pause in 1, 2, 4, 8, 16, 32, 60, 60:
        for _ in range(3):  # several rows are one mistake
            pacing_.back_off()
        host.clock.advance(pause - 0.01)
        assert pacing_.room_to_prefetch == 0
        host.clock.advance(0.02)
        assert pacing_._no_prefetch_before <= host.clock.monotonic()
    host.clock.advance(61)
    pacing_.back_off()
    host.clock.advance(1.01)
    assert pacing_._no_prefetch_before <= host.clock.monotonic()


def test_a_prefetched_row_starts_before_any_request(host):
    worker, store = busy(host)
    [next_] = prefetched(host, worker)
    before = store.requests.copy()
    worker.advance(SOON)
    next(iter(worker.tasks.values())).finish()
    worker.tick()
    assert [*worker.tasks] == [next_]
    assert store.requests == before


def test_while_tasks_are_not_known_to_be_short_nothing_is_prefetched(host):
    host.add("a", "b", "c", "d")
    worker = host.worker()
    worker.advance(0.01)
    assert leased(host) == {*worker.tasks}
    for _ in range(2):
        end_all(worker, after=1)
        assert len(worker.tasks) == 1
        assert leased(host) == {*worker.tasks}


def test_a_row_that_cannot_start_soon_is_given_back_without_an_attempt_or_a_record(host):
    worker, _ = busy(host, store=host.store())  # which keeps records
    [waits] = prefetched(host, worker)
    before = host.row(waits)
    running = {*worker.tasks}
    worker.advance(0.3)

    assert {*worker.tasks} == running
    assert leased(host) == running
    row = host.row(waits)
    assert (row.owner, row.status, row.next_time) == (None, "waiting", before.next_time)
    assert row.attempt == before.attempt - 1 == 0
    assert [*host.schedules.runs("k00")]
    assert not [*host.schedules.runs(waits)]

    # This worker leases none ahead beside a long task, and another worker runs it meanwhile.
    worker.advance(30)
    assert leased(host) == running
    other = host.worker()
    other.tick()
    assert waits in other.tasks


def test_at_first_rows_are_left_to_other_workers(host):
    host.add(*(f"k{number:02}" for number in range(80)))
    worker = host.worker()
    worker.advance(0.002)
    begun = host.clock.monotonic()
    while not kept(worker):
        end_all(worker)
    assert 0.1 <= host.clock.monotonic() - begun < 0.12


def test_the_master_is_told_that_rows_were_given_back(host):
    worker, _ = busy(host)
    assert kept(worker)
    assert {"gave_back": True} not in worker.messages
    worker.advance(0.3)
    assert worker.messages.count({"gave_back": True}) == 1


def test_after_a_slow_request_a_row_starts_if_a_slot_is_free(host):
    worker, _ = busy(host)
    [next_] = kept(worker)
    [running] = worker.tasks.values()
    running.finish()
    host.clock.advance(0.5)  # while a request took so long
    worker.tick()
    assert [*worker.tasks] == [next_]


def test_a_row_for_which_there_is_no_place_any_more_stops_the_prefetch(host):
    worker, _ = busy(host, rows=40)
    execution = worker.worker._lease_loop.execution
    [lease] = kept(worker).values()
    del execution.unstarted.prefetched[lease.row.key]
    assert execution.pacing.room_to_prefetch == 1
    execution.start(lease, lease.run, following=0)
    assert execution.pacing.room_to_prefetch == 0
    worker.advance(1)
    assert leased(host) == {*worker.tasks}


def test_for_a_slot_whose_task_turns_out_to_be_long_nothing_is_prefetched(host):
    worker, _ = busy(host, concurrency=2, rows=80)
    long, _ = worker.tasks
    counts = []
    for _ in range(50):
        worker.advance(SOON)
        for key, runner in worker.tasks.items():
            if key != long:
                runner.finish()
        worker.advance(0.001)
        counts.append(len(kept(worker)))
    assert long in worker.tasks
    assert max(counts[:20]) == 2
    assert max(counts[-15:]) == 1


def test_when_forks_hang_one_tick_waits_for_one_fork(host):
    host.add(*(f"k{number:02}" for number in range(80)))
    worker = host.worker(concurrency=8)
    worker.advance(0.002)
    worker.worker._lease_loop.execution.pacing._backlog_since = -inf
    for _ in range(3):
        end_all(worker, last=True)
    assert len(kept(worker)) >= 4
    for runner in worker.pool.runners:
        runner.exit_with(0)
    worker.pool.fork_takes, worker.pool.refuses = 5, True
    before = host.clock.monotonic()
    worker.tick()
    assert host.clock.monotonic() - before < 11  # one start, and one claim
    worker.pool.fork_takes = 0
    worker.advance(0.1)
    assert leased(host) == set()
    worker.pool.refuses = False
    worker.advance(5)
    assert len(worker.tasks) == 8


def test_a_row_whose_trigger_has_answered_starts_before_prefetched_rows(host, monkeypatch):
    worker, _ = busy(host, rows=60)
    execution = worker.worker._lease_loop.execution
    [key] = kept(worker)
    # As if its trigger had been asked, and had answered meanwhile.
    lease = kept(worker)[key]
    del execution.unstarted.prefetched[key]
    question = SimpleNamespace(answer=lease.run)
    for name, answer in {"drop": None, "is_stuck": False, "is_reserved": True}.items():
        monkeypatch.setattr(execution.triggers, name, lambda _question, answer=answer: answer)
    waiting = WaitingLease(lease.row, lease.deadlines, question=question)
    execution.unstarted.waiting[key] = waiting
    assert execution.pacing.room_to_prefetch == 0  # it counts
    end_all(worker)
    assert [*worker.tasks] == [key]


def test_a_row_is_not_prefetched_for_its_last_attempt(host):
    # If the worker died meanwhile, the row would be given up without having been tried.
    worker, _ = busy(host, fields={"max_attempts": 1})
    for _ in range(8):
        assert leased(host) == {*worker.tasks}
        assert len(worker.tasks) == 1
        end_all(worker)


def test_an_extra_run_that_needs_the_lease_of_its_schedule_is_not_prefetched(host):
    host.schedules.add("report", "test", cron="0 0 1 1 *")
    worker, store = busy(host, rows=6)
    for _ in range(12):
        host.schedules["report"].trigger()
    while not any("!" in key for key in worker.tasks):
        end_all(worker)
    for _ in range(10):
        assert not any("!" in key for key in kept(worker))
        requests = store.requests.total()
        worker.advance(0.05)
        assert store.requests.total() - requests < 20
        end_all(worker)


@pytest.mark.parametrize("how", ["pause", "stop"])
def test_a_worker_that_leases_no_more_gives_back_what_it_has_prefetched(host, how):
    worker, _ = busy(host)
    assert prefetched(host, worker)
    worker.order(**({"pause": True} if how == "pause" else {"stop": None, "hurry": False}))
    worker.advance(0.05)
    assert leased(host) == {*worker.tasks}
    assert len(worker.tasks) == 1


def test_a_row_that_another_worker_has_taken_is_not_started(host, caplog):
    worker, _ = busy(host)
    [taken] = prefetched(host, worker)
    take = "UPDATE psched SET leased_by = 'other.1', fence = fence + 1 WHERE id = 'key'"
    host.sql(take.replace("key", taken))
    kept(worker)[taken].answered(0.0, held=False)
    for _ in range(5):
        end_all(worker)
        assert taken not in worker.tasks
    assert f"{taken}: preempted before it was started" in caplog.text
    assert host.row(taken).owner == "other.1"


def test_prefetched_rows_run_while_the_store_is_away(host):
    worker, store = busy(host)
    [next_] = prefetched(host, worker)
    store.away = True
    end_all(worker)
    assert [*worker.tasks] == [next_]
    end_all(worker)
    worker.advance(0.05)
    assert worker.tasks == {}  # and no more, because nothing more is leased
    store.away = False
    worker.advance(5)
    assert len(worker.tasks) == 1
    assert host.row(next_).status == "finished"


def test_every_row_is_run_once_in_the_order_of_their_times(host):
    keys = [f"k{number:02}" for number in range(30)]
    for place, key in enumerate(keys):
        host.schedules.add(key, "test", next_time=1_600_000_000 + place)
    worker = host.worker(concurrency=3)
    worker.advance(0.002)
    run = []
    for _ in range(30):
        run += sorted(worker.tasks)
        end_all(worker)
    assert run == keys
    worker.advance(0.05)
    assert leased(host) == set()
    assert {host.row(key).fence for key in keys} == {1}


# --- runners that are forked meanwhile -----------------------------------------------


def test_runners_are_forked_while_short_tasks_run_and_do_not_wait_for_ever(host):
    host.add(*(f"k{number:02}" for number in range(20)))
    worker = host.worker(concurrency=3)
    worker.advance(0.002)
    waiting = []
    while worker.tasks:
        waiting.append(len(worker.pool.runners) - len(worker.tasks))
        if waiting[-1] == 3:
            worker.advance(0.3)  # what was prefetched is given back
            host.sql("DELETE FROM psched WHERE leased_by IS NULL")
        end_all(worker, last=True)
    assert waiting[0] == 0  # it is not known yet that these tasks are short
    assert max(waiting) == 3
    worker.advance(5)
    assert len(worker.pool.runners) > 1
    worker.advance(10)
    assert len(worker.pool.runners) == 1
    host.add("next")
    worker.advance(1.5)
    assert [*worker.tasks] == ["next"]


# --- requests that wait for others ---------------------------------------------------


def test_while_a_slot_has_work_the_end_of_a_lease_waits_for_the_next_one(host):
    worker, store = busy(host, rows=40, concurrency=2)
    per_task = []
    for _ in range(6):
        before, tasks = store.requests["settle"], len(worker.tasks)
        end_all(worker)
        per_task.append((store.requests["settle"] - before, tasks))
    assert sum(settles for settles, _ in per_task) < len(per_task)
    assert {tasks for _, tasks in per_task} == {2}


def test_the_end_of_a_lease_does_not_wait_long(host):
    worker, _ = busy(host)
    [first] = worker.tasks
    worker.advance(SOON)
    worker.tasks[first].finish()
    worker.advance(0.001)
    assert first in leased(host)
    worker.advance(0.022)
    assert first not in leased(host)
    assert len(worker.tasks) == 1


def test_the_end_of_a_lease_does_not_wait_while_a_slot_is_free(host):
    worker, _ = busy(host, rows=8)
    ends = itertools.count()
    while len(leased(host)) > 1:
        end_all(worker)
        assert next(ends) < 20
    [last] = worker.tasks
    worker.advance(SOON)
    worker.tasks[last].finish()
    worker.tick()
    assert leased(host) == set()

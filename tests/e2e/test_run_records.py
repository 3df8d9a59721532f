"""What the run history says about runs that end in every way, read back from the store."""

import signal
import socket
from collections import Counter

import pytest

from psched.app import CLOCK, make_store, read_config
from psched.core.history.protocol import RunSelection
from support.waiting import wait_until

pytestmark = pytest.mark.extended

ONCE = 1_000_000_000
"""The scheduled time of the tasks of these tests."""


def store_of(service):
    return make_store(read_config(service.config))


def records(service, key="long"):
    """The records of a key, the oldest first."""
    return [*store_of(service).history.runs(RunSelection(key=key))][::-1]


def workers(service):
    """The records of all workers."""
    return store_of(service).history.workers()


def wait_for_records(service, *outcomes, key="long"):
    """Wait until the records of a key have these outcomes; check and return them."""
    wait_until(
        lambda: [record.outcome for record in records(service, key)] == [*outcomes],
        what=f"{outcomes} instead of {[record.outcome for record in records(service, key)]}",
    )
    found = records(service, key)
    check(found)
    return found


def check(found):
    """Check what holds for all records of attempts."""
    now = CLOCK.wall() * 1000
    for record in found:
        assert record.scheduled_time == ONCE
        if record.started is None:
            continue
        # The store's clock is estimated.
        assert record.due is None or record.due <= record.started + 1000
        assert record.started <= record.ended <= now + 50
        assert now - record.started < 600_000
        assert record.host == socket.gethostname()
        assert record.generation == 1
    fates = Counter(record.scheduled_time for record in found if record.fate is not None)
    assert all(count == 1 for count in fates.values())
    assert [record.fence for record in found] == sorted({record.fence for record in found})


@pytest.mark.landing
def test_a_killed_worker_leaves_a_lost_attempt(service):
    service.configure(processors=2)
    master = service.start()
    # The host of a lost attempt is known from the record that its worker writes of itself.
    wait_until(lambda: len(workers(service)) == 2, what="the records of the workers")
    service.add("long", data={"kills": "worker", "times": 1})
    service.wait_for_finish("long")
    lost, finished = wait_for_records(service, "lost", "finished")
    assert (lost.attempt, lost.fate, lost.pid) == (1, None, None)
    assert "its worker died" in lost.reason
    assert (finished.attempt, finished.fate) == (2, "finished")
    assert finished.pid == service.runs.runs("long")[-1].pid
    assert master.stop() == 0


def test_a_killed_fork_server_leaves_a_lost_attempt(service):
    service.add("long", data={"kills": "server", "times": 1})
    master = service.start()
    service.wait_for_finish("long")
    first, _second = service.runs.runs("long")
    lost, finished = wait_for_records(service, "lost", "finished")
    assert (lost.attempt, lost.fate, lost.pid) == (1, None, first.pid)
    assert finished.fate == "finished"
    assert master.stop() == 0


def test_a_failure_and_a_giving_up_are_recorded(service):
    service.configure(retry_wait=0)
    service.add("long", data={"fail": 9}, max_attempts=2)
    master = service.start()
    service.wait_for_row("long", lambda seen: seen.status == "failed")
    first, last = wait_for_records(service, "failed", "failed")
    assert (first.fate, last.fate) == (None, "gave_up")
    assert first.reason == "RecorderError: as it was told"
    assert master.stop() == 0


@pytest.mark.landing
@pytest.mark.parametrize("deletes", [True, False])
def test_a_task_that_is_cancelled_or_deleted_while_it_runs_is_recorded(service, deletes):
    service.add("long", data={"until": "gate"})
    master = service.start()
    run = service.runs.wait("long")[0]
    with service.schedules() as schedules:
        schedules["long"].delete() if deletes else schedules["long"].cancel()
    [record] = wait_for_records(service, "cancelled")
    assert (record.fate, record.pid, record.attempt) == ("cancelled", run.pid, 1)
    assert master.stop() == 0


def test_a_task_that_is_stopped_with_its_master_is_released(service):
    service.configure(graceful_timeout=0.5)
    service.add("long", data={"until": "gate"})
    master = service.start()
    service.runs.wait("long")
    assert master.stop() == 0
    [record] = wait_for_records(service, "released")
    assert record.fate is None
    [worker] = store_of(service).history.workers()
    assert worker.started <= worker.ended == worker.seen
    assert worker.nonce == record.nonce


def test_a_task_over_its_time_limit_is_recorded_as_timed_out(service):
    service.configure(kill_timeout=1, graceful_kill_limit=5)
    service.add("long", data={"until": "gate"}, max_attempts=1)
    master = service.start()
    service.wait_for_row("long", lambda seen: seen.status == "failed")
    [record] = wait_for_records(service, "timed_out")
    assert record.fate == "gave_up"
    assert record.took >= 1
    assert master.stop() == 0


@pytest.mark.landing
def test_a_lease_that_is_taken_over_from_a_host_that_stands_still_leaves_one_record(
    make_service, service, tmp_path
):
    service.configure(alive_time=6)
    service.add("long", data={"until": "gate"})
    first = service.start()
    service.runs.wait("long")
    wait_until(lambda: workers(service), what="the record of the worker")
    first.send_all(signal.SIGSTOP)

    other = make_service(f"sqlite:///{tmp_path}/psched.db", alive_time=6)
    other.open_gate("gate")
    second = other.start()
    other.wait_for_finish("long")
    lost, finished = wait_for_records(service, "lost", "finished")
    assert (lost.fate, finished.fate) == (None, "finished")
    assert (lost.attempt, finished.attempt) == (1, 2)
    assert "lease ended" in lost.reason
    assert lost.ended <= finished.started

    first.send_all(signal.SIGCONT)
    first.stop()
    assert second.stop() == 0
    found = records(service)
    check(found)
    assert [record.outcome for record in found][1] == "finished"
    assert len(found) == 2


def test_what_was_written_into_the_store_by_a_worker_that_runs_says_who_is_alive(service):
    service.configure(only=["recorder"])
    service.add("long", data={"until": "gate"})
    master = service.start()
    service.runs.wait("long")
    found = wait_until(lambda: workers(service), what="the record of the worker")
    [worker] = found
    [pid] = master.workers()
    assert (worker.pid, worker.number, worker.generation) == (pid, 0, 1)
    assert (worker.host, worker.slots, worker.types) == (
        socket.gethostname(),
        1,
        '["recorder"]',
    )
    assert worker.ended is None
    service.open_gate("gate")
    service.wait_for_finish("long")
    assert master.stop() == 0
    [worker] = store_of(service).history.workers()
    assert worker.ended is not None


def test_a_table_without_a_history_is_served_as_before(service):
    with service.sql() as database:
        for table in "runs", "workers", "audit":
            database.execute(f"drop table psched_{table}")
        database.execute("delete from psched_info where name = 'history_version'")
    service.configure(processors=2)
    service.add("long")
    master = service.start()
    service.wait_for_finish("long")
    master.wait_for_log(r"no run history is kept: .*psched init")
    assert master.stop() == 0
    assert master.text.count("no run history is kept") == 1

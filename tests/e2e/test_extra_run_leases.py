"""Runs of one schedule, regular and extra, with real processes: never two at once, come what may.

Whatever happens during an extra run, its schedule is as before afterwards.
"""

import signal
from dataclasses import replace

import pytest

from support.extra_runs import add_extra_runs, by_schedule
from support.processes import kill, title
from support.proxy import Fault
from support.run_log import completed, in_order, never_two_at_once
from support.waiting import wait_until

pytestmark = [pytest.mark.verified, pytest.mark.extended]

YEARLY = "0 0 1 1 *"
MINUTE = 60


def add_yearly(service, **fields):
    """Add a schedule that is not due; its row."""
    service.add("report", cron=YEARLY, timezone="UTC", next_time=None, **fields)
    return service.row("report").row


def add_extra(service, count=1, **fields):
    with service.schedules() as schedules:
        return add_extra_runs(schedules, "report", count, **fields)


def start_extra_run(service, processes=("child", "daemon"), **settings):
    """Start a master, and an extra run of a schedule that is not due.

    Args:
        service: the service.
        processes: what the extra run starts.
        settings: for psched.yml.

    Returns:
        The master, the schedule's row as it was before, and the key of the extra run.
    """
    service.configure(**settings)
    before = add_yearly(service, data={"until": "gate", "processes": processes})
    [extra] = add_extra(service)
    master = service.start()
    number = 1 + len(processes)
    service.runs.wait(extra, lambda runs: len({note["pid"] for note in runs[-1].notes}) == number)
    held = service.row("report").row
    assert held.held_by is not None
    assert replace(held, held_by=None, held_until=None) == before
    return master, before, extra


def wait_until_released(service, before):
    """Wait until a schedule is as if there had been no extra run."""
    service.wait_for_row("report", lambda seen: seen.row == before)


def finish(service, master, *keys):
    """Let what runs end, stop the master, and check that no two runs overlapped."""
    service.open_gate("gate")
    for key in keys:
        service.wait_for_finish(key)
    assert master.stop() == 0
    master.wait_until_nothing_is_left()
    never_two_at_once(by_schedule(service.runs.runs()))


# --- many at once -------------------------------------------------------------------


@pytest.fixture
def on_mariadb(make_service, mariadb_server):
    name = mariadb_server.create_database()
    service = make_service(mariadb_server.url(name), processors=2, concurrency=3)
    service.init()
    yield service
    service.close()
    mariadb_server.drop_database(name)


def add_backlog(service, occurrences):
    """Add a schedule that has missed its last occurrences; each run leaves a daemon behind."""
    with service.schedules() as schedules:
        now = schedules.add("clock").metadata().next_time
        schedules["clock"].delete()
        first = now - now % MINUTE - (occurrences - 1) * MINUTE
        data = {"processes": ["daemon"]}
        schedules.add("report", "recorder", cron="* * * * *", next_time=first, data=data)


@pytest.mark.mariadb
def test_regular_and_extra_runs_of_two_masters_never_overlap(on_mariadb):
    service = on_mariadb
    add_backlog(service, occurrences=10)
    extra = [*add_extra(service, 10)]
    masters = [service.start(generation=0) for _ in range(2)]
    service.runs.wait("report", completed(3))
    extra += add_extra(service, 10, first=10)

    for key in extra:
        service.wait_for_finish(key)
    service.runs.wait("report", completed(10))
    assert [master.stop() for master in masters] == [0, 0]

    runs = service.runs.runs()
    never_two_at_once(by_schedule(runs))
    in_order(service.runs.runs("report"))
    assert all(run.completed for run in runs)
    assert {len(service.runs.runs(key)) for key in extra} == {1}
    row = service.row("report").row
    assert (row.owner, row.attempt, row.status) == (None, 0, "waiting")


@pytest.mark.mariadb
def test_they_do_not_overlap_while_workers_are_killed(on_mariadb):
    service = on_mariadb
    add_backlog(service, occurrences=10)
    extra = add_extra(service, 10)
    master = service.start()
    for number in range(1, 4):
        service.runs.wait("report", completed(2 * number))
        kill(master.workers()[0])
        master.wait_for_workers(2)

    for key in extra:
        service.wait_for_finish(key)
    service.runs.wait("report", completed(10))
    assert master.stop() == 0

    never_two_at_once(by_schedule(service.runs.runs()))
    row = service.row("report").row
    assert (row.owner, row.attempt, row.status) == (None, 0, "waiting")


def test_parallel_runs_overlap_and_those_that_skip_do_not_run(service):
    service.configure(processors=2, concurrency=2)
    add_yearly(service, data={"until": "gate"})
    parallel = add_extra(service, 2, overlap="parallel")
    [queued] = add_extra(service, first=2)
    master = service.start()
    for key in (*parallel, queued):
        service.runs.wait(key)
    [skipped] = add_extra(service, first=3, overlap="skip")

    service.wait_for_row(skipped, lambda seen: seen.status == "cancelled")
    assert len(service.runs.runs()) == 3
    service.open_gate("gate")
    for key in (*parallel, queued):
        service.wait_for_finish(key)
    assert service.runs.runs(skipped) == []
    assert master.stop() == 0


# --- the end of a process -----------------------------------------------------------


@pytest.mark.landing
def test_what_a_killed_worker_leased_and_held_is_free_at_once(service):
    master, before, extra = start_extra_run(service, processors=2)
    [worker] = [pid for pid in master.workers() if service.runs.runs(extra)[0].worker == pid]

    kill(worker)

    # A lease lasts for 300 s: nobody has waited for its end.
    service.runs.wait(extra, lambda runs: len(runs) == 2)
    assert service.runs.runs("report") == []
    finish(service, master, extra)
    wait_until_released(service, before)
    assert [run.completed for run in service.runs.runs(extra)] == [False, True]


def test_what_a_dead_host_leased_and_held_becomes_free_by_itself(service):
    # Nobody would kill a daemon that such a death leaves behind.
    master, before, extra = start_extra_run(service, processes=(), alive_time=6)
    workers = master.workers()
    for pid in (master.pid, *workers):
        kill(pid, signal.SIGSTOP)  # so that none has a moment to act for another
    for pid in (master.pid, *workers):
        kill(pid)

    second = service.start()
    service.runs.wait(extra, lambda runs: len(runs) == 2)
    finish(service, second, extra)
    wait_until_released(service, before)
    assert service.runs.runs("report") == []


def test_a_schedule_without_its_extra_run_is_free_when_its_worker_has_died(service):
    master, before, extra = start_extra_run(service, retry_wait=1000)
    kill(service.runs.runs(extra)[0].pid)  # it runs again only much later
    wait_until_released(service, before)
    with service.schedules() as schedules:
        schedules[extra].cancel()
        [other] = add_extra_runs(schedules, "report", first=1)
    service.runs.wait(other)
    with service.sql() as database:
        # Its worker cannot see this before it dies.
        database.execute("DELETE FROM psched WHERE id LIKE '%!%'")
        kill(master.workers()[0])

    wait_until_released(service, before)
    assert service.runs.runs("report") == []
    assert master.stop() == 0


def test_a_graceful_stop_waits_for_an_extra_run(service):
    master, before, extra = start_extra_run(service)
    master.send(signal.SIGTERM)
    master.wait_for_log("stopping")
    service.open_gate("gate")

    assert master.wait() == 0
    wait_until_released(service, before)
    assert service.row(extra).status == "finished"


def test_a_stop_that_does_not_wait_gives_the_row_and_its_schedule_back(service):
    master, before, extra = start_extra_run(service, graceful_timeout=0, graceful_kill_limit=2)
    assert master.stop() == 0

    master.wait_until_nothing_is_left()
    wait_until_released(service, before)
    row = service.row(extra).row
    assert (row.status, row.owner, row.attempt) == ("waiting", None, 0)


# --- changes of the schedule --------------------------------------------------------


def test_an_extra_run_is_stopped_with_its_schedule(service):
    master, _, extra = start_extra_run(service)

    assert service.psched("delete", "report").returncode in {0, 3}

    service.wait_for_row(extra, lambda seen: seen.status == "cancelled")
    assert service.row(extra).row.reason == "its schedule report was deleted"
    with service.schedules() as schedules:
        assert not schedules["report"].exists()
    assert master.stop() == 0


@pytest.mark.landing
def test_a_cancelled_schedule_stops_its_extra_run(service):
    master, _, extra = start_extra_run(service)
    with service.schedules() as schedules:
        schedules["report"].cancel()

    service.wait_for_row(extra, lambda seen: seen.status == "cancelled")
    assert service.row("report").status == "cancelled"
    assert master.stop() == 0


def test_a_schedule_that_is_changed_during_an_extra_run_has_its_new_times_afterwards(service):
    master, before, extra = start_extra_run(service)
    with service.schedules() as schedules:
        schedules.modify("report", cron="0 0 1 6 *", data={"n": 1})
    finish(service, master, extra)

    row = service.row("report").row
    assert row.next_time == row.next_run_time != before.next_time
    assert (row.owner, row.attempt, row.data) == (None, 0, b'{"n":1}')


def test_a_schedule_that_is_paused_during_an_extra_run_stays_paused(service):
    master, before, extra = start_extra_run(service)
    assert service.psched("pause", "report").returncode in {0, 3}
    finish(service, master, extra)

    row = service.row("report").row
    assert (row.status, row.next_time, row.owner) == ("paused", before.next_time, None)
    assert (row.next_run_time, row.attempt) == (None, 0)


def test_a_schedule_that_is_paused_by_sql_during_an_extra_run_stays_paused(service):
    master, before, extra = start_extra_run(service)
    with service.sql() as database:
        database.execute("UPDATE psched SET status = 'paused' WHERE id = 'report'")
    finish(service, master, extra)

    row = service.row("report").row
    assert (row.status, row.next_time, row.owner) == ("paused", before.next_time, None)


# --- lost answers -------------------------------------------------------------------

HOLD = b"held_by = CASE"
"""What only the statement that holds schedules contains."""


@pytest.mark.mariadb
@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
@pytest.mark.parametrize("overlap", ["queue", "skip"])
def test_a_lost_answer_to_the_hold_of_the_schedule_costs_nothing(behind_proxy, fault, overlap):
    service, proxy, direct = behind_proxy
    before = add_yearly(service)
    master = service.start()

    with proxy.fault(fault, HOLD):
        [extra] = add_extra(service, overlap=overlap)
        service.wait_for_finish(extra)

    wait_until_released(service, before)
    [run] = service.runs.runs(extra)
    assert (run.completed, run.attempt) == (True, 1)
    assert service.runs.runs("report") == []
    assert direct.get("report").held_by is None
    assert master.stop() == 0


@pytest.mark.mariadb
def test_a_worker_that_dies_before_it_knows_that_it_has_the_schedule_loses_nothing(behind_proxy):
    service, proxy, direct = behind_proxy
    before = add_yearly(service)
    master = service.start()
    [worker] = master.workers()

    with proxy.fault(Fault.HOLD_REPLY, HOLD):
        [extra] = add_extra(service)
        wait_until(lambda: direct.get("report").held_by, what="the hold of the schedule")
        kill(worker)

    # At once: a lease lasts for 300 s.
    service.wait_for_finish(extra)
    wait_until_released(service, before)
    assert service.runs.runs("report") == []
    assert master.stop() == 0


def test_status_shows_an_extra_run_under_its_key(service):
    master, _, extra = start_extra_run(service)
    assert title(master.workers()[0]).endswith("1 tasks")

    shown = service.psched("status").stdout

    assert f"{extra}.{1_000_000_000}" in shown
    finish(service, master, extra)

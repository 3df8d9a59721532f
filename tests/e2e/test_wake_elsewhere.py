"""Pushes on another host that the database announces (wake: notify)."""

import sys

import pytest
import sqlalchemy

from psched.base.clock import SystemClock
from psched.testing.store_contract.announcing import announce, listening
from support.processes import kill
from support.rare_polls import poll_rarely
from support.stores import Sql, store_factory
from support.waiting import wait_until

CLOCK = SystemClock()

KINDS = [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("postgresql", "redis")]

announcing = pytest.mark.parametrize("database", KINDS, indirect=True)
postgresql = pytest.mark.parametrize("database", KINDS[:1], indirect=True)

pytestmark = [pytest.mark.monitor, pytest.mark.extended]  # it listens


@pytest.fixture
def there(each_service):
    """A service whose workers never poll again; this process does not find its master."""
    poll_rarely(each_service)
    each_service.configure(wake="notify")
    return each_service


def started(service, *command):
    """Start a master, and wait until it has picked up a push, so that its monitor listens."""
    service.add("first")
    master = service.start(*command)
    service.wait_for_finish("first")
    woken(service, "second")
    service.wait_for_finish("second")
    service.wait_until_asleep()
    return master


def woken(service, key):
    """Push a task, and wait for its start: no poll finds it."""
    with service.schedules() as schedules:
        schedules.push(key, "recorder")
    wait_for_start(service, key)


def wait_for_start(service, key):
    """Wait until a task was started, for the only time."""
    assert len(service.runs.wait(key)) == 1


@announcing
def test_a_push_on_another_host_is_picked_up_at_once(there):
    master = started(there)
    for number in range(3):
        woken(there, f"k{number}")
    assert master.stop() == 0
    master.wait_until_nothing_is_left()


@postgresql
def test_a_push_in_the_callers_transaction_is_picked_up_when_it_commits(there):
    started(there)
    engine = sqlalchemy.create_engine(there.url)
    with there.schedules() as schedules:
        with engine.begin() as mine:
            schedules.push("mine", "recorder", connection=mine)
            # A worker looks meanwhile, and so it would if it were told too early.
            woken(there, "other")
            there.wait_for_finish("other")
            there.wait_until_asleep()
        wait_for_start(there, "mine")
    engine.dispose()


@postgresql
def test_a_push_for_later_in_the_callers_transaction_announces_nothing(there):
    started(there)
    engine = sqlalchemy.create_engine(there.url)
    with there.schedules() as schedules:
        Sql(there.url)("INSERT INTO {table} (id, type) VALUES ('plain', 'recorder')")
        with store_factory(there.url) as open_store, listening(open_store()) as listener:
            with engine.begin() as mine:
                far = int(CLOCK.wall()) + 1_000_000
                schedules.push("far", "recorder", run_at=far, connection=mine)
            # A client of another language can announce what it has inserted.
            Sql(there.url)("NOTIFY psched_wake_psched")
            wait_for_start(there, "plain")
            # Announcements are heard in the order of the commits: this one was the first.
            listener.wait()
            assert listener.heard_nothing()
    engine.dispose()


def cut(database):
    """Break all connections that listen; how many there were."""
    if database.kind == "redis":
        return int(database.server.query("CLIENT", "KILL", "TYPE", "pubsub"))
    sql = Sql(database.url)
    listening = sql("SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN %'")
    for (pid,) in listening:
        sql("SELECT pg_terminate_backend(:pid)", pid=pid)
    return len(listening)


@announcing
def test_a_connection_that_breaks_is_opened_again(there, database):
    master = started(there)
    wait_until(lambda: cut(database), what="the listening connection")
    master.wait_for_log("what other hosts announce is not heard: ")
    woken(there, "k0")
    woken(there, "k1")


@announcing
def test_a_monitor_that_is_replaced_listens_again(there):
    master = started(there)
    before = master.wait_for_monitor()
    kill(before)
    master.wait_for_monitor(other_than=before)
    woken(there, "k0")
    woken(there, "k1")


@announcing
def test_announcements_alone_make_nobody_run_anything_twice(there):
    master = started(there)
    there.add("k", data={"until": "gate"})
    there.runs.wait("k")
    with store_factory(there.url) as open_store:
        store = open_store()
        for _ in range(100):
            announce(store)
    there.open_gate("gate")
    there.wait_for_finish("k")
    assert len(there.runs.runs("k")) == 1
    assert "Traceback" not in master.text


@announcing
def test_without_a_monitor_pushes_are_announced_to_others_and_not_heard(there):
    there.configure(monitor=False)
    there.add("first")
    there.start()
    there.wait_for_finish("first")
    there.wait_until_asleep()
    with store_factory(there.url) as open_store, listening(open_store()) as listener:
        with there.schedules() as schedules:
            schedules.push("k", "recorder")
        listener.wait()
    # A worker may answer in the step in which it looks for due rows, and a second time only later.
    there.wait_until_asleep()
    there.wait_until_asleep()
    assert there.row("k").row.fence == 0


@postgresql
def test_a_program_says_that_it_hears_nothing_of_other_hosts(there):
    settings = {"url": there.url, "wake": "notify", "cgroup": "off", "processors": 1}
    there.write(
        "program.py", f"import psched, recorder\npsched.Worker.run(recorder.Dispatch, {settings})\n"
    )
    master = there.start(sys.executable, "program.py")
    master.wait_for_log("what other hosts announce is not heard: a master of a program keeps no")
    wait_until(master.workers, what="a worker")

"""No task runs without its lease: whatever happens to the store, the row, or the worker."""

import re
import signal
from contextlib import contextmanager
from itertools import pairwise

import pytest

import psched
from psched.base.clock import SystemClock
from psched.base.lease_times import SHORTEST_ALIVE_TIME, Deadlines, default_driver_timeout
from support.processes import descendants, kill
from support.proxy import Fault, Proxy
from support.run_log import never_two_at_once
from support.waiting import has_ended, wait_for_end, wait_until

CLOCK = SystemClock()
LEASE = 20
"""Seconds: short enough to wait for its end, and so long that a slow machine does not lose it.

An extension may be 5 s late before its task is killed.
"""

SHORT = {"alive_time": LEASE}
CROWD = ["child", "daemon"]

SLOWLY = 0.7
"""Seconds for each answer: less than `longest_answer` of the shortest lease."""

servers = pytest.mark.parametrize(
    "database",
    [
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("postgresql", marks=pytest.mark.postgresql),
    ],
    indirect=True,
)

AWAY = r"running tasks go on while their leases last"
BACK = r"the store answers again"


def pids(run):
    return {note["pid"] for note in run.notes}


def wait_for_crowd(service, key):
    """Wait until a task and its processes are there; its run."""
    return service.runs.wait(key, lambda runs: len(pids(runs[-1])) == 3)[-1]


def lease_end(service, key):
    """When the lease ends, at the earliest, on the clock of the run log."""
    return service.row(key).next_run_time - CLOCK.wall() + CLOCK.boottime()


def wait_until_gone(run):
    wait_until(lambda: all(map(has_ended, pids(run))), what="the end of the task's tree")


@contextmanager
def stopped(pid):
    """Hold a process, as a machine without memory, a debugger or a frozen host does."""
    kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        kill(pid, signal.SIGCONT)


@pytest.fixture
def on_mariadb(make_service, mariadb_server):
    """A service on a MariaDB that may be stopped and killed, with the shortest lease."""
    name = mariadb_server.create_database()
    yield make_service(mariadb_server.url(name), **SHORT)
    mariadb_server.restart()
    mariadb_server.drop_database(name)


# --- kept ----------------------------------------------------------------------------


def test_a_task_that_is_longer_than_its_lease_keeps_it_and_runs_once(each_service):
    service = each_service
    service.configure(processors=2, **SHORT)
    service.add("long", data={"until": "gate"})
    service.start()
    service.runs.wait("long")
    first_end = lease_end(service, "long")  # or later, if it is extended just now
    service.runs.wait("long", lambda runs: runs[0].last_sign > first_end + 1)
    # The other worker has looked for due rows since then, and would have taken the older one.
    service.add("later", next_time=int(CLOCK.wall()))
    service.wait_for_finish("later")
    service.open_gate("gate")
    service.wait_for_finish("long")
    [run] = service.runs.runs("long")
    assert run.completed
    assert service.row("long").row.fence == 1


def test_a_store_that_is_away_for_less_than_a_lease_costs_no_task(on_mariadb, mariadb_server):
    service = on_mariadb
    service.configure(alive_time=60)
    service.write(
        "curious.py",
        """
        from recorder import FOLDER, Recorder, Dispatch as Others
        from psched import TransientStoreError

        class Curious(Recorder):
            def stay(self, gate):
                super().stay(FOLDER / "asked")
                try:
                    self.task.extend()
                except TransientStoreError as error:
                    self.note("refused", text=str(error))
                super().stay(gate)
                self.task.finish()

        class Dispatch(Others):
            routes = {"curious": Curious}
        """,
    )
    service.configure(dispatch="curious:Dispatch")
    service.add("long", "curious", data={"until": "gate"})
    master = service.start()
    service.runs.wait("long")
    mariadb_server.kill()
    master.wait_for_log(AWAY)
    service.open_gate("asked")
    noted = service.runs.wait(
        "long", lambda runs: [note for note in runs[0].notes if note["event"] == "refused"]
    )
    service.open_gate("gate")
    wait_until(lambda: service.runs.runs("long")[0].completed, what="the task's end")
    service.wait_until_asleep()  # it has tried to write the end
    mariadb_server.start()
    service.wait_for_finish("long")

    [run] = service.runs.runs("long")
    assert run.attempt == 1
    [refused] = [note for note in noted[0].notes if note["event"] == "refused"]
    assert "connect" in refused["text"]
    assert len(re.findall(AWAY, master.text)) == 1
    assert len(re.findall(BACK, master.wait_for_log(BACK))) == 1


class TestSlowly:
    """On a store that answers slowly."""

    @pytest.fixture
    def near(self, database):
        """The schedules, without the way through the proxy."""
        with psched.open({"url": database.url}) as near:
            yield near

    @pytest.fixture
    def proxy(self, database):
        with Proxy(database.server.port) as proxy:
            yield proxy

    @pytest.fixture
    def far(self, make_service, database, proxy):
        """A service behind the proxy."""
        service = make_service(database.url)
        url = database.url.replace(f":{database.server.port}/", f":{proxy.port}/")
        service.configure(url=url, processors=1, concurrency=4)
        return service

    @pytest.mark.parametrize(
        "database", [pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True
    )
    @pytest.mark.quiet  # each answer takes nearly as long as so short a lease bears
    def test_tasks_are_started_and_keep_their_leases(self, far, near, proxy):
        """A claim takes two answers there: more than a quarter of so short a lease."""
        far.configure(alive_time=SHORTEST_ALIVE_TIME)
        master = far.start()
        with proxy.slow(SLOWLY):
            near.add("long", "recorder", next_time=1, data={"until": "gate"})
            far.runs.wait("long")
            near.add("short", "recorder", next_time=1)
            far.runs.wait("short", lambda runs: runs[-1].completed)
            far.runs.wait(
                "long",
                lambda runs: runs[0].last_sign > runs[0].started + 3 * SHORTEST_ALIVE_TIME,
                what="a run of several leases",
            )
        far.open_gate("gate")
        far.wait_for_finish("long")
        assert len(far.runs.runs("long")) == 1
        assert [near[key].metadata().row.fence for key in ("long", "short")] == [1, 1]
        # A worker that is held up loses its connection there, and can find the store fast again
        # before the second claim. Then it warns again, but never twice in a row.
        told = re.findall(
            "the store answers (slowly.*set alive_time to|in time again)", master.text
        )
        is_slow = [text.startswith("slowly") for text in told]
        assert is_slow[0]
        assert all(one != other for one, other in pairwise(is_slow))
        assert "killing it" not in master.text
        master.stop()

    @servers
    def test_a_connection_that_is_lost_comes_back_before_its_tasks_are_killed(
        self, far, near, proxy
    ):
        """Within twice its time-out there is room for eleven answers, not for twelve."""
        far.configure(alive_time=60)
        master = far.start()
        near.add("long", "recorder", next_time=1, data={"until": "gate"})
        far.runs.wait("long")
        with proxy.slow(0.85):
            with proxy.fault(Fault.LOSE_REPLY, b"SELECT"):
                master.wait_for_log(AWAY)
            master.wait_for_log(BACK)
            near.add("later", "recorder", next_time=1)
            far.runs.wait("later", lambda runs: runs[-1].completed)
        far.open_gate("gate")
        far.wait_for_finish("long")
        assert len(far.runs.runs("long")) == 1
        assert near["long"].metadata().row.fence == 1
        assert "killing it" not in master.text
        master.stop()


# --- lost ----------------------------------------------------------------------------


TAKEN_OVER = (
    "UPDATE psched SET leased_by = 'thief.1', fence = fence + 1, next_run_time = 4000000000"
)
REMOVED = "DELETE FROM psched"


@pytest.mark.parametrize("statement", [TAKEN_OVER, REMOVED], ids=["taken over", "removed"])
def test_a_task_whose_lease_is_lost_is_killed_at_once_and_nothing_is_written(service, statement):
    service.configure(**SHORT)
    data = {"until": "never", "stubborn": True, "processes": CROWD}
    service.add("stolen", data=data)
    master = service.start()
    run = wait_for_crowd(service, "stolen")

    def content():
        with service.sql() as connection:
            return connection.execute("SELECT * FROM psched WHERE id = 'stolen'").fetchall()

    end = lease_end(service, "stolen")
    with service.sql() as connection:
        connection.execute(statement)
    before = content()
    wait_until_gone(run)
    master.wait_for_log("preempted")

    [run] = service.runs.runs("stolen")
    assert run.end is None
    # Seen with the next extension, and killed without a TERM before.
    assert run.last_sign < end
    assert master.text.count("killing it: its lease is lost") == 1
    service.add("next", data={})
    service.wait_for_finish("next")
    assert content() == before


@pytest.mark.parametrize("way", [pytest.param("stopped", marks=pytest.mark.extended), "killed"])
def test_a_store_that_is_away_for_longer_than_the_lease_costs_the_task_in_time(
    on_mariadb, mariadb_server, way
):
    service = on_mariadb
    data = {"until": "gate", "stubborn": True, "processes": CROWD}
    service.add("long", data=data)
    master = service.start()
    run = wait_for_crowd(service, "long")
    end = lease_end(service, "long")  # or later, if it is extended just now
    if way == "stopped":
        kill(mariadb_server.pid, signal.SIGSTOP)
    else:
        mariadb_server.kill()
    try:
        wait_until_gone(run)
        run = service.runs.runs("long")[0]
        assert run.last_sign < end
        wait_until(lambda: CLOCK.boottime() > end + 1, what="the end of the lease")
    finally:
        if way == "stopped":
            kill(mariadb_server.pid, signal.SIGCONT)
        else:
            mariadb_server.start()
    service.runs.wait("long", lambda runs: len(runs) == 2, what="a second run")
    service.open_gate("gate")
    service.wait_for_finish("long")

    never_two_at_once(service.runs.runs("long"))
    assert "its lease could not be extended" in master.text
    assert len(re.findall(AWAY, master.text)) == 1
    assert len(re.findall(BACK, master.wait_for_log(BACK))) == 1


# --- the worker ----------------------------------------------------------------------


def test_a_worker_that_is_stopped_is_killed_by_the_kernel_before_its_lease_ends(service):
    # The master, which kills a stopped worker, too, is to come later.
    service.configure(processors=2, child_heartbeat_limit=600, **SHORT)
    service.add("long", data={"until": "gate", "processes": CROWD})
    master = service.start()
    run = wait_for_crowd(service, "long")
    [worker] = [pid for pid in master.workers() if run.pid in descendants(pid)]
    with stopped(worker):
        end = lease_end(service, "long")
        wait_for_end(worker)
        wait_until_gone(run)
    service.runs.wait("long", lambda runs: len(runs) == 2, what="a second run")
    service.open_gate("gate")
    service.wait_for_finish("long")

    runs = service.runs.runs("long")
    assert runs[0].last_sign < end
    never_two_at_once(runs)
    assert re.search(rf"pid {worker}, was killed by its lease timer", master.text)


def test_a_task_dies_in_time_with_its_worker_though_the_master_hangs_too(service):
    service.configure(**SHORT)
    service.add("long", data={"until": "gate"})
    master = service.start()
    run = service.runs.wait("long")[-1]
    [worker] = master.workers()
    with stopped(master.pid), stopped(worker):
        end = lease_end(service, "long")
        wait_for_end(run.pid)
        assert service.runs.runs("long")[0].last_sign < end
    service.open_gate("gate")
    service.wait_for_finish("long")
    never_two_at_once(service.runs.runs("long"))


def test_a_worker_that_is_stopped_for_less_than_its_lease_costs_no_task(service):
    service.configure(alive_time=60)
    service.add("long", data={"until": "gate"})
    master = service.start()
    service.runs.wait("long")
    [worker] = master.workers()
    with stopped(worker):
        begun = CLOCK.boottime()
        service.runs.wait("long", lambda runs: runs[0].last_sign > begun + 2)
    service.open_gate("gate")
    service.wait_for_finish("long")
    [run] = service.runs.runs("long")
    assert run.completed
    assert master.workers() == [worker]


def test_the_shortest_lease_leaves_time_for_all_that_must_happen_before_its_end():
    deadlines = Deadlines(0.0, SHORTEST_ALIVE_TIME, default_driver_timeout(SHORTEST_ALIVE_TIME))
    moments = [deadlines.extend, deadlines.kill, deadlines.deadman, deadlines.end]
    assert moments == sorted(moments)

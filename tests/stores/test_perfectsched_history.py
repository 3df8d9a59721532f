"""Tests of the run history beside PerfectSched's table."""

import pytest

import psched
from psched.base.errors import SchemaError, UnknownOutcomeError
from psched.core.store_protocol import Settled
from psched.testing.store_contract.bench import LATER, LONG_AGO, found, leased
from psched.testing.store_contract.history import claimed, ending_with, made, recorded, runs
from support.compat import compat_factory
from support.proxy import LOOPBACK, Fault, Proxy
from support.stores import LONG, Sql

pytestmark = pytest.mark.empty

COMPANIONS = ("psched_runs", "psched_workers", "psched_audit")
EVERY = (*COMPANIONS, "psched_output")


@pytest.fixture
def open_store(database):
    with compat_factory(database.url) as factory:
        yield factory


@pytest.fixture
def store(open_store):
    store = open_store()
    store.init()
    return store


@pytest.fixture
def sql(database):
    return Sql(database.url)


def test_init_makes_the_tables_of_the_history_once(open_store):
    store = open_store()
    made_now = [f"created table {name}" for name in EVERY]
    assert [*store.init()][-4:] == made_now
    assert [*store.init()] == []
    assert store.history is not None
    assert store.history.problem() is None


def test_init_adds_them_to_a_table_that_perfectsched_has_made(open_store, sql):
    open_store().init()
    for name in EVERY:
        sql(f"DROP TABLE {name}")
    rows = "SELECT * FROM {table}"
    before = sql(rows)
    assert [*open_store().init()] == [f"created table {name}" for name in EVERY]
    assert sql(rows) == before


@pytest.mark.parametrize("missing", COMPANIONS)
def test_without_its_tables_everything_works_without_a_history(store, sql, open_store, missing):
    sql(f"DROP TABLE {missing}")
    other = open_store()
    assert other.history.problem() == (
        f"the table '{missing}' of the run history does not exist, or lacks a column;"
        " run `psched init` as a user that may create tables"
    )
    held = leased(other, "k")
    assert other.settle([ending_with(held, recorded(held), next_time=LATER)]) == {"k": Settled.DONE}
    assert found(other, "k").next_time == LATER
    assert not other.history.unwritten
    with pytest.raises(SchemaError, match="psched init"):
        other.history.runs()
    assert store.get("k") is not None


def test_a_refused_record_does_not_stop_a_settlement(store, sql):
    held = leased(store, "k")
    sql("ALTER TABLE psched_runs RENAME COLUMN host TO guest")
    assert store.settle([ending_with(held, recorded(held), next_time=LATER)]) == {"k": Settled.DONE}
    assert len(store.history.unwritten) == 1
    assert found(store, "k").next_time == LATER
    # The new connection notices it.
    store.disconnect()
    assert "psched_runs" in store.history.problem()


def test_a_lease_that_another_has_taken_is_not_recorded(store, sql):
    held = leased(store, "k")
    sql("UPDATE {table} SET timeout = timeout + 1")
    assert store.settle([ending_with(held, recorded(held))]) == {"k": Settled.PREEMPTED}
    assert runs(store) == []


def test_two_leases_of_an_occurrence_have_two_records(store):
    owners = []
    for count in range(2):
        held = leased(store, "k", f"w.{count}") if not count else claimed(store, "k", f"w.{count}")
        owners.append(held.owner)
        end = ending_with(held, recorded(held, fate=None), next_time=LONG_AGO)
        assert store.settle([end]) == {"k": Settled.DONE}
    assert [each.owner for each in runs(store)] == owners[::-1]


def test_perfectsched_can_use_its_table_as_before(store, sql):
    """Its own columns are all that there is, and a settlement writes what it always wrote."""
    held = leased(store, "k")
    store.settle([ending_with(held, recorded(held), next_time=LATER, not_before=LATER)])
    [row] = sql("SELECT * FROM {table}")
    assert {*row._mapping} == {*("id", "timeout", "next_time", "cron", "delay", "data", "timezone")}
    assert (row.timeout, row.next_time) == (LATER, LATER)


@pytest.mark.mariadb
@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
class TestOnAServer:
    @pytest.mark.parametrize("loss", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY])
    def test_a_settlement_without_an_answer_is_recorded_once(self, store, database, loss):
        with Proxy(database.server.port) as proxy:
            url = f"mysql+pymysql://root@{LOOPBACK}:{proxy.port}/{_name(database)}"
            with compat_factory(url, timeout=LONG) as open_far:
                far = open_far()
                held = leased(far, "k")
                end = ending_with(held, recorded(held), next_time=LATER)
                with proxy.fault(loss, b"COMMIT"), pytest.raises(UnknownOutcomeError):
                    far.settle([end])
                for _ in range(2):
                    assert far.settle([end]) == {"k": Settled.DONE}
        assert len(runs(store)) == 1

    def test_a_user_that_may_not_create_tables_has_no_history(self, store, database, sql):
        for name in EVERY:
            sql(f"DROP TABLE {name}")
        user = f"u_{_name(database)}"[:30]
        database.server.query(f"CREATE USER {user} IDENTIFIED BY 'x'")
        rights = "SELECT, INSERT, UPDATE, DELETE"
        database.server.query(f"GRANT {rights} ON {_name(database)}.psched TO {user}")
        try:
            url = f"mysql+pymysql://{user}:x@{LOOPBACK}:{database.server.port}/{_name(database)}"
            with compat_factory(url) as open_mine:
                mine = open_mine()
                [line] = mine.init()
                assert line.startswith("no run history and no output: tables cannot be created: ")
                assert "command denied to user" in line
                assert "psched_runs" in mine.history.problem()
                held = leased(mine, "k")
                assert mine.settle([ending_with(held, recorded(held))]) == {"k": Settled.DONE}
        finally:
            database.server.query(f"DROP USER {user}")
        store.disconnect()

    def test_a_user_that_may_not_write_records_settles_without_them(self, store, database):
        user = f"w_{_name(database)}"[:30]
        database.server.query(f"CREATE USER {user} IDENTIFIED BY 'x'")
        for table, rights in (
            ("psched", "SELECT, INSERT, UPDATE, DELETE"),
            *((name, "SELECT") for name in COMPANIONS),
        ):
            database.server.query(f"GRANT {rights} ON {_name(database)}.{table} TO {user}")
        try:
            url = f"mysql+pymysql://{user}:x@{LOOPBACK}:{database.server.port}/{_name(database)}"
            with compat_factory(url) as open_mine:
                mine = open_mine()
                held = leased(mine, "k")
                assert mine.settle([ending_with(held, recorded(held))]) == {"k": Settled.DONE}
                assert len(mine.history.unwritten) == 1
        finally:
            database.server.query(f"DROP USER {user}")
        assert runs(store) == []
        store.history.record([made("k")])
        assert len(runs(store)) == 1


def _name(database):
    return database.url.rpartition("/")[2]


@pytest.mark.usefixtures("store")
def test_the_result_of_a_task_is_kept_beside_the_table(database):
    settings = {"type": "rdb_compat", "url": database.url, "table": "psched"}
    with psched.open(settings) as schedules:
        schedules.add("k", "t", cron="0 * * * *", next_time=3600)
        task = schedules.poll()
        task.result = {"rows": 3}
        task.finish()
        [run] = schedules["k"].runs(outcome="finished")
        assert run.result == {"rows": 3}

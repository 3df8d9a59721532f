"""Tests of workers of the version without a table of output beside those with one."""

import pytest

from psched.base.errors import SchemaError, StoreError
from psched.core.model import Row, Settlement
from psched.core.output import OutputSelection, RunningAttempt
from psched.core.store_protocol import Settled
from psched.testing.store_contract.output import kept, printed

CLAIM = {"limit": 100, "alive_time": 60, "shortest": 6, "horizon": 0}

RUNNING = RunningAttempt(key="k", scheduled_time=60, owner="w.1", attempt=1)

MISSING = "the table psched_output is missing or not complete; run `psched init`"


@pytest.fixture
def age(sql):
    """A function that takes away from the database all that the version with output adds."""

    def age():
        sql("DROP TABLE psched_output")
        sql("DELETE FROM psched_info WHERE name = 'output_version'")

    return age


def run_one(store, key):
    """Add, claim and settle a row."""
    store.add([Row(key=key, cron="* * * * *", next_time=60, next_run_time=60)], nonce="n")
    (row,) = store.claim(f"{key}.1", **CLAIM).rows
    end = Settlement.of(row, next_time=120, not_before=4_000_000_000)
    assert store.settle([end]) == {key: Settled.DONE}


def test_a_database_without_the_table_is_used_as_before(store, age):
    age()
    assert store.output.problem() == MISSING
    assert store.history.problem() is None
    run_one(store, "k")
    store.try_rights()
    for request in (
        lambda: store.output.write_output([printed()]),
        lambda: store.output.outputs(OutputSelection(key="k")),
        lambda: store.output.output_of(RUNNING),
        lambda: store.output.ask_for_output(RUNNING, now=1, until=2),
        lambda: store.output.asked_output([RUNNING], 1),
        lambda: store.output.write_live_output([printed(is_live=True)]),
        lambda: store.output.trim_output(before=0, budget=0, limit=1),
    ):
        with pytest.raises(SchemaError, match=r"psched_output.*`psched init`"):
            request()


def test_a_worker_that_is_connected_notices_the_upgrade_when_it_asks(store, open_at, database, age):
    age()
    assert store.output.problem() == MISSING
    other = open_at(database.url)
    assert [*other.init()] == ["created table psched_output"]
    assert other.plan_init() == []
    assert store.output.problem() is None
    store.output.write_output([printed()])
    assert kept(other) == [printed()]


def test_the_plan_is_what_init_executes(store, age):
    age()
    plan = [sql for sql, _ in store.plan_init()]
    assert sum("CREATE TABLE" in sql and "psched_output" in sql for sql in plan) == 1
    assert all("psched_output" in sql or "psched_info" in sql for sql in plan)
    assert store.output.problem() == MISSING
    store.init()
    assert store.plan_init() == []
    assert store.output.problem() is None


def test_a_table_without_the_version_is_completed(store, sql):
    store.output.write_output([printed()])
    sql("DELETE FROM psched_info WHERE name = 'output_version'")
    assert store.output.problem() == MISSING
    assert store.init() == []
    assert kept(store) == [printed()]


def test_a_newer_table_is_left_alone(store, sql, open_store):
    sql("UPDATE psched_info SET value = '2' WHERE name = 'output_version'")
    told = "output has version 2, this psched knows 1; upgrade psched on this host"
    assert store.output.problem() == told
    assert store.history.problem() is None
    run_one(store, "k")
    other = open_store()  # initialises the table once more
    assert other.output.problem() == told
    assert other.plan_init() == []
    with pytest.raises(SchemaError, match="output has version 2"):
        store.output.write_output([printed()])


def test_a_version_that_nobody_knows_is_ignored(store, sql):
    """As the version without output ignores the version of output."""
    sql("INSERT INTO psched_info (name, value) VALUES ('later_version', '7')")
    sql("CREATE TABLE psched_later (id INTEGER PRIMARY KEY)")
    assert (store.history.problem(), store.output.problem()) == (None, None)
    run_one(store, "k")
    assert store.init() == []


@pytest.mark.parametrize(
    "database",
    [
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("postgresql", marks=pytest.mark.postgresql),
    ],
    indirect=True,
)
def test_a_right_that_is_missing_is_named(store, database, open_at):
    name, postgresql = database.url.rpartition("/")[2], database.kind == "postgresql"
    where = {"database": name} if postgresql else {}
    on, user = ("", "limited") if postgresql else (f"{name}.", "limited")
    query = database.server.query
    query(f"CREATE ROLE {user} LOGIN PASSWORD 'x'" if postgresql else f"CREATE USER {user}")
    tables = [f"psched{part}" for part in ("", "_info", "_runs", "_workers", "_audit", "_alerts")]
    try:
        for table in tables:
            query(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {on}{table} TO {user}", **where)
        query(f"GRANT SELECT, INSERT, DELETE ON {on}psched_output TO {user}", **where)
        own = "postgres@" if postgresql else "root@"
        limited = open_at(database.url.replace(own, f"{user}:x@" if postgresql else f"{user}@"))
        told = r"^cannot UPDATE in the table 'psched_output': "
        with pytest.raises(StoreError, match=told):
            limited.try_rights()
        run_one(limited, "k")
        limited.disconnect()
    finally:
        if postgresql:
            query(f"DROP OWNED BY {user}", **where)
        query(f"DROP USER {user}")
    store.try_rights()

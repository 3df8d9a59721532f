"""Tests of tables without a run history, and of the upgrade that adds it."""

import contextlib
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as changed

import pytest

from psched.base.errors import SchemaError, StoreError
from psched.core.history.records import Outcome, RunRecord
from psched.core.model import Row, Settlement
from psched.core.store_protocol import Settled
from psched.stores.sql.connector import LOCK_WAIT
from support.waiting import PATIENCE

CLAIM = {"limit": 100, "alive_time": 60, "shortest": 6, "horizon": 0}

NAMES = ("runs", "workers", "audit")


_REFUSED = (
    r"^(cannot execute 'CREATE TABLE IF NOT EXISTS psched_runs |the database refused: .*_runs)"
)
"""MariaDB does not even tell such a user whether the table exists."""


@pytest.fixture
def age(sql):
    """A function that takes away the tables of the run history."""

    def age():
        for name in NAMES:
            sql(f"DROP TABLE psched_{name}")
        sql("DELETE FROM psched_info WHERE name = 'history_version'")

    return age


def due(*keys):
    return [Row(key=k, cron="* * * * *", next_time=60, next_run_time=60) for k in keys]


def ending(row, **changes):
    record = RunRecord(
        key=row.key,
        type=row.type,
        scheduled_time=row.next_time,
        owner=row.owner or "",
        fence=row.fence,
        ended=1,
        outcome=Outcome.FINISHED,
    )
    values = {"next_time": 120, "not_before": 4_000_000_000, **changes}
    return Settlement.of(row, records=(record,), **values)


def test_a_table_without_a_history_is_used_as_before(store, age):
    age()
    assert "psched_runs" in store.history.problem()
    store.add(due("a", "b"), nonce="n")
    rows = store.claim("w.1", **CLAIM).rows
    assert {row.key for row in rows} == {"a", "b"}
    assert set(store.settle([ending(row) for row in rows]).values()) == {Settled.DONE}
    assert not store.history.unwritten
    with pytest.raises(SchemaError, match=r"psched_runs.*`psched init`"):
        store.history.runs()
    store.try_rights()


def test_on_a_table_without_a_history_rows_are_held_and_replaced(store, age, open_at, database):
    age()
    late = open_at(database.url)
    late.add(due("k"), nonce="n")
    seen = late.get("k")
    records = ending(seen).records
    assert late.replace_and_record(seen, changed(seen, type="new"), records)
    assert not late.history.unwritten
    assert late.hold({"k": "w.1"}, alive_time=60, shortest=6) == {"k"}
    assert not store.claim("w.2", **CLAIM).rows
    assert late.recover("w", alive_time=60, retry_wait=0.0) == []
    assert not late.history.unwritten
    (row,) = store.claim("w.3", **CLAIM).rows
    assert (row.type, row.attempt, row.next_run_time) == ("new", 1, 60)


def test_a_worker_that_is_connected_notices_the_upgrade_when_it_asks(store, open_at, database, age):
    age()
    assert store.history.problem() is not None
    store.add(due("k"), nonce="n")
    (row,) = store.claim("w.1", **CLAIM).rows
    other = open_at(database.url)
    assert {line.split()[-1] for line in other.init()} == {f"psched_{name}" for name in NAMES}
    assert other.plan_init() == []
    assert store.history.problem() is None
    assert store.settle([ending(row)]) == {"k": Settled.DONE}
    assert [each.key for each in store.history.runs()] == ["k"]
    store.add(due("then"), nonce="n")
    store.claim("w.2", **CLAIM)
    assert store.get("then").claimed_at is not None


def test_the_plan_is_what_init_executes_and_changes_nothing(store, age):
    assert store.plan_init() == []
    age()
    plan = store.plan_init()
    assert store.plan_init() == plan
    assert store.history.problem() is not None
    assert sum("CREATE TABLE" in sql for sql, _ in plan) == len(NAMES)
    assert all(lock for _, lock in plan)
    store.init()
    assert store.plan_init() == []


@pytest.mark.parametrize(
    "database",
    [
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("postgresql", marks=pytest.mark.postgresql),
    ],
    indirect=True,
)
def test_init_names_what_it_may_not_create(store, age, database, open_at):
    age()
    name, postgresql = database.url.rpartition("/")[2], database.kind == "postgresql"
    where = {"database": name} if postgresql else {}
    on = "" if postgresql else f"{name}."
    query = database.server.query
    user = "ROLE limited LOGIN PASSWORD" if postgresql else "USER limited IDENTIFIED BY"
    query(f"CREATE {user} 's3cret'")
    try:
        for table in "psched", "psched_info", "psched_output", "psched_alerts":
            query(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {on}{table} TO limited", **where)
        url = database.url.replace("postgres@" if postgresql else "root@", "limited:s3cret@")
        limited = open_at(url)
        with pytest.raises(StoreError, match=_REFUSED):
            limited.init()
        limited.try_rights()  # the schedules can be used
        limited.disconnect()
    finally:
        if postgresql:
            query("DROP OWNED BY limited", **where)
        query("DROP USER limited")
    assert store.history.problem() is not None


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_init_waits_for_workers_that_write_to_the_file(store, age, database, open_at):
    """Busy workers can hold the file's lock for longer than a worker waits for it."""
    age()
    path = database.url.removeprefix("sqlite:///")
    with (
        ThreadPoolExecutor(1) as thread,
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer,
    ):
        writer.execute("BEGIN IMMEDIATE")
        waiting = thread.submit(open_at(database.url).init)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=LOCK_WAIT + 1)
        writer.execute("COMMIT")
        assert waiting.result(timeout=PATIENCE)
    assert store.history.problem() is None

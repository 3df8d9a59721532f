"""Tests of programs of the version without a table of alerts beside those with one."""

import pytest

from psched.base.errors import SchemaError, StoreError
from psched.core.model import Row, Settlement
from psched.core.store_protocol import Settled
from psched.testing.store_contract.alerts import alert, one_raised, stored

CLAIM = {"limit": 100, "alive_time": 60, "shortest": 6, "horizon": 0}

MISSING = "the table psched_alerts is missing or not complete; run `psched init`"


@pytest.fixture
def age(sql):
    """A function that takes away from the database all that the version with alerts adds."""

    def age():
        sql("DROP TABLE psched_alerts")
        sql("DELETE FROM psched_info WHERE name = 'alerts_version'")

    return age


def run_one(store, key):
    """Add, claim and settle a row."""
    store.add([Row(key=key, cron="* * * * *", next_time=60, next_run_time=60)], nonce="n")
    (row,) = store.claim(f"{key}.1", **CLAIM).rows
    end = Settlement.of(row, next_time=120, not_before=4_000_000_000)
    assert store.settle([end]) == {key: Settled.DONE}


def test_a_database_without_the_table_is_used_as_before(store, age):
    age()
    assert store.alerts.problem() == MISSING
    assert (store.history.problem(), store.output.problem()) == (None, None)
    run_one(store, "k")
    store.try_rights()
    for request in (
        lambda: store.alerts.raise_alerts([alert()]),
        lambda: store.alerts.close_alerts([alert()], "it has run"),
        store.alerts.find_alerts,
        lambda: store.alerts.take_alerts("m", lease=1, limit=1),
        lambda: store.alerts.note_deliveries(alert(owner="m", fence=1)),
        lambda: store.alerts.trim_alerts(before=0, limit=1),
    ):
        with pytest.raises(SchemaError, match=r"psched_alerts.*`psched init`"):
            request()


def test_a_monitor_that_is_connected_notices_the_upgrade_when_it_asks(
    store, open_at, database, age
):
    age()
    assert store.alerts.problem() == MISSING
    other = open_at(database.url)
    assert [*other.init()] == ["created table psched_alerts"]
    assert other.plan_init() == []
    assert store.alerts.problem() is None
    raised = one_raised(store)
    assert stored(other) == [raised]


def test_the_plan_is_what_init_executes(store, age):
    age()
    plan = [sql for sql, _ in store.plan_init()]
    assert sum("CREATE TABLE" in sql and "psched_alerts" in sql for sql in plan) == 1
    assert all("psched_alerts" in sql or "psched_info" in sql for sql in plan)
    assert store.alerts.problem() == MISSING
    store.init()
    assert store.plan_init() == []
    assert store.alerts.problem() is None


def test_a_table_without_the_version_is_completed(store, sql):
    raised = one_raised(store)
    sql("DELETE FROM psched_info WHERE name = 'alerts_version'")
    assert store.alerts.problem() == MISSING
    assert store.init() == []
    assert stored(store) == [raised]


def test_a_newer_table_is_left_alone(store, sql, open_store):
    sql("UPDATE psched_info SET value = '2' WHERE name = 'alerts_version'")
    told = "the table of alerts has version 2, this psched knows 1; upgrade psched on this host"
    assert store.alerts.problem() == told
    assert (store.history.problem(), store.output.problem()) == (None, None)
    run_one(store, "k")
    other = open_store()  # initialises the table once more
    assert other.alerts.problem() == told
    assert other.plan_init() == []
    with pytest.raises(SchemaError, match="the table of alerts has version 2"):
        store.alerts.raise_alerts([alert()])


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
    on = "" if postgresql else f"{name}."
    query = database.server.query
    query("CREATE ROLE limited LOGIN PASSWORD 'x'" if postgresql else "CREATE USER limited")
    tables = [f"psched{part}" for part in ("", "_info", "_runs", "_workers", "_audit", "_output")]
    try:
        for table in tables:
            query(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {on}{table} TO limited", **where)
        query(f"GRANT SELECT, INSERT, DELETE ON {on}psched_alerts TO limited", **where)
        own = "postgres@" if postgresql else "root@"
        limited = open_at(database.url.replace(own, "limited:x@" if postgresql else "limited@"))
        with pytest.raises(StoreError, match=r"^cannot UPDATE in the table 'psched_alerts': "):
            limited.try_rights()
        run_one(limited, "k")
        query(f"GRANT UPDATE ON {on}psched_alerts TO limited", **where)
        # These are all rights that the documentation lists: none on a sequence.
        limited.try_rights()
        one_raised(limited)
        limited.disconnect()
    finally:
        if postgresql:
            query("DROP OWNED BY limited", **where)
        query("DROP USER limited")
    store.try_rights()


def test_alerts_that_somebody_has_written_otherwise_are_read(store, sql):
    raised = one_raised(store, on_raise=("mail",))
    for text in "no JSON", "[1, 2]", '{"raised/mail": 7}', '{"raised/mail": {"tries": "x"}}':
        sql("UPDATE psched_alerts SET deliveries = :text, on_close = :text", text=text)
        (found,) = stored(store)
        assert (found.key, found.deliveries, found.on_close) == (raised.key, {}, ())

"""Tests of creating and upgrading the table, and of errors for a newer or missing table."""

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest
from sqlalchemy import make_url

from psched.base.errors import SchemaError, StoreBusyError
from psched.core.model import Row, Settlement
from psched.core.selection import Selection
from psched.core.store_protocol import Settled
from psched.stores.sql.schema import VERSION
from psched.testing.store_contract.alerts import one_closed
from support.stores import Sql, make_store, store_factory
from support.waiting import HANG_TIMEOUT, wait_until


@pytest.fixture
def bare(database):
    """A store on an empty database."""
    if database.kind == "sqlite":
        Path(make_url(database.url).database).touch()
    store = make_store(database.url)
    yield store
    store.disconnect()


@pytest.fixture
def age(sql, database):
    """A function that changes the table to one that an older version of psched has created."""

    def age():
        where = " ON {table}" if database.kind == "mariadb" else ""
        for index in ("due", "type", "label", "status"):
            sql(f"DROP INDEX psched_{index}{where}")
        for column in ("label", "options", "alive_time", "settled_by"):
            sql(f"ALTER TABLE {{table}} DROP COLUMN {column}")
        sql("UPDATE psched_info SET value = '0' WHERE name = 'schema_version'")

    return age


def every_table(table):
    """The names of all tables of a store, in the order in which they are created."""
    parts = ("runs", "workers", "audit", "output", "alerts", "info")
    return [table, *(f"{table}_{part}" for part in parts)]


def test_init_makes_the_table_and_says_so_once(bare):
    assert bare.init() == [f"created table {name}" for name in every_table("psched")]
    assert bare.init() == []
    bare.add([Row(key="k")], nonce="n")


def test_init_makes_the_folder_of_an_embedded_database(tmp_path):
    with store_factory(f"sqlite:///{tmp_path}/a/b/psched.db") as open_store:
        open_store().init()
        assert [*open_store().rows()] == []


@pytest.mark.parametrize(
    "request_it",
    [
        lambda store: store.now(),
        lambda store: store.get("k"),
        lambda store: store.add([Row(key="k")], nonce="n"),
        lambda store: store.claim("w.1", limit=1, alive_time=60, shortest=6, horizon=0),
    ],
    ids=["now", "get", "add", "claim"],
)
def test_without_the_table_every_request_names_it_and_the_mend(bare, request_it):
    for _ in range(2):
        with pytest.raises(SchemaError, match=r"'psched' does not exist.* `psched init`"):
            request_it(bare)
    bare.init()
    request_it(bare)


def test_a_table_that_goes_while_it_is_in_use_is_named_with_the_mend(store, sql):
    store.now()
    sql("DROP TABLE {table}")
    with pytest.raises(SchemaError, match=r"`psched init`: .*psched"):
        store.get("k")
    assert store.init() == ["created table psched"]
    assert store.get("k") is None


def test_a_missing_column_is_named_with_the_mend(store, sql):
    sql("ALTER TABLE {table} DROP COLUMN reason")
    with pytest.raises(SchemaError, match=r"`psched init`: .*reason"):
        store.get("k")
    assert store.init() == ["added column psched.reason"]
    assert store.get("k") is None


def test_an_older_table_is_refused_with_the_mend(store, open_store, age):
    store.now()
    age()
    with pytest.raises(SchemaError, match=r"version 0.*`psched init`"):
        open_store().now()


def test_an_older_table_is_upgraded_in_place_and_its_rows_stay(open_store, sql, age):
    open_store().add(
        [Row(key=f"k{number}", data='{"n": 1}', cron="@daily", delay=3) for number in range(50)],
        nonce="n",
    )
    age()
    before = sql("SELECT id, data, cron, delay, next_run_time, version FROM {table} ORDER BY id")
    done = open_store().init()
    assert sorted(done) == [
        "added column psched.alive_time",
        "added column psched.label",
        "added column psched.options",
        "added column psched.settled_by",
        "added index psched_due",
        "added index psched_label",
        "added index psched_status",
        "added index psched_type",
    ]
    after = sql("SELECT id, data, cron, delay, next_run_time, version FROM {table} ORDER BY id")
    assert after == before
    store = open_store()
    assert store.get("k7").cron == "@daily"
    assert store.init() == []
    store.add([Row(key="new", next_run_time=0, alive_time=9, options="{}")], nonce="n")
    claimed = store.claim("w.1", limit=10, alive_time=60, shortest=6, horizon=0)
    assert [row.key for row in claimed.rows] == ["new"]


def test_a_table_without_the_parts_for_listings_is_used_and_completed(open_store, database, sql):
    """They have no version: psched before and after works on the table with and without them."""
    here = socket.gethostname().lower()
    rows = [Row(key=f"{lane}", next_run_time=9, lane=lane) for lane in (here, "other")]
    rows.append(Row(key="before", next_run_time=9, label="reports"))
    open_store().add(rows, nonce="n")
    where = " ON {table}" if database.kind == "mariadb" else ""
    for index in ("type", "label", "status", "lane"):
        sql(f"DROP INDEX psched_{index}{where}")
    store = open_store()
    assert [row.key for row in store.rows(Selection(types=frozenset({"default"})))] == [
        each.key for each in sorted(rows, key=lambda row: row.key)
    ]
    assert [row.key for row in store.rows(Selection(labels=frozenset({"reports"})))] == ["before"]
    assert [*store.rows(Selection(labels=frozenset({"others"})))] == []
    claimed = store.claim("w.1", limit=10, alive_time=60, shortest=6, horizon=0).rows
    assert {row.key for row in claimed} == {"before", here}

    assert sorted(open_store().init()) == [
        "added index psched_label",
        "added index psched_lane",
        "added index psched_status",
        "added index psched_type",
    ]

    sql("INSERT INTO {table} (id, label) VALUES ('by SQL', 'reports')")
    store.add([Row(key="then", next_run_time=9, label="reports")], nonce="n")
    listed = store.rows(Selection(labels=frozenset({"reports"})))
    assert [row.key for row in listed] == ["by SQL", "then", "before"]  # which is leased


def test_options_that_are_no_text_can_be_written_and_quarantined(store, database, sql):
    """The database computes the label from them, and this must not fail."""
    value = "'\"label\":'" if database.kind == "postgresql" else "x'ff226c6162656c223a22fe'"
    sql(f"INSERT INTO {{table}} (id, options) VALUES ('k', {value.replace(':', chr(92) + ':')})")  # noqa: S608
    (row,) = store.claim("w.1", limit=1, alive_time=60, shortest=6, horizon=0).rows
    end = Settlement.of(row, rest=True, status="quarantined", reason="options: no JSON")
    assert store.settle([end]) == {"k": Settled.DONE}
    assert [*store.rows(Selection(labels=frozenset({"x"})))] == []


def test_a_newer_table_is_left_alone(store, open_store, sql):
    store.now()
    sql("UPDATE psched_info SET value = :newer WHERE name = 'schema_version'", newer=VERSION + 1)
    for request_it in (lambda: open_store().now(), lambda: open_store().init()):
        with pytest.raises(SchemaError, match=f"version {VERSION + 1}.*upgrade psched"):
            request_it()


def test_a_version_that_is_none_is_refused(open_store, sql):
    sql("UPDATE psched_info SET value = 'one' WHERE name = 'schema_version'")
    for request_it in (lambda: open_store().now(), lambda: open_store().init()):
        with pytest.raises(SchemaError, match="schema version 'one'"):
            request_it()


def _init_at_once(url, count=4):
    start = Barrier(count)

    def init(_number):
        store = make_store(url)
        start.wait(timeout=HANG_TIMEOUT)

        def done():
            # Another one may hold SQLite's lock for more than a second on a busy machine.
            with contextlib.suppress(StoreBusyError):
                return [store.init()]

        return wait_until(done, what="an init that is not kept waiting")[0]

    with ThreadPoolExecutor(count) as threads:
        return [*threads.map(init, range(count))]


def test_several_may_init_an_empty_database_at_once(database, open_store):
    table = Sql(database.url)
    table("DROP TABLE {table}")
    table("DROP TABLE psched_info")
    _init_at_once(database.url)
    store = open_store()
    assert store.init() == []
    store.add([Row(key="k")], nonce="n")


def test_several_may_upgrade_a_table_at_once(database, open_store, age):
    open_store().add([Row(key=f"k{number}") for number in range(50)], nonce="n")
    age()
    _init_at_once(database.url)
    store = open_store()
    assert store.init() == []
    assert len([*store.rows()]) == 50


@pytest.mark.parametrize("table", ["order", "Select", "group_by_2", "t" * 48])
def test_the_table_may_have_any_name_that_the_setting_takes(database, table):
    with store_factory(database.url, table=table) as open_store:
        store = open_store()
        assert store.init() == [f"created table {name}" for name in every_table(table)]
        assert store.init() == []
        store.add([Row(key="k", next_time=1, next_run_time=1)], nonce="n")
        (row,) = store.claim("w.1", limit=1, alive_time=60, shortest=6, horizon=0).rows
        assert store.extend({"k": row.token}, alive_time=60, shortest=6) == {"k"}
        assert store.replace(store.get("k"), store.get("k"))
        assert not store.delete("k")
        assert store.recover("w", alive_time=60, retry_wait=0) == ["k"]
        assert store.delete("k")
        closed = one_closed(store, on_raise=("mail",))
        (held,) = store.alerts.take_alerts("m", lease=60, limit=1)
        assert store.alerts.note_deliveries(replace(held, next_try=None))
        assert store.alerts.trim_alerts(before=closed.closed + 1, limit=1) == 1


def test_two_tables_in_one_database_are_two_stores(database):
    with (
        store_factory(database.url, table="one") as open_one,
        store_factory(database.url, table="other") as open_other,
    ):
        for store in (open_one(), open_other()):
            store.init()
            store.add([Row(key="k")], nonce="n")
        assert open_one().delete("k")
        assert open_other().get("k") is not None

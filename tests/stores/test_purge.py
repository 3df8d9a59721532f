"""Tests of purging: deleting finished rows after their retention time."""

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from psched.app import open_schedules
from psched.base.errors import StoreUnavailableError
from psched.core.model import CANCELLED, FINISHED, WAITING


@pytest.fixture
def now(store):
    return int(store.now())


@pytest.fixture
def insert(sql, store):  # noqa: ARG001  # the table is there
    """Insert finished rows that can be purged from a given time on."""

    def insert(prefix, retain_until, count=1, status=FINISHED):
        for number in range(count):
            sql(
                "INSERT INTO {table} (id, status, next_run_time, retain_until)"
                " VALUES (:id, :status, NULL, :until)",
                id=f"{prefix}{number}",
                status=status,
                until=retain_until,
            )

    return insert


def keys(store):
    return {row.key for row in store.rows()}


def test_only_what_is_to_be_kept_no_longer_is_removed(store, insert, sql, now):
    insert("long ago", 0)
    insert("just now", now, status=CANCELLED)
    insert("soon", now + 60)
    insert("for ever", None, status="failed")
    sql("INSERT INTO {table} (id) VALUES ('waiting')")
    assert store.purge(100) == 2
    assert keys(store) == {"soon0", "for ever0", "waiting"}
    assert store.purge(100) == 0


def test_no_more_than_a_lot_is_removed_at_once_and_what_ended_first_goes_first(store, insert, now):
    insert("late", now - 1, 5)
    insert("early", now - 1000, 5)
    assert store.purge(3) == 3
    assert len([key for key in keys(store) if key.startswith("early")]) == 2
    assert store.purge(3) == 3
    assert len(keys(store)) == 4
    assert {key[:4] for key in keys(store)} == {"late"}
    assert [store.purge(3), store.purge(3), store.purge(3)] == [3, 1, 0]
    assert keys(store) == set()


def test_a_lot_begins_where_the_last_one_ended_and_what_came_before_is_removed_later(
    store, insert, now
):
    """What was removed may still be in the index, so it is not passed while there is more."""
    insert("first", now - 100, 4)
    insert("next", now - 50, 3)
    assert store.purge(4) == 4
    insert("earlier", now - 1000)
    assert store.purge(4) == 3
    assert keys(store) == {"earlier0"}
    assert store.purge(4) == 1


def test_what_was_requeued_after_it_was_found_stays(database, store, insert, now):
    """Somebody requeues a row between the search for rows to purge and their deletion."""
    insert("k", now - 1, 2)
    found = store._connector.read(
        lambda c: c.execute(store._sql.purgeable, {"limit": 9, "since": 0}).scalars().all()
    )
    assert set(found) == {"k0", "k1"}
    with open_schedules({"url": database.url}) as schedules:
        schedules["k0"].requeue()
    assert store._write(*store._sql.purge(found)) == 1
    assert keys(store) == {"k0"}
    assert store.get("k0").retain_until is None
    assert store.purge(100) == 0


def test_what_plain_sql_has_put_back_to_work_stays(store, insert, sql, now):
    """A client that writes SQL need not know every column, so ``retain_until`` can still be set."""
    insert("k", now - 1, 3)
    sql("UPDATE {table} SET status = 'waiting', next_run_time = 0 WHERE id <> 'k0'")
    (held,) = store.claim("w.1", limit=1, alive_time=60, shortest=1, horizon=0).rows
    assert held.retain_until == now - 1
    assert store.purge(1) == 1
    assert store.purge(1) == 0
    assert keys(store) == {"k1", "k2"}
    assert {row.status for row in store.rows()} == {WAITING}


def test_two_that_purge_at_once_remove_each_row_once(open_store, insert, now):
    insert("k", now - 1, 20)
    one, other = open_store(), open_store()
    assert one.purge(15) + other.purge(15) == 20
    assert keys(one) == set()


@pytest.mark.parametrize(
    "database", [pytest.param("postgresql", marks=pytest.mark.postgresql)], indirect=True
)
def test_what_is_being_requeued_is_not_waited_for_long_and_stays(database, store, insert, now):
    """The purge must not wait long, because the worker must extend its leases."""
    insert("k", now - 1)
    engine = create_engine(database.url, poolclass=NullPool)
    with engine.connect() as person:
        with person.begin():
            person.exec_driver_sql(
                "UPDATE psched SET status = 'waiting', next_run_time = 0, retain_until = NULL"
            )
            with pytest.raises(StoreUnavailableError):
                store.purge(9)
        assert store.purge(9) == 0
    assert keys(store) == {"k0"}

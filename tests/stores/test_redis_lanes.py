"""Lanes in Redis: beside a version of psched without them, and lanes that are given up."""

from dataclasses import replace
from math import inf

import pytest

from psched.core.model import Row
from psched.core.selection import Selection
from psched.stores.redis.store import MOST_ADDED
from support.stores import store_factory

pytestmark = pytest.mark.redis

CLAIM = {"limit": 10, "alive_time": 60, "shortest": 6, "horizon": 0}
LATER = 4_000_000_000
DUE, LANE, ROW = "{psched}:due", "{psched}:lane:db1", "{psched}:row:k"


@pytest.fixture
def database(open_database):
    with open_database("redis") as database:
        yield database


@pytest.fixture
def store(database):
    with store_factory(database.url, host_name="db1") as open_store:
        store = open_store()
        store.init()
        yield store


def add(store, key="k", lane="db1", time=9):
    store.add([Row(key=key, next_time=time, next_run_time=time, lane=lane)], nonce="n")


def claimed(store, count=[0]):  # noqa: B006  # each owner is used once
    count[0] += 1
    return [row.key for row in store.claim(f"w.{count[0]}", **CLAIM).rows]


def test_a_row_that_an_older_worker_has_leased_or_ended_is_not_due(store, redis_cli):
    add(store)
    redis_cli("ZADD", DUE, LATER, "k")  # an older version changes this set alone
    assert store.backlog(10).due == 0
    assert claimed(store) == []
    assert float(redis_cli("ZSCORE", LANE, "k")) == LATER
    redis_cli("ZREM", DUE, "k")
    redis_cli("ZADD", LANE, 9, "k")
    assert claimed(store) == []
    assert float(redis_cli("ZSCORE", LANE, "k")) == inf


def test_a_row_that_an_older_client_makes_due_is_claimed(store, redis_cli):
    add(store, time=LATER)
    redis_cli("ZADD", DUE, 9, "k")
    assert claimed(store) + claimed(store) == ["k"]


def test_a_row_that_an_older_client_has_deleted_leaves_no_second_claim(store, redis_cli):
    add(store)
    redis_cli("DEL", ROW)
    redis_cli("ZREM", DUE, "k")
    add(store, "other", "db1")
    add(store, "k", None)
    assert sorted(claimed(store)) == ["k", "other"]
    assert claimed(store) == []


def test_a_leased_row_that_loses_its_hosts_is_found_although_rows_were_passed(store, redis_cli):
    now = int(store.now())
    rows = [
        Row(key=f"gone{i}", next_time=now - 9, next_run_time=now - 300 + i % 100, lane="gone")
        for i in range(1200)  # more than a claim reads at once
    ]
    for start in range(0, len(rows), MOST_ADDED):
        store.add(rows[start : start + MOST_ADDED], nonce="n")
    add(store, lane="db2", time=now - 290)
    redis_cli("HSET", ROW, "leased_by", "dead.1")  # its lease has ended
    assert claimed(store) == []
    seen = store.get("k")
    assert store.replace(seen, replace(seen, lane=None))
    assert claimed(store) == ["k"]


def test_the_rows_that_hosts_have_of_a_template_are_read_without_the_others(store, redis_cli):
    rows = [Row(key=f"t{i}@x", lane="@x", next_time=9, next_run_time=9) for i in range(300)]
    store.add([*rows, Row(key="t1@y", lane="@y", next_time=9, next_run_time=9)], nonce="n")

    def rows_read():
        return redis_cli("INFO", "commandstats").get("cmdstat_hmget", {"calls": 0})["calls"]

    before = rows_read()
    assert [row.key for row in store.rows(Selection.of_hosts("t1"))] == ["t1@x", "t1@y"]
    assert rows_read() - before < 10


def test_a_lane_without_rows_that_wait_is_forgotten(store):
    add(store, "a", "*db*")
    add(store, "b", "*db1 db2")
    store.delete("a")
    assert store.lanes(10) == ["*db1 db2"]
    assert claimed(store) == ["b"]

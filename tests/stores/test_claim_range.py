"""Claims beside a transaction that keeps a snapshot: what they cost, and that they miss nothing."""

import contextlib
import statistics
from dataclasses import replace as changed
from functools import partial
from math import inf

import pytest
from sqlalchemy import text

from psched.base.errors import StoreBusyError
from psched.core.model import Row, Settlement
from psched.core.store_protocol import Settled
from psched.stores.sql import claim_range, raw_execute
from psched.stores.sql.claim_range import Continuing
from support.stores import store_factory
from support.waiting import wait_until

KINDS = [
    pytest.param("mariadb", marks=pytest.mark.mariadb),
    pytest.param("postgresql", marks=pytest.mark.postgresql),
]
LEASE = {"alive_time": 600, "shortest": 1}
SNAPSHOT = {
    "mariadb": (
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    ),
    "postgresql": ("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM {table}"),
}

pytestmark = pytest.mark.parametrize("database", KINDS, indirect=True)


@pytest.fixture
def snapshot(database, sql, store):  # noqa: ARG001  # which has made the table
    """A transaction that reads nothing more, and prevents that old versions are removed."""
    with sql.session() as ask:
        for statement in SNAPSHOT[database.kind]:
            ask(statement)
        yield
        ask("ROLLBACK")


class Work:
    """Pushes, claims and ends tasks, and removes them."""

    def __init__(self, store):
        self._store = store
        self._claims = 0

    def claim(self, limit=20):
        self._claims += 1
        return self._store.claim(f"w.{self._claims}", limit=limit, horizon=1, **LEASE).rows

    def run(self, name, count, ago=100):
        due = int(self._store.now()) - ago
        # Keys at random places of the index, as users' keys are.
        keys = [f"{name}{number * 7919 % 100003}" for number in range(count)]
        self._store.add([Row(key=key, next_time=due, next_run_time=due) for key in keys], nonce="n")
        left = {*keys}
        while left:
            rows = self.claim()
            left -= {row.key for row in rows}
            self.end(rows)

    def end(self, rows):
        ends = [
            Settlement(
                key=row.key, token=row.token, version=row.version, next_time=None, remove=True
            )
            for row in rows
        ]
        assert {*self._store.settle(ends).values()} <= {Settled.DONE}


@pytest.fixture
def work(store):
    return Work(store)


@pytest.mark.usefixtures("snapshot")
def test_a_claim_does_not_pass_what_was_claimed_before(database, store, work, sql, monkeypatch):
    """Those that look at everything are rare. A few rows are read for each row that is claimed."""
    sent, answer = [], raw_execute.rows

    def keep(connection, statement, values):
        if "after_id" in values:
            sent.append((statement, dict(values)))
        return answer(connection, statement, values)

    work.run("a", 600)
    monkeypatch.setattr(raw_execute, "rows", keep)
    costs = []
    for part in range(8):
        work.run(f"b{part}.", 500)
        if database.kind == "postgresql":
            sql("ANALYZE {table}")  # as the server does by itself: the planner expects no row
        costs.append(store._connector.run(partial(passed, database.kind, *sent[-1])))
    assert statistics.median(costs) < 60, costs


def passed(kind, statement, values, connection):
    """How many pages a claim has looked at."""
    values = {**values, "owner": "cost.1"}
    explained = text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement.text}")
    connection.exec_driver_sql("BEGIN")
    try:
        if kind == "mariadb":
            before = pages(connection)
            connection.execute(statement, values).all()
            return pages(connection) - before
        ((plan,),) = connection.execute(explained, values).all()
    finally:
        connection.exec_driver_sql("ROLLBACK")
    top = plan[0]["Plan"]
    return top["Shared Hit Blocks"] + top["Shared Read Blocks"]


def pages(connection):
    """How many pages the private server MariaDB has looked at."""
    status = "SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_read_requests'"
    return int(connection.exec_driver_sql(status).one()[1])


@pytest.fixture(params=["at once", "by steps"])
def behind(request, store, work, monkeypatch):
    """Claims of a worker that has claimed many rows, with few or with very many old entries."""
    monkeypatch.setattr(claim_range, "_MANY", 40)
    strategy = store._claim_strategy()._inner
    assert isinstance(strategy, Continuing)
    strategy._many = 40
    work.run("before", 60, ago=1)
    if request.param == "by steps":
        work.claim()
        strategy._search = claim_range._Search(until=strategy.front[0], took=1.0)
    assert strategy.front[0] > store.now() - 10
    return strategy


def found(work, *keys):
    """Claim until these rows are claimed, and no other."""
    left = {*keys}

    def look():
        left.difference_update(row.key for row in work.claim(limit=2))
        return not left

    wait_until(look, what=f"the claims of {keys}")


def test_a_row_of_plain_sql_that_was_due_for_ever_is_claimed(behind, sql, work):  # noqa: ARG001
    sql("INSERT INTO {table} (id) VALUES ('plain')")
    found(work, "plain")


@pytest.mark.parametrize("ago", [3, 1000, 2**62])
def test_a_row_with_an_early_time_is_claimed(behind, store, work, ago):  # noqa: ARG001
    due = int(store.now()) - ago
    keys = [f"early{number}" for number in range(5)]
    store.add([Row(key=key, next_time=1, next_run_time=due) for key in keys], nonce="n")
    found(work, *keys)


def test_a_lease_that_has_ended_is_claimed(behind, store, work, sql):  # noqa: ARG001
    store.add([Row(key="lost", next_time=1, next_run_time=1)], nonce="n")
    found(work, "lost")
    sql("UPDATE {table} SET next_run_time = next_run_time - 1000")
    found(work, "lost")


def test_a_schedule_that_is_resumed_is_claimed(behind, store, work):  # noqa: ARG001
    paused = Row(key="paused", next_time=1, next_run_time=None, status="paused")
    store.add([paused], nonce="n")
    seen = store.get("paused")
    assert not work.claim()
    resumed = changed(seen, next_run_time=int(store.now()) - 500, status="waiting")
    assert store.replace(seen, resumed)
    found(work, "paused")


def test_what_another_worker_gives_back_is_claimed(behind, database, store, work):  # noqa: ARG001
    due = int(store.now()) - 500
    store.add([Row(key="back", next_time=due, next_run_time=due)], nonce="n")
    with store_factory(database.url) as open_store:
        other = open_store()
        (row,) = other.claim("other.1", limit=5, horizon=1, **LEASE).rows
        assert not work.claim()
        end = Settlement(key=row.key, token=row.token, version=row.version, next_time=due)
        assert other.settle([end]) == {"back": Settled.DONE}
    found(work, "back")


def test_a_hold_that_was_released_leaves_a_due_row_to_claim(behind, store, work):  # noqa: ARG001
    due = int(store.now()) - 500
    store.add([Row(key="held", next_time=due, next_run_time=due)], nonce="n")
    assert store.holds.hold({"held": "w.hold"}, **LEASE) == {"held"}
    assert not work.claim()
    store.holds.release({"held": "w.hold"})
    found(work, "held")


def test_rows_are_claimed_after_the_stores_clock_was_set_back(behind, store, work):
    """As after an hour, when the place is an hour ahead of the clock."""
    time, key = behind.front
    behind.front = time + 3600, key
    due = int(store.now())
    store.add([Row(key="now", next_time=due, next_run_time=due)], nonce="n")
    found(work, "now")
    assert behind.front[0] <= store.now()


def test_rows_that_are_due_longest_come_first_again_if_many_are_found(behind, store, work):  # noqa: ARG001
    due = int(store.now()) - 5000
    keys = [f"many{number:03}" for number in range(200)]
    rows = [Row(key=key, next_time=1, next_run_time=due + n) for n, key in enumerate(keys)]
    store.add(rows, nonce="n")
    wait_until(lambda: [row.key for row in work.claim(limit=2)] == keys[:2], what="the first")
    # From there each claim continues, and need not wait for the next look.
    following = [row.key for _ in range(20) for row in work.claim(limit=5)]
    assert following == keys[2:102]


def test_a_look_that_fails_is_followed_by_shorter_ones(behind, store, work, monkeypatch):
    """A look at everything may take longer than the server lets it."""
    behind._search, behind._next_look = None, 0.0
    real = behind._inner.claim

    def refuse(*args):
        if args[-1].after[0] < int(store.now()) - 10_000:
            raise StoreBusyError("canceling statement due to statement timeout")
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(behind._inner, "claim", refuse)
        patch.setattr(claim_range, "_LONG", -1.0)
        with pytest.raises(StoreBusyError):
            work.claim()
        due = int(store.now()) - 1
        store.add([Row(key="new", next_time=due, next_run_time=due)], nonce="n")
        with contextlib.suppress(StoreBusyError):
            found(work, "new")
    assert store.get("new").owner is not None


@pytest.mark.parametrize("look", [inf, -inf], ids=["later", "falls due meanwhile"])
def test_the_claim_after_a_settlement_is_sent_with_it_between_two_looks(
    behind, store, work, look, monkeypatch
):
    due = int(store.now())
    store.add([Row(key=key, next_time=due, next_run_time=due) for key in "xy"], nonce="n")
    behind._next_look = inf
    [first] = work.claim(limit=1)
    behind._next_look = look
    if look < 0:
        monkeypatch.setattr(Continuing, "is_quick", True)  # as it was a moment before
    end = Settlement(
        key=first.key, token=first.token, version=first.version, next_time=None, remove=True
    )
    settled, claimed = store.settle_and_claim([end], "w.with", limit=1, horizon=1, **LEASE)
    assert settled == {first.key: Settled.DONE}
    assert [row.key for row in claimed.rows] == ["y"]

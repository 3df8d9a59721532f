"""Tests of workers of the version without a run history beside those with one, on the same data."""

import contextlib
import itertools
import random
import sqlite3
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as changed

import pytest

from psched.base.errors import SchemaError, StoreError
from psched.core.attempts import returned
from psched.core.history.records import Outcome, RunRecord, WorkerRecord
from psched.core.model import Row, Settlement
from psched.core.store_protocol import ExpiredLease, Settled
from psched.stores.sql.connector import LOCK_WAIT
from support.old_redis import OldWorker
from support.older_worker import OlderWorker
from support.service import services
from support.waiting import PATIENCE

CLAIM = {"limit": 100, "alive_time": 60, "shortest": 6, "horizon": 0}

NAMES = ("runs", "workers", "audit")


@pytest.fixture
def age(sql):
    """A function that takes away from the table all that the version with a run history adds."""

    def age():
        for name in NAMES:
            sql(f"DROP TABLE psched_{name}")
        sql("ALTER TABLE {table} DROP COLUMN claimed_at")
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
    assert "psched_runs" in store.history_problem()
    store.add(due("a", "b"), nonce="n")
    rows = store.claim("w.1", **CLAIM).rows
    assert {row.claimed_at for row in rows} == {None}
    assert set(store.settle([ending(row) for row in rows]).values()) == {Settled.DONE}
    assert not store.unwritten
    with pytest.raises(SchemaError, match=r"psched_runs.*`psched init`"):
        store.runs()
    store.try_rights()


def test_on_a_table_without_a_history_rows_are_leased_by_their_keys_and_replaced(
    store, age, open_at, database
):
    age()
    late = open_at(database.url)
    late.add(due("k"), nonce="n")
    seen = late.get("k")
    records = ending(seen).records
    assert late.replace_and_record(seen, changed(seen, type="new"), records)
    assert not late.unwritten
    (row,) = late.claim_keys("w.1", ["k"], alive_time=60, shortest=6)
    assert (row.type, row.attempt, row.claimed_at) == ("new", 0, None)
    assert late.recover("w", alive_time=60, retry_wait=0.0) == ["k"]
    assert returned(store.get("k")) == (60, 0)


def test_a_worker_that_is_connected_notices_the_upgrade_when_it_asks(store, open_at, database, age):
    age()
    assert store.history_problem() is not None
    store.add(due("k"), nonce="n")
    (row,) = store.claim("w.1", **CLAIM).rows
    other = open_at(database.url)
    assert {line.split()[-1] for line in other.init()} == {
        "psched.claimed_at",
        *(f"psched_{name}" for name in NAMES),
    }
    assert other.plan_init() == []
    assert store.history_problem() is None
    assert store.settle([ending(row)]) == {"k": Settled.DONE}
    assert [each.key for each in store.runs()] == ["k"]
    store.add(due("then"), nonce="n")
    store.claim("w.2", **CLAIM)
    assert store.get("then").claimed_at is not None


def test_a_table_of_workers_without_clock_offsets_is_used_as_before(store, sql, open_at, database):
    sql("ALTER TABLE psched_workers DROP COLUMN clock_offset")
    worker = WorkerRecord(
        nonce="w",
        host="h",
        pid=1,
        number=0,
        generation=1,
        slots=1,
        busy=0,
        types=None,
        started=0,
        seen=0,
        clock_offset=5,
    )
    assert store.history_problem() is None
    store.try_rights()
    store.beat(worker)
    store.beat(worker)
    (seen,) = store.workers()
    assert (seen.host, seen.clock_offset) == ("h", None)
    (line,) = open_at(database.url).init()
    assert line == "added column psched_workers.clock_offset"
    later = open_at(database.url)
    (seen,) = later.workers()
    assert seen.clock_offset is None
    later.beat(worker)
    (seen,) = store.workers()
    assert seen.clock_offset is None  # this store was opened before
    (seen,) = later.workers()
    assert seen.clock_offset == 5


def test_the_plan_is_what_init_executes_and_changes_nothing(store, age):
    assert store.plan_init() == []
    age()
    plan = store.plan_init()
    assert store.plan_init() == plan
    assert store.history_problem() is not None
    assert [sql for sql, _ in plan if sql.startswith("ALTER TABLE psched ADD COLUMN claimed_at")]
    assert sum("CREATE TABLE" in sql for sql, _ in plan) == len(NAMES)
    assert all(lock for _, lock in plan)
    store.init()
    assert store.plan_init() == []


def test_workers_without_a_history_run_on_the_upgraded_table(store, sql, settings):
    older = OlderWorker(store, sql, settings, nonce="old")
    store.add(due("old", "new"), nonce="n")
    held = older.claim("old")
    assert (held.owner, held.claimed_at) == ("old.1", None)
    (row,) = store.claim("new.1", **CLAIM).rows
    assert row.key == "new"
    assert store.get("new").claimed_at is not None
    older.finish(held)
    assert store.settle([ending(row)]) == {"new": Settled.DONE}
    assert [each.key for each in store.runs()] == ["new"]
    assert {each.owner for each in store.rows()} == {None}
    # A lease of an old worker that has expired is taken over.
    sql("UPDATE {table} SET next_run_time = 60 WHERE id = 'old'")
    older.claim("old")
    sql("UPDATE {table} SET next_run_time = 60 WHERE id = 'old'")
    claimed = store.claim("new.2", **CLAIM)
    if claimed.rows:  # on SQLite, a clock that was set lately keeps a lease from expiring
        (expired,) = claimed.expired.values()
        assert (expired.token.owner, expired.claimed_at) == ("old.2", None)


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
        with pytest.raises(StoreError, match=r"^cannot execute 'ALTER TABLE psched ADD COLUMN "):
            limited.init()
        limited.try_rights()  # the schedules can be used
        limited.disconnect()
    finally:
        if postgresql:
            query("DROP OWNED BY limited", **where)
        query("DROP USER limited")
    assert store.history_problem() is not None


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
    assert store.history_problem() is None


class NewWorker:
    """Sends the requests of `OldWorker` as this version does."""

    def __init__(self, store):
        self._store = store

    def claim(self, owner, **how):
        claimed = self._store.claim(owner, **{**CLAIM, **how})
        return claimed.rows, claimed.expired.keys()

    def settle(self, end):
        return self._store.settle([end])[end.key]

    def recover(self, nonce):
        return self._store.recover(nonce, alive_time=60, retry_wait=0)


@pytest.mark.redis
class TestRedis:
    """Tests on Redis, where `psched init` need not add anything to the data of the old version."""

    OLD_RIGHTS = "~{psched}* +@connection +eval +evalsha +time +@hash +@sortedset +del +exists"
    """A user who may send the commands of the old version, and no other ones."""

    @pytest.fixture
    def database(self, open_database):
        with open_database("redis") as database:
            yield database

    @pytest.fixture
    def redis_cli(self, database):
        """A function that sends a command to the server."""
        number = int(database.url.rpartition("/")[2])
        return lambda *command: database.server.query(*command, db=number)

    @pytest.fixture
    def old(self, database):
        with OldWorker(database.url) as old:
            yield old

    @pytest.fixture
    def expire(self, redis_cli):
        """A function that ends the leases of rows as if their time were over."""
        return lambda *keys: [redis_cli("ZADD", "{psched}:due", 1, key) for key in keys]

    def test_each_occurrence_runs_once_whoever_runs_it(self, store, old, expire):
        """Both versions claim, settle and recover leases in a random order, and let them expire."""
        keys, times = [f"k{number}" for number in range(12)], range(60, 660, 60)
        workers = {"old": old, "new": NewWorker(store)}
        draw, numbers = random.Random(1), itertools.count()  # noqa: S311  # repeatable
        leases, dead, ran, recovered, seen = [], {}, [], [], set()
        store.add(due(*keys), nonce="n")
        while len(ran) < len(keys) * len(times):
            version, do = draw.choice(["old", "new"]), draw.choice(["settle", "recover", "expire"])
            if not leases or draw.random() < 0.4:
                nonce = f"{version}{next(numbers)}"
                rows, expired = workers[version].claim(f"{nonce}.1", limit=3)
                assert {*expired} == {row.key for row in rows if row.key in dead}
                for lease in map(dead.pop, expired):
                    seen.add((lease.owner[:3], "expire", version))
                    assert workers[lease.owner[:3]].settle(ending(lease)) is Settled.PREEMPTED
                leases += [(nonce, rows)] if rows else []
                continue
            nonce, rows = leases.pop(draw.randrange(len(leases)))
            if do == "settle":
                for row in rows:
                    last = row.next_time == times[-1]
                    end = ending(row, next_time=row.next_time + 60, not_before=0, rest=last)
                    assert workers[nonce[:3]].settle(end) is Settled.DONE
                    ran.append((row.key, row.next_time, row.owner))
            elif do == "recover":
                assert {*workers[version].recover(nonce)} == {row.key for row in rows}
                seen.add((nonce[:3], do, version))
                if version == "new":
                    recovered += [(row.key, row.next_time, row.owner) for row in rows]
            else:
                expire(*(row.key for row in rows))
                dead |= {row.key: row for row in rows}
        assert len(seen) == 8, "leases of each version were lost in each way to each version"
        assert Counter(run[:2] for run in ran) == Counter(itertools.product(keys, times))
        assert {(row.owner, row.next_run_time) for row in store.rows()} == {(None, None)}
        assert store.lost_records == 0
        found = defaultdict(Counter)
        for each in store.runs():
            found[each.outcome][each.key, each.scheduled_time, each.owner] += 1
        assert found == {
            Outcome.FINISHED: Counter(run for run in ran if run[2].startswith("new")),
            Outcome.LOST: Counter(recovered),
        }

    def test_the_time_of_a_claim_is_never_that_of_another_versions_claim(self, store, old, expire):
        store.add(due("k"), nonce="n")
        (row,) = store.claim("new.1", **CLAIM).rows
        assert store.get("k").claimed_at == row.claimed_at is not None
        expire("k")
        ((lease,), expired) = old.claim("old.1")
        assert expired == {"k"}
        assert store.get("k").claimed_at is None
        expire("k")
        claimed = store.claim("new.2", **CLAIM)
        assert claimed.expired == {"k": ExpiredLease(lease.token, None)}
        assert old.recover("new") == ["k"]
        store.claim("new.3", **CLAIM)
        assert store.recover("new", alive_time=60, retry_wait=0) == ["k"]
        assert old.claim("old.2")[0]
        assert store.recover("old", alive_time=60, retry_wait=0) == ["k"]
        assert [(each.owner, each.started is None) for each in store.runs()] == [
            ("old.2", True),
            ("new.3", False),
        ]

    def test_an_end_that_is_repeated_after_a_claim_by_the_old_version_is_recorded_once(
        self, store, old
    ):
        store.add(due("k"), nonce="n")
        (row,) = store.claim("new.1", **CLAIM).rows
        end = ending(row, not_before=0)
        assert store.settle([end]) == {"k": Settled.DONE}
        assert old.claim("old.1")[0]
        assert store.settle([end]) == {"k": Settled.DONE}
        assert [each.owner for each in store.runs()] == ["new.1"]
        assert store.get("k").owner == "old.1"

    def test_data_that_the_old_version_has_initialised_need_nothing_more(self, database, open_at):
        with OldWorker(database.url) as old:
            old.init()
            store = open_at(database.url)
            store.add(due("k"), nonce="n")
            assert store.history_problem() is None
            assert store.init() == []
            (row,) = store.claim("new.1", **CLAIM).rows
            assert store.settle([ending(row)]) == {"k": Settled.DONE}
            assert [each.owner for each in store.runs()] == ["new.1"]

    @pytest.mark.usefixtures("store")
    def test_a_user_with_the_rights_of_the_old_version_runs_as_before(
        self, database, redis_cli, tmp_path
    ):
        redis_cli("ACL", "SETUSER", "u", "reset", "on", ">x", *self.OLD_RIGHTS.split())
        try:
            with services(tmp_path) as make:
                service = make(database.url.replace("://", "://u:x@"), processors=2)
                shown = service.psched("check").stdout
                for key in "abc":
                    service.add(key)
                master = service.start()
                for key in "abc":
                    service.wait_for_finish(key)
                assert master.stop() == 0
        finally:
            redis_cli("ACL", "DELUSER", "u")
        assert "  history: not kept: the server refuses XADD, XDEL, " in shown
        assert master.text.count("no run history is kept: the server refuses XADD, XDEL, ") == 1
        assert " ERROR " not in master.text
        assert redis_cli("KEYS", "{psched}:runs*") == []

"""Tests of the upgrade from schema version 2, or from layout 1 on Redis, to the present one."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest

from psched.base.errors import SchemaError
from psched.core.model import Row
from support.old_redis import OldWorker
from support.older_worker import OlderWorker
from support.run_records import worker_record

CLAIM = {"limit": 100, "alive_time": 60, "shortest": 6, "horizon": 0}
LATER = 2_100_000_000

# What version 2 has stored while the worker of an extra run held the lease of its schedule.
RETURNS_LATER = -(1000 * (1000 * LATER + 3 + 1) + 999)
RETURNS_TO_REST = -(1000 * (0 + 1) + 999)

# And if a schedule went on after the time 1000.
AFTER_1000 = -(1000 * 1000 + 999)

CHANGES = {
    "runs": {"owner": "v2.1", "fence": 4, "attempt": 2, "next_run_time": LATER},
    "lent": {"owner": "v2.2", "fence": 9, "attempt": RETURNS_LATER, "next_run_time": 99},
    "paused": {
        "owner": "v2.3",
        "attempt": RETURNS_TO_REST,
        "next_run_time": 99,
        "status": "paused",
        "reason": "r",
    },
    "recovered": {"attempt": RETURNS_LATER, "next_run_time": 99},
    "claimed again": {"owner": "v2.4", "attempt": RETURNS_LATER + 2, "next_run_time": 99},
    "undecided": {"next_time": None, "attempt": AFTER_1000, "next_run_time": 99},
    "undecided, claimed": {"next_time": None, "attempt": AFTER_1000 + 2, "next_run_time": 99},
    "moved": {"attempt": -1},
    "died": {"reason": "its worker died", "attempt": 1},
    "by ann": {
        "status": "paused",
        "next_run_time": 1_800_020_040,
        "reason": "paused 2027-01-15T12:00+00:00 until 2027-01-15T15:04+01:30 by ann@web1: a by b",
    },
    "endless": {
        "owner": "v2.5",
        "status": "paused",
        "next_run_time": LATER,
        "reason": "paused 2024-02-29T23:00:59-05:00 by ann@web1",
    },
    "stopped": {
        "owner": "v2.6",
        "status": "stopping",
        "next_run_time": LATER,
        "reason": "paused 2027-01-15T12:00+00:00 by ann@web1; stopped by bob@web2: it hangs",
    },
    "by failures": {
        "status": "paused",
        "next_run_time": None,
        "reason": "paused after 3 failures in a row: exit status 1",
    },
    "by sql": {"status": "paused", "next_run_time": None, "reason": "paused: ask ann"},
    "labelled": {"options": '{"label": "R\\u00e9ports \\"2\\"", "jitter": 9}'},
    "labelled alike": {"options": '{"label": "R\\u00e9ports \\"2\\"", "jitter": 9}'},
    "labelled only": {"options": '{"label":"x"}'},
    "labelled by nonsense": {"options": '{"label":5,"jitter":9}'},
    "no label": {"options": '{"note":"a \\"label\\": x"}'},
    "no options": {"options": '"label" but no JSON'},
}

NAMES = ("free", *CHANGES)

NOON = 1_800_014_400

DUE = {"free", "undecided", "undecided, claimed", "moved", "died", "labelled", "labelled alike"}
DUE |= {"labelled only", "labelled by nonsense", "no label", "no options"}

TOLD = {
    "undecided": {"attempt": 0, "decided_until": 1000},
    "undecided, claimed": {"attempt": 0, "decided_until": 1000},
    "moved": {"attempt": 0, "moved_at": True},
    "died": {"reason_code": "worker_died"},
    "by ann": {
        "reason_code": "paused",
        "paused_at": NOON,
        "paused_until": NOON + 5640,
        "pause_note": "ann@web1: a by b",
    },
    "endless": {"reason_code": "paused", "paused_at": 1_709_265_659, "pause_note": "ann@web1"},
    "stopped": {
        "reason": "stopped by bob@web2: it hangs",
        "reason_code": "stopped",
        "paused_at": NOON,
        "pause_note": "ann@web1",
    },
    "by failures": {"reason_code": "paused_after_failures"},
    "labelled": {"label": 'Réports "2"', "options": '{"jitter":9}'},
    "labelled alike": {"label": 'Réports "2"', "options": '{"jitter":9}'},
    "labelled only": {"label": "x", "options": None},
}
"""What the upgrade writes besides what it gives back to lent rows."""


def fields(row):
    names = ("next_time", "next_run_time", "owner", "fence", "attempt", "status", "reason")
    names += ("options", "label")
    new = ("decided_until", "reason_code", "paused_at", "paused_until", "pause_note")
    moved = None if row.moved_at is None else row.moved_at > NOON - 86_400 * 366
    found = {name: getattr(row, name) for name in (*names, *new)} | {"moved_at": moved}
    # Databases write JSON with blanks or without.
    return found | {"options": plain(row.options)}


def plain(options):
    with suppress(TypeError, ValueError):
        return json.loads(options)
    return options.decode() if isinstance(options, bytes) else options


def expected(before):
    """The rows after the upgrade, given those that were added before `CHANGES`."""
    rows = {
        key: fields(row) | CHANGES.get(key, {}) | TOLD.get(key, {}) for key, row in before.items()
    }
    for row in rows.values():
        row["options"] = plain(row["options"])
    back = {"next_run_time": LATER, "owner": None, "attempt": 3}
    for key in "lent", "recovered", "claimed again":
        rows[key] |= back
    rows["paused"] |= {"next_run_time": None, "owner": None, "attempt": 0}
    return rows


def added(store):
    store.add(
        [Row(key=k, cron="* * * * *", next_time=60, next_run_time=60) for k in NAMES], nonce="n"
    )
    return store.look(NAMES)


NEW = (
    *("held_by", "held_until", "decided_until", "moved_at", "local_time", "reason_code"),
    *("paused_at", "paused_until", "pause_note", "lane", "run_as", "tenant", "priority"),
    *("concurrency_key", "checkpoint"),
)

WORKERS_NEW = ("zone_data", "labels", "version", "python")


COMPUTED = {
    "sqlite": "TEXT GENERATED ALWAYS AS (substr(CAST(options AS TEXT), 11, 2))",
    "postgresql": "TEXT GENERATED ALWAYS AS (substr(options, 11, 2)) STORED",
    "mariadb": "VARBINARY(1020) GENERATED ALWAYS AS (SUBSTRING(options, 11, 2)) STORED",
}


@pytest.fixture
def age(sql, database):
    """A function that makes the table one of version 2."""

    def age():
        rename = "RENAME COLUMN leased_by TO owner"
        if database.kind == "mariadb":
            rename = "CHANGE leased_by owner VARCHAR(64) COLLATE utf8mb4_bin"
        for index in "held", "lane":
            where = " ON {table}" if database.kind == "mariadb" else ""
            sql(f"DROP INDEX psched_{index}{where}")
        for change in (rename, *(f"DROP COLUMN {name}" for name in NEW)):
            sql(f"ALTER TABLE {{table}} {change}")
        # Version 2 had the database compute the label.
        sql(f"DROP INDEX psched_label{' ON {table}' if database.kind == 'mariadb' else ''}")
        sql("ALTER TABLE {table} DROP COLUMN label")
        sql(f"ALTER TABLE {{table}} ADD COLUMN label {COMPUTED[database.kind]}")
        sql("CREATE INDEX psched_label ON {table} (label, id)")
        sql("ALTER TABLE psched_runs DROP COLUMN reason_code")
        for name in WORKERS_NEW:
            sql(f"ALTER TABLE psched_workers DROP COLUMN {name}")
        if database.kind == "mariadb":
            # A column that was dropped at once still takes space in each row until then.
            for table in "{table}", "psched_runs", "psched_workers":
                sql(f"ALTER TABLE {table} FORCE")
        sql("UPDATE psched_info SET value = '2' WHERE name = 'schema_version'")

    return age


@pytest.fixture
def fill(sql):
    """A function that changes rows as version 2 has left them."""

    def fill():
        for key, columns in CHANGES.items():
            values = ", ".join(f"{name} = :{name}" for name in columns)
            sql(f"UPDATE {{table}} SET {values} WHERE id = :key", key=key, **columns)  # noqa: S608

    return fill


def test_version_2_is_refused_and_upgraded_in_place(store, age, fill):
    before = added(store)
    age()
    fill()
    assert "reason LIKE 'paused after %'" in str([*store.plan_init()])
    store.disconnect()
    with pytest.raises(SchemaError, match=r"has schema version 2, .* 3; run `psched init`"):
        store.now()
    assert store.init() == [
        "renamed column psched.owner to leased_by",
        *(f"added column psched.{name}" for name in (*NEW[:9], "label", *NEW[9:])),
        "added index psched_held",
        "added index psched_label",
        "added index psched_lane",
        "added column psched_runs.reason_code",
        *(f"added column psched_workers.{name}" for name in WORKERS_NEW),
    ]
    assert {key: fields(row) for key, row in store.look(NAMES).items()} == expected(before)
    assert store.init() == []
    claimed = {row.key for row in store.claim("w.1", **CLAIM).rows}
    assert claimed == DUE


def test_an_upgrade_that_stopped_anywhere_is_continued(store, sql, age, fill):
    before = added(store)
    number = 0
    while True:
        age()
        fill()
        statements = [statement for statement, _ in store.plan_init()]
        for statement in statements[:number]:
            sql(statement)
        store.init()
        assert {key: fields(row) for key, row in store.look(NAMES).items()} == expected(before)
        assert store.plan_init() == []
        if number == len(statements):
            break
        number += 1
        for key, row in before.items():
            seen = store.get(key)
            values = {"time": row.next_run_time, "version": seen.version}
            sql(
                "UPDATE {table} SET leased_by = NULL, fence = 0, attempt = 0, next_time = 60,"
                " status = 'waiting', reason = NULL, options = NULL, next_run_time = :time,"
                " version = :version WHERE id = :key",
                key=key,
                **values,
            )


def test_a_number_that_no_version_has_written_becomes_none(store, sql, age):
    added(store)
    age()
    sql("UPDATE {table} SET attempt = :least WHERE id = 'free'", least=-(2**63))
    store.init()
    assert store.get("free").attempt == 0


V2 = worker_record(nonce="v2", host="h1", pid=17)


def test_it_is_refused_while_older_workers_are_registered(store, sql, age):
    store.history.beat(V2)
    age()
    with pytest.raises(SchemaError, match=r"workers of an older psched run on .* h1 \(pid 17\);"):
        store.init()
    assert len(store.plan_init()) > 0
    [(seen,)] = sql("SELECT seen FROM psched_workers")
    for gone in "ended = seen", "seen = seen - 91":
        sql(f"UPDATE psched_workers SET {gone}")  # noqa: S608
        store.init()
        age()
        sql("UPDATE psched_workers SET ended = NULL, seen = :seen", seen=seen)
    assert store.init(force=True)
    assert store.init() == []


def test_an_older_worker_that_runs_all_the_same_can_do_nothing(store, sql, settings, age):
    added(store)
    age()
    older = OlderWorker(store, sql, settings)
    sql(
        "UPDATE {table} SET owner = 'older.1', fence = 1, next_run_time = :end WHERE id = 'runs'",
        end=LATER,
    )
    store.init(force=True)
    row = store.get("runs")
    with pytest.raises(Exception, match="owner"):
        older.claim("free")
    with pytest.raises(Exception, match="owner"):
        older.finish(row)
    with pytest.raises(Exception, match="owner"):
        sql("UPDATE {table} SET next_run_time = 1 WHERE owner = 'older.1' AND fence = 1")
    assert (store.get("runs"), store.get("free").fence) == (row, 0)


# --- Redis ------------------------------------------------------------------------------

on_redis = pytest.mark.parametrize(
    "database", [pytest.param("redis", marks=pytest.mark.redis)], indirect=True
)


@pytest.fixture
def age_layout(redis_cli):
    """A function that makes the layout that of version 1, with the rows of `CHANGES`."""

    def age_layout():
        redis_cli("RENAME", "{psched}:layout", "{psched}:info")
        redis_cli("HSET", "{psched}:info", "version", "1")
        for key, columns in CHANGES.items():
            row, given = f"{{psched}}:row:{key}", {**columns}
            due = given.pop("next_run_time", 60)
            if due is None:
                redis_cli("ZREM", "{psched}:due", key)
                redis_cli("ZADD", "{psched}:rest", 0, key)
            else:
                redis_cli("ZADD", "{psched}:due", due, key)
            if given.get("owner"):
                redis_cli("ZADD", "{psched}:held", 0, f"{given['owner']}\0{key}")
            for name, value in given.items():
                if value is None:
                    redis_cli("HDEL", row, name)
                else:
                    redis_cli("HSET", row, name, value)

    return age_layout


@on_redis
def test_layout_1_is_refused_and_upgraded_in_place(store, age_layout):
    before = added(store)
    age_layout()
    store.disconnect()
    with pytest.raises(SchemaError, match=r"have an older layout, .* run `psched init`"):
        store.now()
    assert [line.split(" on ")[0] for line in store.init()] == ["upgraded psched"]
    assert {key: fields(row) for key, row in store.look(NAMES).items()} == expected(before)
    assert store.init() == []
    assert [row.key for row in store.held("v2.1", ())] == ["runs"]
    assert not store.held("v2.2", ())
    claimed = {row.key for row in store.claim("w.1", **CLAIM).rows}
    assert claimed == DUE


@on_redis
def test_an_upgrade_of_a_layout_that_stopped_is_continued(store, age_layout, redis_cli):
    before = added(store)
    age_layout()
    redis_cli("RENAME", "{psched}:info", "{psched}:upgrading")
    store.disconnect()
    with pytest.raises(SchemaError, match="their upgrade has not ended; run `psched init`"):
        store.now()
    store.init()
    assert {key: fields(row) for key, row in store.look(NAMES).items()} == expected(before)


@on_redis
def test_many_rows_of_a_layout_are_upgraded_in_several_requests(store, redis_cli):
    keys = [f"k{number}" for number in range(1000)]
    store.add([Row(key=key, next_time=60, next_run_time=60) for key in keys], nonce="n")
    for key in keys:
        redis_cli("HSET", f"{{psched}}:row:{key}", "attempt", RETURNS_LATER)
    redis_cli("RENAME", "{psched}:layout", "{psched}:info")
    redis_cli("HSET", "{psched}:info", "version", "1")
    store.init()
    found = store.look(keys)
    assert {(row.next_run_time, row.attempt) for row in found.values()} == {(LATER, 3)}


@on_redis
def test_a_layout_is_not_upgraded_while_older_workers_are_registered(store, age_layout):
    store.history.beat(replace(V2, nonce="gone", ended=0))
    store.history.beat(V2)
    age_layout()
    with pytest.raises(SchemaError, match=r"workers of an older psched run on .*: v2; stop"):
        store.init()
    assert store.init(force=True)


@on_redis
def test_an_older_worker_can_do_nothing_on_the_upgraded_layout(store, age_layout, database):
    added(store)
    age_layout()
    store.init(force=True)
    rows = store.look(NAMES)
    with OldWorker(database.url) as older:
        with pytest.raises(Exception, match=r"None|unpack"):
            older.claim("old.1")
        assert older.recover("v2") == []
    assert store.look(NAMES) == rows

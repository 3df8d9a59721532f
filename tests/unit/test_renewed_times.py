"""Tests of the rows that a worker moves when it starts with newer zone data."""

from dataclasses import replace as changed

import pytest

from psched import config
from psched.app import make_store
from psched.core.columns import LATEST_TIME
from psched.core.declare import declare
from psched.core.model import PAUSED, ReasonCode, Row
from psched.worker.chores import renew_times
from support.run_records import worker_record
from support.tables import fill_sqlite
from support.zone_data import NAME, zone_data

NOON = 4_000_017_600  # 2096-10-03T08:00:00Z; later than the store's clock
OLD, NEW = "1999a", "2999a"
COUNT = 1200


@pytest.fixture
def store(tmp_path):
    url = fill_sqlite(tmp_path / "psched.db")
    store = make_store(config.from_mapping({"url": url}))
    yield store
    store.disconnect()


@pytest.fixture
def settings(store):  # noqa: ARG001  # which makes the file
    return config.from_mapping({"url": "sqlite:///unused.db"})


@pytest.fixture
def host(monkeypatch):
    """A function that makes this a host with other zone data: an offset in minutes, a release."""
    with zone_data(monkeypatch) as host:
        yield host


def daily(key, settings, **columns):
    fields = {"cron": "0 12 * * *", "timezone": NAME, "delay": 30}
    return changed(declare(key, fields, settings, lambda: NOON), **columns)


def renew(store, settings):
    return sum(1 for _ in renew_times(store, settings))


def test_rows_that_wait_are_moved_to_their_local_time(store, settings, host):
    host(0, OLD)
    rows = [daily(f"k{number}", settings) for number in range(COUNT)]
    store.add(rows, nonce="n")
    store.history.beat(worker_record(zone_data=OLD))
    host(60, NEW)
    assert renew(store, settings) > COUNT / 500
    for row in store.rows():
        assert (row.next_time, row.next_run_time) == (
            rows[0].next_time - 3600,
            rows[0].next_time - 3600 + 30,
        )
        assert row.reason_code == ReasonCode.NEW_ZONE_DATA
        assert row.local_time[:19] == rows[0].local_time[:19]
        assert row.local_time.endswith(NEW)
    before = store.look(["k7"])
    renew(store, settings)
    assert store.look(["k7"]) == before


def test_what_is_paused_is_moved_and_stays_paused(store, settings, host):
    host(0, OLD)
    row = daily("k", settings)
    store.add([row], nonce="n")
    seen = store.get("k")
    store.replace(
        seen, changed(seen, status=PAUSED, next_run_time=None, reason="by ann", paused_at=7)
    )
    host(-1, NEW)
    renew(store, settings)
    after = store.get("k")
    assert (after.next_time, after.next_run_time) == (row.next_time + 60, None)
    assert (after.status, after.reason, after.paused_at) == (PAUSED, "by ann", 7)


@pytest.mark.parametrize(
    "columns",
    [
        {"status": "cancelled", "next_run_time": None},
        {"attempt": 1},
        {"local_time": None},
        {"cron": "@every 60"},
        {"cron": "nonsense"},
        {"options": "[]"},
        {"lane": "&*", "next_run_time": LATEST_TIME},  # each host runs a row of its own
    ],
    ids=str,
)
def test_other_rows_stay(store, settings, host, columns):
    host(0, OLD)
    store.add([daily("k", settings)], nonce="n")
    seen = store.get("k")
    assert store.replace(seen, changed(seen, **columns))
    before = store.get("k")
    host(-1, NEW)
    renew(store, settings)
    assert store.get("k") == before


def test_a_row_that_is_leased_stays(store, settings, host):
    host(0, OLD)
    store.add([daily("k", settings, next_time=1, next_run_time=1)], nonce="n")
    assert store.claim("w.1", limit=1, alive_time=60, shortest=6, horizon=0).rows
    before = store.get("k")
    host(-1, NEW)
    renew(store, settings)
    assert store.get("k") == before


@pytest.mark.parametrize(
    ("releases", "reads"),
    [([], True), ([NEW], False), ([NEW, OLD], True), ([NEW, None], True), (["3000a"], False)],
    ids=str,
)
def test_rows_are_read_if_a_worker_had_older_data(store, settings, host, releases, reads):
    store.add([Row(key="k")], nonce="n")
    for number, each in enumerate(releases):
        store.history.beat(worker_record(nonce=f"n{number}", zone_data=each))
    host(0, NEW)
    assert (renew(store, settings) > 0) is reads

"""Tests of the loop of the alarms, whose time the tests control."""

import random
import sqlite3
import threading
from contextlib import closing

import pytest

from psched import app
from psched.base.errors import SchemaError, StoreError, StoreUnavailableError
from psched.config import from_mapping
from psched.core.alerts.alert import Alert
from psched.core.alerts.protocol import AlertSelection
from psched.monitor.alarms import PATIENCE, AlarmLoop, Alarms, Outage, pause_of
from psched.monitor.delivering import Deliveries
from psched.reports.raising import Judged
from psched.testing import ManualClock
from support.proxy import Proxy
from support.tables import fill_sqlite
from support.waiting import wait_until

ALERT = Alert(key="key", rule="late", since=1, text="it is late", on_raise=("ops",))


class Source:
    """Raises one alert, or what a test says; notes when it is asked."""

    def __init__(self, store, wait=None):
        self.store = store
        self.wait = wait
        self.asked = 0
        self.error = None

    def step(self):
        self.asked += 1
        if self.error is not None:
            raise self.error
        return Judged(self.store.alerts.raise_alerts([ALERT]), wait=self.wait)


class Bench:
    """A loop on a store, and what its hooks are told."""

    def __init__(self, url, *, keep=0, **settings):
        ops = {"hooks": {"ops": {"command": ["true"]}}, "on_lost": "ops", "on_recovered": "ops"}
        self.settings = from_mapping({"url": url, **ops, **settings})
        self.clock = ManualClock()
        self.store = app.create_store(
            self.settings,
            clock=self.clock,
            rng=random.Random(1),  # noqa: S311
        )
        self.told = []
        self.sources = [Source(self.store), Source(self.store, wait=100.0)]
        wake = threading.Event()
        deliveries = Deliveries(self.store.alerts, "me", self, clock=self.clock, wake=wake)
        outage = Outage(self.settings, host="web1", deliverer=self, clock=self.clock, wake=wake)
        self.loop = AlarmLoop(
            self.store,
            self.store.alerts,
            self.sources,
            deliveries,
            outage,
            keep=keep,
            pause=10.0,
            clock=self.clock,
        )

    names = ("ops",)

    def tries(self, _hook):
        return 12

    def is_read(self, _hook):
        return False

    def deliver(self, hook, told):
        [(event, alert, _)] = told
        self.told.append((hook, event, alert.rule))

    def settle(self):
        def is_idle():
            pause = self.loop.step()
            return self.loop.is_idle and pause

        return wait_until(is_idle, what="the deliveries")

    def pass_time(self, seconds):
        self.clock.advance(seconds)
        return self.settle()


@pytest.fixture
def bench(tmp_path):
    return Bench(fill_sqlite(tmp_path / "psched.db"))


def test_what_is_raised_is_logged_and_delivered(bench, caplog):
    assert bench.settle() == 10.0
    assert bench.told == [("ops", "raised", "late")]
    assert caplog.messages.count("alert, late, key: it is late") == 1
    bench.pass_time(10)
    assert bench.told == [("ops", "raised", "late")]


def test_each_source_is_asked_as_often_as_it_wants(bench):
    bench.settle()
    for _ in range(11):
        bench.pass_time(10)
    assert [source.asked for source in bench.sources] == [12, 2]


def test_a_source_that_cannot_judge_stops_no_other(bench, caplog):
    bench.sources[0].error = SchemaError("no run history is kept")
    bench.settle()
    assert bench.told == [("ops", "raised", "late")]
    bench.pass_time(10)
    assert bench.sources[0].asked == 1
    assert "no run history is kept" not in caplog.text
    bench.pass_time(60)
    assert bench.sources[0].asked == 2
    assert "some alerts are not raised: no run history is kept" in caplog.messages


@pytest.mark.parametrize(
    "error", [StoreUnavailableError("too slow"), StoreError("no right"), ZeroDivisionError()]
)
def test_a_source_that_fails_is_no_outage_and_keeps_nothing_from_being_told(bench, error):
    bench.sources[0].error = error
    for _ in range(20):
        bench.pass_time(10)
    assert bench.told == [("ops", "raised", "late")]
    assert bench.sources[0].asked >= 3


def test_a_table_that_is_not_as_it_should_be_is_no_outage(tmp_path, caplog):
    bench = Bench(fill_sqlite(tmp_path / "psched.db"))
    with closing(sqlite3.connect(tmp_path / "psched.db")) as connection:
        connection.execute("DROP TABLE psched_alerts")
    for _ in range(20):
        bench.pass_time(10)
    assert bench.told == []
    assert "no alerts are raised" in caplog.text


def test_without_a_table_nothing_is_judged_until_there_is_one(tmp_path, caplog):
    (tmp_path / "psched.db").touch()
    bench = Bench(f"sqlite:///{tmp_path}/psched.db")
    assert bench.loop.step() == 60.0
    assert bench.sources[0].asked == 0
    assert "psched init" not in caplog.text
    bench.pass_time(60)
    assert "psched init" in caplog.text
    bench.store.init()
    bench.pass_time(60)
    assert bench.told == [("ops", "raised", "late")]


def test_closed_alerts_are_deleted_when_they_are_old(tmp_path):
    bench = Bench(fill_sqlite(tmp_path / "psched.db"), keep=3600)
    old = Alert(key="old", rule="late", since=1, text="late")
    bench.store.alerts.close_alerts(bench.store.alerts.raise_alerts([old]), "over")
    bench.settle()
    assert [*bench.store.alerts.find_alerts(AlertSelection(key="old"))]


@pytest.mark.mariadb
def test_a_store_that_is_away_is_told_after_a_while_and_so_is_its_return(mariadb_server, caplog):
    name = mariadb_server.create_database()
    with Proxy(mariadb_server.port) as proxy:
        url = mariadb_server.url(name).replace(f":{mariadb_server.port}/", f":{proxy.port}/")
        bench = Bench(url, database_timeout=3, alive_time=60)
        bench.store.init()
        bench.settle()
        with proxy.black_hole():
            for _ in range(6):
                bench.pass_time(PATIENCE / 4)
        assert bench.told == [
            ("ops", "raised", "late"),
            ("ops", "raised", "unreachable"),
        ]
        bench.pass_time(10)
        assert bench.told[2:] == [("ops", "closed", "unreachable")]
        # From the first failure, which is 15 s after the beginning, to the recovery.
        assert "the store does not answer the monitor: over after 85.0 s" in caplog.text
        bench.store.disconnect()
    mariadb_server.drop_database(name)


# --- the duty ------------------------------------------------------------------------


def test_a_fault_of_the_loop_is_raised_by_the_duty_and_then_it_begins_again():
    made = []

    def make():
        made.append(1)
        if len(made) == 1:
            raise ZeroDivisionError

    duty = Alarms(make, threading.Event())

    def failed():
        try:
            duty.step(0.0)
        except ZeroDivisionError:
            return True
        return False

    wait_until(failed, what="the fault")
    duty.step(0.0)
    wait_until(lambda: len(made) == 2, what="the second thread")
    duty.close()


def test_the_duty_ends_at_once(bench):
    duty = Alarms(lambda: bench.loop, threading.Event())
    duty.step(0.0)
    duty.close()
    assert not duty._thread.is_alive()


def test_the_pause_follows_that_of_the_workers():
    assert [pause_of(poll) for poll in (0.01, 0.5, 1, 60)] == [1, 5, 10, 10]

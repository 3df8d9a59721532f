"""Tests of the alerts about hosts, on a real store."""

import random

import pytest

from psched import app
from psched.base.errors import UnknownOutcomeError
from psched.config import from_mapping
from psched.core.alerts.protocol import AlertSelection
from psched.core.history.records import WorkerRecord
from psched.master.totals import Host
from psched.monitor.host_alerts import QUIET, WAITED, HostAlerts
from psched.testing import ManualClock
from support.tables import fill_sqlite

BUSY = Host(slots=4, free=0, due=7, late=WAITED)


class Bench:
    """A store, and monitors of hosts whose state a test sets."""

    def __init__(self, url):
        hooks = {key: {"command": ["true"]} for key in ("late", "lost", "over")}
        told = {"on_late": "late", "on_lost": "lost", "on_recovered": "over"}
        self.settings = from_mapping({"url": url, "hooks": hooks, **told})
        self.clock = ManualClock()
        self.store = self.new_store()

    def new_store(self):
        return app.create_store(self.settings, clock=self.clock, rng=random.Random(1))  # noqa: S311

    def monitor(self, host="web1"):
        store = self.new_store()
        made = HostAlerts(
            store,
            store.history,
            store.alerts,
            self.settings,
            host=host,
            observe=lambda: made.seen,
            clock=self.clock,
        )
        made.seen = Host(slots=4, free=4)
        made.step()
        return made

    def beat(self, host):
        self.store.history.beat(
            WorkerRecord(
                nonce=host,
                host=host,
                pid=1,
                number=0,
                generation=1,
                slots=1,
                busy=0,
                types=None,
                started=0,
                seen=0,
            )
        )

    def open(self):
        return [
            (a.host, a.rule) for a in self.store.alerts.find_alerts(AlertSelection(only_open=True))
        ]


@pytest.fixture
def bench(tmp_path):
    return Bench(fill_sqlite(tmp_path / "psched.db"))


def step(monitor, seen=None):
    if seen is not None:
        monitor.seen = seen
    raised, closed, _, _ = monitor.step()
    return [alert.text for alert in raised], [alert.closed_text for alert in closed]


def test_rows_that_wait_too_long_for_a_slot_raise_an_alert_until_none_waits(bench):
    monitor = bench.monitor()
    assert step(monitor, BUSY._replace(late=WAITED - 1)) == ([], [])
    [text], _ = step(monitor, BUSY)
    assert text == (
        "7 due rows cannot start, the oldest is 60 s late: none of 4 slots is free; raise"
        " concurrency or processors"
    )
    assert bench.open() == [("web1", "no_slot")]
    [kept] = bench.store.alerts.find_alerts()
    assert (kept.key, kept.on_raise, kept.on_close) == ("", ("late",), ("over",))
    # A slot that is free for a moment changes nothing.
    assert step(monitor, BUSY._replace(free=1)) == ([], [])
    assert step(monitor, BUSY) == ([], [])
    assert step(monitor, BUSY._replace(due=0)) == ([], ["no due row waits for a slot any more"])
    assert bench.open() == []
    [text], _ = step(monitor, BUSY._replace(problem="no process can be forked: x"))
    assert text.endswith(": none of 4 slots is free; no process can be forked: x")


def test_a_host_that_stops_or_is_not_known_changes_nothing(bench):
    monitor = bench.monitor()
    step(monitor, BUSY)
    assert step(monitor, Host()) == ([], [])
    monitor.seen = None
    assert not any(monitor.step()[:2])
    assert bench.open() == [("web1", "no_slot")]


def test_a_new_monitor_goes_on_with_the_alerts_of_its_host(bench):
    step(bench.monitor(), BUSY)
    monitor = bench.monitor("web1")  # its first step has seen that no row waits
    assert bench.open() == []
    step(monitor, BUSY)
    bench.beat("web1")
    other = bench.monitor("web2")
    assert step(other, BUSY) != ([], [])
    assert sorted(bench.open()) == [("web1", "no_slot"), ("web2", "no_slot")]


def died(bench, number=1):
    return Host(slots=4, free=4, deaths=number, last_death=bench.clock.boottime())


def test_deaths_of_workers_raise_an_alert_until_none_has_died_for_a_while(bench):
    monitor = bench.monitor()
    [text], _ = step(monitor, died(bench, 2))
    assert text == "2 workers died unexpectedly since psched-master started; its log says how"
    bench.clock.advance(QUIET - 1)
    assert step(monitor, died(bench, 3)) == ([], [])
    bench.clock.advance(QUIET - 1)
    assert step(monitor) == ([], [])
    bench.clock.advance(1)
    assert step(monitor) == ([], ["no worker has died for 10 minutes"])


def test_a_death_just_before_the_monitor_began_is_told_and_an_old_one_is_not(bench):
    seen = died(bench)
    bench.clock.advance(QUIET)
    assert step(bench.monitor(), seen) == ([], [])
    assert len(step(bench.monitor(), died(bench))[0]) == 1


def test_a_master_that_has_seen_no_death_yet_does_not_say_that_there_was_none(bench):
    """Neither after a restart, nor if the alert is that of another master on the same host."""
    step(bench.monitor(), died(bench))
    bench.clock.advance(QUIET - 1)
    new = bench.monitor()
    assert bench.open() == [("web1", "worker_died")]
    bench.clock.advance(QUIET - 1)
    assert step(new) == ([], [])
    bench.clock.advance(1)
    assert step(new) == ([], ["no worker has died for 10 minutes"])


def test_a_death_is_told_once_even_if_somebody_closes_the_alert(bench):
    monitor = bench.monitor()
    assert len(step(monitor, died(bench))[0]) == 1
    bench.store.alerts.close_alerts([*bench.store.alerts.find_alerts()], "by hand")
    assert step(monitor) == ([], [])
    bench.clock.advance(1)
    assert len(step(monitor, died(bench, 2))[0]) == 1


def test_another_monitor_may_close_an_alert_and_a_want_that_lasts_is_told_again(bench):
    monitor = bench.monitor()
    step(monitor, BUSY)
    bench.store.alerts.close_alerts([*bench.store.alerts.find_alerts()], "by another host")
    assert len(step(monitor)[0]) == 1


def test_an_answer_that_was_lost_leaves_no_alert_open(bench, monkeypatch):
    monitor = bench.monitor()
    raise_alerts = monitor._store.alerts.raise_alerts

    def unanswered(alerts):
        raise_alerts(alerts)
        raise UnknownOutcomeError

    with monkeypatch.context() as patch:
        patch.setattr(monitor._store.alerts, "raise_alerts", unanswered)
        with pytest.raises(UnknownOutcomeError):
            step(monitor, BUSY)
    assert step(monitor) == ([], [])
    assert step(monitor, BUSY._replace(due=0))[1] == ["no due row waits for a slot any more"]


def test_two_masters_on_one_host_do_not_close_each_others_alert(bench):
    one, other = bench.monitor(), bench.monitor()
    step(one, BUSY)
    for _ in range(3):
        assert step(other, Host(slots=4, free=4)) == ([], [])
        bench.clock.advance(60)
    assert bench.open() == [("web1", "no_slot")]


def test_the_alerts_of_a_host_that_is_gone_are_closed_by_another_one(bench):
    step(bench.monitor("gone"), BUSY)
    step(bench.monitor("alive"), BUSY)
    bench.beat("alive")
    third = bench.monitor("third")
    assert bench.open() == [("alive", "no_slot")]
    step(bench.monitor("gone"), BUSY)
    assert step(third) == ([], [])
    bench.clock.advance(60)
    assert step(third) == ([], ["no worker of the host is alive any more"])

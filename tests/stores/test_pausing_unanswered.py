"""Pauses and resumptions whose answers are lost: each is applied once, with its record."""

import itertools

import pytest

from psched.base.clock import SystemClock
from psched.client.collection import ScheduleCollection
from psched.client.verifier import Verifier
from support.proxy import Fault
from support.stores import LONG, store_factory

HOUR = 3600

pytestmark = [
    pytest.mark.parametrize(
        "database",
        [
            pytest.param("mariadb", marks=pytest.mark.mariadb),
            pytest.param("postgresql", marks=pytest.mark.postgresql),
        ],
        indirect=True,
    ),
    pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY]),
]


@pytest.fixture
def schedules(proxy, database, settings, store):  # noqa: ARG001  # ``store`` has created the table
    """The Python API, connected to the server through the proxy."""
    numbers = itertools.count()
    url = database.url.replace(f":{database.server.port}/", f":{proxy.port}/")
    with store_factory(url, timeout=LONG) as open_store:
        yield ScheduleCollection(
            open_store(), settings, clock=SystemClock(), draw_nonce=lambda: f"n{next(numbers)}"
        )


def test_a_pause(fault, schedules, store, proxy):
    schedules.add("k", cron="@hourly")
    with schedules.audited("deploy"), proxy.fault(fault, b"UPDATE"):
        schedules["k"].pause()
    row = store.get("k")
    assert (row.status, row.version) == ("paused", 2)
    assert [each.action for each in schedules.audit("k")] == ["pause", "add"]


def test_a_pause_during_a_run(fault, schedules, store, proxy):
    schedules.push("k")
    task = schedules.poll()
    with proxy.fault(fault, b"UPDATE"):
        assert schedules["k"].pause() is False
    task.retry()
    row = store.get("k")
    assert (row.status, row.next_run_time, row.owner) == ("paused", None, None)


@pytest.mark.parametrize("statement", [b"UPDATE", b"COMMIT"])
def test_a_resumption(fault, statement, *, schedules, settings, store, proxy):
    hour = int(store.now()) // HOUR * HOUR
    schedules.add("k", cron="@hourly", next_time=hour - 5 * HOUR)
    schedules["k"].pause()
    with proxy.fault(fault, statement):
        schedules["k"].resume()
    row = store.get("k")
    assert (row.status, row.next_time) == ("waiting", row.next_run_time)
    [span] = store.history.runs()
    assert (span.scheduled_time, span.last) == (hour - 5 * HOUR, row.next_time - HOUR)
    assert [each.action for each in schedules.audit("k")] == ["resume", "pause", "add"]
    found = Verifier(store, settings, lambda request: request()).verify(10 * HOUR)
    assert found.violations == []

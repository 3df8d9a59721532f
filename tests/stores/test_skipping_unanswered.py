"""Skips and edits whose answers are lost: each is applied once, with its record."""

import itertools

import pytest

from psched.base.clock import SystemClock
from psched.client.auditor import Author
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


class Clock(SystemClock):
    """A clock whose ``meanwhile`` is called once, before a request is repeated."""

    def __init__(self):
        super().__init__()
        self.meanwhile = lambda: None

    def sleep(self, seconds):
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        super().sleep(seconds)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def schedules(proxy, database, settings, store, clock):  # noqa: ARG001  # the table is there
    """The Python API, connected to the server through the proxy."""
    numbers = itertools.count()
    url = database.url.replace(f":{database.server.port}/", f":{proxy.port}/")
    with store_factory(url, timeout=LONG) as open_store:
        yield ScheduleCollection(
            open_store(),
            settings,
            clock=clock,
            draw_nonce=lambda: f"n{next(numbers)}",
            author=lambda: Author("ann", "web1", "tests"),
        )


@pytest.fixture
def others(settings, store):
    """The Python API of somebody else, connected to the server directly."""
    names = itertools.count()
    return ScheduleCollection(
        store, settings, clock=SystemClock(), draw_nonce=lambda: f"o{next(names)}"
    )


@pytest.fixture
def later(schedules, store):
    """A schedule that runs every hour, from tomorrow on; returns its first time."""
    first = int(store.now()) // HOUR * HOUR + 24 * HOUR
    schedules.add("k", cron="@hourly", next_time=first)
    return first


def check(store, settings):
    assert Verifier(store, settings, lambda request: request()).verify(100 * HOUR).violations == []


@pytest.mark.parametrize("statement", [b"UPDATE", b"INSERT", b"COMMIT"])
def test_a_skip(fault, statement, later, *, schedules, settings, store, proxy):
    with proxy.fault(fault, statement):
        schedules["k"].skip(2)
    assert store.get("k").next_time == later + 2 * HOUR
    [span] = store.history.runs()
    assert (span.fate, span.scheduled_time, span.last) == ("skipped", later, later + HOUR)
    assert [each.action for each in schedules.audit("k")] == ["skip", "add"]
    check(store, settings)


def test_a_skip_is_told_from_that_of_somebody_else(
    fault, later, *, schedules, others, settings, store, proxy, clock
):
    """Both skip the same occurrence: what became of the row cannot tell who has done it."""
    clock.meanwhile = others["k"].skip
    with proxy.fault(fault, b"COMMIT"):
        schedules["k"].skip()
    assert store.get("k").next_time == later + 2 * HOUR
    spans = sorted(each.scheduled_time for each in store.history.runs())
    assert spans == [later, later + HOUR]
    check(store, settings)


@pytest.mark.usefixtures("later")
def test_an_edit(fault, *, schedules, store, proxy):
    with proxy.fault(fault, b"UPDATE"):
        done = schedules["k"].edit(cron="@daily", delay="5m")
    assert {*done.changes} == {"cron", "delay"}
    row = store.get("k")
    assert (row.cron, row.delay, row.version) == ("@daily", 300, 2)
    assert [each.action for each in schedules.audit("k")] == ["edit", "add"]

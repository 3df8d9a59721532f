"""Fixtures for tests of the Python API: collections on a real store."""

import itertools

import pytest

import psched
from psched.base.clock import SystemClock
from psched.client.collection import ScheduleCollection
from psched.config import from_mapping
from support.stores import KINDS, Sql, make_store


def pytest_generate_tests(metafunc):
    """Run tests that send no SQL on Redis, too."""
    if "database" in metafunc.fixturenames:
        kinds = [
            # The contract has shown that the stores do the same.
            pytest.param(kind, marks=[getattr(pytest.mark, kind), pytest.mark.extended])
            if kind != "sqlite"
            else kind
            for kind in KINDS
            if kind != "redis" or "sql" not in metafunc.fixturenames
        ]
        metafunc.parametrize("database", kinds, indirect=True)


@pytest.fixture
def database(request, open_database):
    """A fresh database of each kind, see ``open_database``."""
    with open_database(request.param) as database:
        yield database


class Host:
    """A host's clocks; its ``boottime`` can be moved forward, and a sleep returns at once."""

    def __init__(self):
        self._clock = SystemClock()
        self.suspended = 0.0
        self.slept = []

    def wall(self):
        return self._clock.wall()

    def boottime(self):
        return self._clock.boottime() + self.suspended

    def sleep(self, seconds):
        self.slept.append(seconds)


@pytest.fixture
def settings(database):
    own = ["tests", "test_triggers", "psched_elsewhere"]  # where triggers may be defined
    # The tests push tasks without a type, which is a warning if no handler is named.
    given = {"dispatch": "tests:Dispatch", "triggers": own, "alive_time": 60, "retry_wait": 300}
    return from_mapping({"url": database.url, **given})


@pytest.fixture
def schedules(settings):  # the tables are there, see support.tables
    """The API as `psched.open` gives it."""
    with psched.open(settings) as schedules:
        yield schedules


@pytest.fixture
def host():
    return Host()


@pytest.fixture
def on_host(settings, host, schedules):  # noqa: ARG001  # the table is there
    """The API on a host whose clock can be moved."""
    numbers = itertools.count()
    with ScheduleCollection(
        make_store(settings.url), settings, clock=host, draw_nonce=lambda: f"n{next(numbers)}"
    ) as collection:
        yield collection


@pytest.fixture
def sql(settings):
    return Sql(settings.url)


@pytest.fixture
def now(schedules):
    """The store's clock."""
    return schedules._store.now

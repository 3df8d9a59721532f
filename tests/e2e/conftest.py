"""Fixtures for tests that use psched as a person does."""

import pytest

from support.following import Following
from support.service import services


@pytest.fixture
def make_service(tmp_path):
    """A function that makes a service on a database; closed at the test's end."""
    with services(tmp_path) as make:
        yield make


@pytest.fixture
def service(make_service, tmp_path):
    """A service on SQLite, its table made."""
    made = make_service(f"sqlite:///{tmp_path}/psched.db")
    made.init()
    return made


@pytest.fixture
def each_service(make_service, database):
    """A service on each kind of database, its table made."""
    made = make_service(database.url)
    made.init()
    return made


@pytest.fixture
def following():
    """Starts psched logs -f; ends it at the test's end."""
    started = []

    def start(service, *arguments, runs=True, **options):
        if runs:
            service.wait_for_row(arguments[-1], lambda seen: seen.status == "running")
        started.append(Following(service, *arguments, **options))
        return started[-1]

    yield start
    for each in started:
        each.close()

"""Fixtures for tests of workers, which are run as a person runs them: by a master."""

import pytest

from support.service import has_monitor, services
from support.tables import fill_sqlite

SETTINGS = {"poll_interval": 0.1, "retry_wait": 0, "graceful_timeout": 0, "graceful_kill_limit": 10}


@pytest.fixture
def make_service(request, tmp_path):
    """A function that makes a service on a database, its table made; closed at the test's end."""
    with services(tmp_path, monitor=has_monitor(request)) as make:

        def make_ready(url, **settings):
            service = make(url, **{**SETTINGS, **settings})
            service.init()
            return service

        yield make_ready


@pytest.fixture
def service(make_service, tmp_path):
    """A service on SQLite."""
    fill_sqlite(tmp_path / "psched.db")
    return make_service(f"sqlite:///{tmp_path}/psched.db")


@pytest.fixture
def each_service(make_service, database):
    """A service on each kind of database."""
    return make_service(database.url)

"""Fixtures for tests of workers, which are run as a person runs them: by a master."""

import contextlib
import itertools

import pytest

from support.service import Service

SETTINGS = {"poll_interval": 0.1, "retry_wait": 0, "graceful_timeout": 0, "graceful_kill_limit": 2}


@pytest.fixture
def make_service(tmp_path):
    """A function that makes a service on a database, its table made; closed at the test's end."""
    numbers = itertools.count()
    with contextlib.ExitStack() as made:

        def make(url, **settings):
            folder = tmp_path / f"service{next(numbers)}"
            folder.mkdir()
            service = Service(folder, url, **{**SETTINGS, **settings})
            made.enter_context(contextlib.closing(service))
            service.init()
            return service

        yield make


@pytest.fixture
def service(make_service, tmp_path):
    """A service on SQLite."""
    return make_service(f"sqlite:///{tmp_path}/psched.db")


@pytest.fixture
def each_service(make_service, database):
    """A service on each kind of database."""
    return make_service(database.url)

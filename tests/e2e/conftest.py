"""Fixtures for tests that use psched as a person does."""

import contextlib
import itertools

import pytest

from support.service import Service


@pytest.fixture
def make_service(tmp_path):
    """A function that makes a service on a database; closed at the test's end."""
    numbers = itertools.count()
    with contextlib.ExitStack() as made:

        def make(url, **settings):
            folder = tmp_path / f"service{next(numbers)}"
            folder.mkdir()
            return made.enter_context(contextlib.closing(Service(folder, url, **settings)))

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

"""Fixtures for tests of the SQL stores beyond their contract."""

import contextlib

import pytest

from psched import config
from support.stores import Sql, store_factory


@pytest.fixture
def open_store(database):
    """A function that opens a further store on the test's database, which is initialised."""
    with store_factory(database.url) as factory:
        factory().init()
        yield factory


@pytest.fixture
def store(open_store):
    return open_store()


@pytest.fixture
def open_at():
    """A function that opens a store at any url; the store is closed after the test."""
    with contextlib.ExitStack() as opened:

        def open_at(url, timeout=10.0):
            return opened.enter_context(store_factory(url, timeout=timeout))()

        yield open_at


@pytest.fixture
def sql(database):
    """A function that executes plain SQL on the test's database."""
    return Sql(database.url)


@pytest.fixture
def settings(database):
    return config.from_mapping({"url": database.url, "alive_time": 60})

"""Fixtures for tests of the stores beyond their contract."""

import contextlib

import pytest

from psched import config
from support.proxy import Proxy
from support.stores import LONG, Sql, store_factory


@pytest.fixture
def open_store(database):
    """A function that opens a further store on the test's database, which is initialised."""
    with store_factory(database.url) as factory:
        yield factory  # the tables are there, see support.tables


@pytest.fixture
def store(open_store):
    return open_store()


@pytest.fixture
def proxy(database):
    """A proxy in front of the server of the fixture ``database``."""
    with Proxy(database.server.port) as proxy:
        yield proxy


@pytest.fixture
def open_at():
    """A function that opens a store at any url; the store is closed after the test."""
    with contextlib.ExitStack() as opened:

        def open_at(url, timeout=LONG):
            return opened.enter_context(store_factory(url, timeout=timeout))()

        yield open_at


@pytest.fixture
def sql(database):
    """A function that executes plain SQL on the test's database."""
    return Sql(database.url)


@pytest.fixture
def settings(database):
    return config.from_mapping({"url": database.url, "alive_time": 60})


@pytest.fixture
def redis_cli(database):
    """A function that sends a command to the Redis server of the fixture ``database``.

    Texts in the answer are bytes.
    """
    number = int(database.url.rpartition("/")[2])
    return lambda *command: database.server.query(*command, db=number)


@pytest.fixture
def set_memory(redis_cli):
    """A function that sets how many bytes of memory the Redis server may use; 0 means no limit."""
    yield lambda limit: redis_cli("CONFIG", "SET", "maxmemory", limit)
    redis_cli("CONFIG", "SET", "maxmemory", 0)

"""Fixtures for tests that use psched as a person does."""

import pytest

from support.following import Following
from support.proxy import Proxy
from support.service import has_monitor, services
from support.stores import store_factory
from support.tables import fill_sqlite


@pytest.fixture
def make_service(request, tmp_path):
    """A function that makes a service on a database; closed at the test's end."""
    with services(tmp_path, monitor=has_monitor(request)) as make:
        yield make


@pytest.fixture
def service(make_service, tmp_path):
    """A service on SQLite, its table made."""
    fill_sqlite(tmp_path / "psched.db")
    return make_service(f"sqlite:///{tmp_path}/psched.db")


@pytest.fixture
def each_service(make_service, database):
    """A service on each kind of database, its table made."""
    made = make_service(database.url)
    made.init()
    return made


@pytest.fixture
def behind_proxy(make_service, mariadb_server):
    """A service on MariaDB behind a proxy, the proxy, and a store that needs no proxy."""
    name = mariadb_server.create_database()
    with Proxy(mariadb_server.port) as proxy:
        url = mariadb_server.url(name)
        with store_factory(url) as factory:
            service = make_service(url.replace(f":{mariadb_server.port}/", f":{proxy.port}/"))
            service.init()
            yield service, proxy, factory()
            service.close()
    mariadb_server.drop_database(name)


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

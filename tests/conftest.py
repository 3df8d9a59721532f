"""Fixtures for all tests: servers and databases."""

import contextlib
import os

import hypothesis
import pytest

from support.home import server_home
from support.servers import Database, MariaDB, MissingServerError

# A property test finds the same on every machine and every day, so that a failure belongs to
# the change that it appears with; how fast a machine is, is no property.
hypothesis.settings.register_profile(
    "psched",
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("psched")


@contextlib.contextmanager
def _or_skip():
    """Skip where a server is not installed, for all to see; in CI, fail."""
    try:
        yield
    except MissingServerError as missing:
        if os.environ.get("PSCHED_TEST_NO_SKIP") == "1":
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def servers():
    """The folder in which this session's servers live."""
    with server_home() as home:
        yield home


@pytest.fixture(scope="session")
def mariadb_server(servers):
    """One MariaDB for all tests of this process."""
    with _or_skip(), MariaDB(servers) as server:
        yield server


@pytest.fixture
def start_mariadb(servers):
    """A function that starts a further MariaDB, with flags if need be, until the test's end."""
    with contextlib.ExitStack() as started:

        def start(*flags):
            with _or_skip():
                return started.enter_context(MariaDB(servers, *flags))

        yield start


@pytest.fixture(
    params=[
        pytest.param("sqlite", id="sqlite"),
        pytest.param("mariadb", id="mariadb", marks=pytest.mark.mariadb),
    ],
)
def database(request, tmp_path):
    """A fresh, empty database of each kind."""
    if request.param == "sqlite":
        yield Database(kind="sqlite", url=f"sqlite:///{tmp_path}/psched.db", server=None)
        return
    server = request.getfixturevalue("mariadb_server")
    name = server.create_database()
    yield Database(kind="mariadb", url=server.url(name), server=server)
    if not server.running:  # a test may kill it, and need not mend it
        server.start()
    server.drop_database(name)

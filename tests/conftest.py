"""Fixtures for all tests: servers and databases."""

import contextlib
import gc
import os
import signal
import subprocess
import time

import hypothesis
import pytest

from support.clients import client_of
from support.servers import (
    Certificates,
    Database,
    Dynalite,
    Galera,
    MariaDB,
    MissingServerError,
    PostgreSQL,
    Redis,
    SimpleDB,
    Watched,
)
from support.servers.dynalite import credentials
from support.servers.redis import NEVER
from support.session_folders import session_folder, storage
from support.stores import KINDS
from support.tables import INITIALISED_BY, create_database, fill_sqlite
from support.waiting import HANG_TIMEOUT

# A failure in the shipped suite is to show what was compared; tests of others import it, too.
pytest_plugins = ["support.cpu_times", "support.selection", "support.verifying"]

pytest.register_assert_rewrite("psched.testing")

# What is imported and collected lives until the end. To look for garbage in it takes seconds.
gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop():
    """Look for garbage in what the tests leave."""
    gc.freeze()
    gc.enable()


# SQLite waits for the disk at each commit. On a disk, tests with a manual clock take twice as long.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(storage()))

# Texts that show times in the reader's zone are the same on every machine.
ZONE = "UTC"
os.environ["TZ"] = ZONE
time.tzset()

# pytest-xdist tells its processes the width of its terminal, which tables would take.
os.environ.pop("COLUMNS", None)

# Under nohup(1), HUP is ignored; in the background of a shell, INT and QUIT are. Every process that
# the tests start would inherit that.
for number in signal.SIGHUP, signal.SIGQUIT:
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_SETMASK, [])

# A property test uses the same examples on every machine and every day, so that a failure belongs
# to the change that it appears with. It has no deadline, because machines differ in speed.
hypothesis.settings.register_profile(
    "psched",
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("psched")

DATABASES = tuple(kind for kind in KINDS if kind != "redis")
"""The kinds of databases on which a test runs that has the fixture ``database``."""

MARKS = {
    "sqlite": (),
    "mariadb": pytest.mark.mariadb,
    "postgresql": pytest.mark.postgresql,
    "redis": pytest.mark.redis,
}
"""The marks of tests that need a server of that kind."""


@contextlib.contextmanager
def _or_skip():
    """Skip the test where a server is not installed, naming the package; in CI, fail."""
    try:
        yield
    except MissingServerError as missing:
        if os.environ.get("PSCHED_TEST_NO_SKIP") == "1":
            raise
        pytest.skip(str(missing))


@pytest.fixture
def set_zone():
    """Sets the zone of this process until the test ends, also for the C library."""

    def set_to(name):
        os.environ["TZ"] = name
        time.tzset()

    yield set_to
    set_to(ZONE)


@pytest.fixture(scope="session")
def home():
    """A folder of this session, which other users can enter."""
    with session_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def servers(home):
    """The folder in which this session's servers live."""
    # In a run without them a test that starts one lacks a mark.
    assert "PSCHED_TEST_NO_SERVERS" not in os.environ, "this test starts a server"
    return home


@pytest.fixture(scope="session")
def certificates(home):
    """A private authority, and certificates of servers and clients."""
    folder = home / "certificates"
    folder.mkdir(0o755)
    return Certificates(folder)


@pytest.fixture(scope="session")
def mariadb_server(servers):
    """One MariaDB for all tests of this process."""
    with _or_skip(), MariaDB(servers) as server:
        yield server


@pytest.fixture(scope="session")
def postgresql_server(servers):
    """One PostgreSQL for all tests of this process."""
    with _or_skip(), PostgreSQL(servers) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(servers):
    """One Redis for all tests of this process."""
    with _or_skip(), Redis(servers) as server:
        yield server


@pytest.fixture(scope="session")
def dynalite(servers):
    """One server with DynamoDB's protocol for all tests of this process, and keys of AWS for it."""
    with credentials(), _or_skip(), Dynalite(servers) as server:
        yield server


@pytest.fixture(scope="session")
def simpledb(servers):
    """One fake of SimpleDB for all tests of this process, and keys of AWS for it."""
    with credentials(), SimpleDB(servers) as server:
        yield server


@pytest.fixture
def start_redis(servers):
    """A function that starts a further Redis, with flags if need be, until the test's end."""
    with contextlib.ExitStack() as started:

        def start(*flags, certificates=None):
            with _or_skip():
                return started.enter_context(Redis(servers, *flags, certificates=certificates))

        yield start


@pytest.fixture(scope="session")
def watched(servers):
    """One Redis with a replica and Sentinels for all tests of this process; nobody kills it.

    On a busy host a server is silent for a moment. A failover would then lose the writes that the
    replica lacks.
    """
    with _or_skip(), Watched(servers, down_after=NEVER) as watched:
        yield watched


@pytest.fixture
def start_watched(servers):
    """A function that starts a further one, until the test's end."""
    with contextlib.ExitStack() as started:

        def start():
            with _or_skip():
                return started.enter_context(Watched(servers))

        yield start


@pytest.fixture(scope="session")
def _galera(servers):
    """One Galera cluster for all tests of this process."""
    with _or_skip(), Galera(servers) as cluster:
        yield cluster


@pytest.fixture
def galera(_galera):
    """A cluster of which all nodes run; a test may kill some, and need not mend it."""
    _galera.start()
    return _galera


@pytest.fixture
def start_mariadb(servers):
    """A function that starts a further MariaDB, with flags if need be, until the test's end."""
    with contextlib.ExitStack() as started:

        def start(*flags, certificates=None):
            with _or_skip():
                return started.enter_context(MariaDB(servers, *flags, certificates=certificates))

        yield start


@pytest.fixture
def start_postgresql(servers):
    """A function that starts a further PostgreSQL, or a replica of one, until the test's end."""
    with contextlib.ExitStack() as started:

        def start(*flags, certificates=None, primary=None):
            with _or_skip():
                if primary is None:
                    server = PostgreSQL(servers, *flags, certificates=certificates)
                else:
                    server = primary.make_replica(*flags, certificates=certificates)
                return started.enter_context(server)

        yield start


@pytest.fixture(scope="module")
def browser():
    """A browser for the tests of one file: while it is open, this process is asyncio's."""
    from support.browsing import chromium  # noqa: PLC0415  # few tests need Playwright

    with _or_skip(), chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def axe():
    """The script axe-core."""
    from support.browsing import read_axe  # noqa: PLC0415  # the same

    with _or_skip():
        return read_axe()


@pytest.fixture
def open_database(request, tmp_path):
    """A function that makes a fresh database of a kind; a context manager.

    It is empty, or it has the tables, if the test has a fixture that creates them.
    """
    empty = request.node.get_closest_marker("empty") is not None
    has_tables = not empty and not INITIALISED_BY.isdisjoint(request.fixturenames)

    @contextlib.contextmanager
    def open_database(kind):
        if kind == "sqlite":
            if has_tables:
                fill_sqlite(tmp_path / "psched.db")
            yield Database(kind=kind, url=f"sqlite:///{tmp_path}/psched.db", server=None)
            return
        server = request.getfixturevalue(f"{kind}_server")
        name = create_database(server) if has_tables else server.create_database()
        yield Database(kind=kind, url=server.url(name), server=server)
        if not server.running:  # a test may kill it, and need not mend it
            server.start()
        server.drop_database(name)

    return open_database


@pytest.fixture(params=[pytest.param(kind, marks=MARKS[kind]) for kind in DATABASES])
def database(request, open_database):
    """A fresh database of each kind, see ``open_database``."""
    with open_database(request.param) as database:
        yield database


@pytest.fixture
def sql_client(database):
    """The command line of the database's own client; it reads SQL on its standard input."""
    with _or_skip():
        return client_of(database.url)


@pytest.fixture
def send_sql():
    """A function that sends SQL to the database at a url with its own client; what that prints."""

    def send_sql(url, sql, *, password=""):
        with _or_skip():
            client = client_of(url)
        done = subprocess.run(
            client,
            input=sql,
            env={**os.environ, "PGPASSWORD": password, "MYSQL_PWD": password},
            capture_output=True,
            text=True,
            timeout=HANG_TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return send_sql

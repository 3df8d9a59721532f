import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from support.servers import LOOPBACK, MariaDB, MissingServerError, PostgreSQL, find_binary
from support.servers.base import reserved_port
from support.session_folders import PREFIX, session_folder
from support.waiting import has_ended, wait_for_end, wait_until

SERVERS = {"mariadb": MariaDB, "postgresql": PostgreSQL}
KINDS = {"sqlite": (), "mariadb": pytest.mark.mariadb, "postgresql": pytest.mark.postgresql}

mariadb = KINDS["mariadb"]
postgresql = KINDS["postgresql"]
each_kind = pytest.mark.parametrize(
    "database", [pytest.param(kind, marks=mark) for kind, mark in KINDS.items()], indirect=True
)


each_server = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=KINDS[kind]) for kind in SERVERS]
)


@pytest.fixture(params=[pytest.param(kind, marks=KINDS[kind]) for kind in SERVERS])
def start(request):
    """A function that starts a server, of each kind there is."""
    return request.getfixturevalue(f"start_{request.param}")


def sql(url, statement):
    """What a statement answers through SQLAlchemy, as psched will ask."""
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    with engine.begin() as connection:
        result = connection.execute(sqlalchemy.text(statement))
        return result.fetchall() if result.returns_rows else []


def makers_of_shared_memory():
    """The processes that have made the pieces there are, as long as those are there."""
    pieces = Path("/proc/sysvipc/shm").read_text().splitlines()
    makers = pieces[0].split().index("cpid")
    return {int(piece.split()[makers]) for piece in pieces[1:]}


# --- the fixtures --------------------------------------------------------------------


@each_kind
def test_every_database_answers(database):
    assert sql(database.url, "SELECT 1") == [(1,)]


@each_kind
@pytest.mark.parametrize("_", ["first", "second"])
def test_every_test_has_an_empty_database(database, _):
    sql(database.url, "CREATE TABLE t (i INTEGER)")  # fails where another test left its own


@each_kind
def test_a_database_knows_its_kind_and_its_server(database):
    scheme = {"sqlite": "sqlite:", "mariadb": "mysql+", "postgresql": "postgresql+"}[database.kind]
    assert database.url.startswith(scheme)
    assert (database.server is None) == (database.kind == "sqlite")


@each_kind
@pytest.mark.parametrize("what", ["kills it", "finds it again"])
def test_the_shared_server_is_there_again_after_a_test_that_killed_it(database, what):
    sql(database.url, "SELECT 1")
    if database.server and what == "kills it":
        database.server.kill()


# --- servers of each kind ------------------------------------------------------------


def test_a_killed_server_comes_back_with_its_data_at_the_same_address(start):
    server = start()
    url = server.url(server.create_database())
    sql(url, "CREATE TABLE t (i INTEGER)")
    sql(url, "INSERT INTO t VALUES (7)")
    killed = server.pid

    server.kill()
    assert not server.running
    with pytest.raises(sqlalchemy.exc.OperationalError):
        sql(url, "SELECT 1")
    server.restart()

    assert server.pid != killed
    assert sql(url, "SELECT i FROM t") == [(7,)]


def test_a_running_server_restarts_with_its_data_whoever_is_connected(start):
    server = start()
    url = server.url(server.create_database())
    sql(url, "CREATE TABLE t (i INTEGER)")
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    client = engine.connect()
    client.execute(sqlalchemy.text("SELECT 1"))

    server.restart()

    assert sql(url, "SELECT i FROM t") == []
    client.invalidate()
    client.close()


def test_two_servers_run_side_by_side(start):
    one, other = start(), start()
    url = one.url(one.create_database())

    other.kill()

    assert one.port != other.port
    assert sql(url, "SELECT 1") == [(1,)]


def test_a_reserved_port_is_its_servers_alone_whether_it_runs_or_not():
    with reserved_port() as port:
        for _ in "before its start", "after its end":
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((LOOPBACK, port))
            socket.create_server((LOOPBACK, port)).close()
    with socket.socket() as other:
        other.bind((LOOPBACK, port))


def test_a_stopped_server_leaves_no_process(start):
    server = start()
    pid = server.pid

    server.stop()

    assert has_ended(pid)
    assert not server.running


@each_server
def test_nothing_is_left_of_a_server_after_its_block(kind, servers, request):
    request.getfixturevalue(f"{kind}_server")  # or it is skipped

    with SERVERS[kind](servers) as server:
        pid, folder = server.pid, server.folder

    assert has_ended(pid)
    assert not folder.exists()


def test_a_server_that_cannot_start_shows_its_log(start):
    with pytest.raises(AssertionError, match=r"no.such.flag"):
        start("--no-such-flag=1")


@each_server
def test_a_server_dies_with_the_tests_that_are_killed(kind, request):
    request.getfixturevalue(f"{kind}_server")  # or it is skipped
    script = """
        import sys
        from support.session_folders import session_folder
        from support.servers import MariaDB, PostgreSQL
        kind = {"mariadb": MariaDB, "postgresql": PostgreSQL}[sys.argv[1]]
        with session_folder() as home, kind(home) as server:
            children = open(f"/proc/{server.pid}/task/{server.pid}/children").read()
            print(home, server.pid, children, flush=True)
            input()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), kind],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        home, *pids = tests.stdout.readline().split()
        tests.kill()

    for pid in pids:
        wait_for_end(int(pid))
    os.utime(home, (0, 0))
    with session_folder():  # or another session that begins just now
        wait_until(lambda: not Path(home).exists(), what="the next session to sweep up")
    assert int(pids[0]) not in makers_of_shared_memory()


# --- MariaDB -------------------------------------------------------------------------


@mariadb
def test_a_mariadb_takes_further_flags_and_writes_at_each_commit_what_a_kill_leaves(start_mariadb):
    server = start_mariadb("--lock-wait-timeout=3")

    assert server.query("SELECT @@global.lock_wait_timeout") == [(3,)]
    # Written, though not synced: only a crash of the machine loses it.
    assert server.query("SELECT @@innodb_flush_log_at_trx_commit") == [(2,)]


@mariadb
def test_a_mariadb_listens_on_loopback_only(mariadb_server):
    assert mariadb_server.query("SELECT @@bind_address") == [("127.0.0.1",)]


# --- PostgreSQL ----------------------------------------------------------------------


@postgresql
def test_a_postgresql_takes_further_flags(start_postgresql):
    server = start_postgresql("--lock-timeout=3s", "-c", "max_connections=10")

    assert server.query("SHOW lock_timeout") == [("3s",)]
    assert server.query("SHOW max_connections") == [("10",)]


@postgresql
def test_a_postgresql_listens_on_loopback_only(postgresql_server):
    assert postgresql_server.query("SHOW listen_addresses") == [("127.0.0.1",)]
    assert postgresql_server.query("SHOW unix_socket_directories") == [("",)]


@postgresql
def test_a_killed_postgresql_takes_all_its_processes_with_it(start_postgresql):
    server = start_postgresql()
    listed = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    with psycopg.connect(host="127.0.0.1", port=server.port, user="postgres") as client:
        processes = [int(pid) for pid in listed.read_text().split()]
        assert client.info.backend_pid in processes

        server.kill()

        assert all(map(has_ended, processes))
        client.close()


@postgresql
@pytest.mark.usefixtures("postgresql_server")
def test_a_postgresql_leaves_no_shared_memory_after_its_block(servers):
    with PostgreSQL(servers) as server:
        pid = server.pid
        assert pid in makers_of_shared_memory()

    assert pid not in makers_of_shared_memory()


@postgresql
def test_a_replica_follows_and_is_promoted(start_postgresql):
    primary = start_postgresql("--synchronous-standby-names=*", "--synchronous-commit=remote_apply")
    replica = start_postgresql(primary=primary)
    name = primary.create_database()
    sql(primary.url(name), "CREATE TABLE t (i INTEGER)")

    sql(primary.url(name), "INSERT INTO t VALUES (7)")
    assert sql(replica.url(name), "SELECT i FROM t") == [(7,)]
    with pytest.raises(sqlalchemy.exc.InternalError, match="read-only"):
        sql(replica.url(name), "INSERT INTO t VALUES (8)")

    primary.kill()
    replica.promote()
    sql(replica.url(name), "INSERT INTO t VALUES (8)")
    assert sql(replica.url(name), "SELECT i FROM t") == [(7,), (8,)]


# --- folders and binaries ------------------------------------------------------------


@pytest.fixture
def storage(tmp_path, monkeypatch):
    """Where homes are made, for once not shared with other sessions."""
    monkeypatch.setattr("support.session_folders.MEMORY", tmp_path / "none")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_home_is_gone_after_its_block(storage):
    with session_folder() as home:
        assert home.parent == storage
    assert not home.exists()


@pytest.mark.usefixtures("storage")
def test_a_home_in_use_is_not_swept_however_old():
    with session_folder() as home:
        os.utime(home, (0, 0))
        with session_folder():
            assert home.exists()


def test_a_home_in_the_making_is_not_swept(storage):
    young = storage / f"{PREFIX}young"
    young.mkdir()
    with session_folder():
        assert young.exists()


def test_a_missing_binary_names_the_package():
    with pytest.raises(MissingServerError, match="no-such-server is missing: install this"):
        find_binary("no-such-server", "this")

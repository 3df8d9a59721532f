import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import sqlalchemy

from support.home import PREFIX, server_home
from support.servers import MariaDB, MissingServerError, find_binary, free_port
from support.waiting import has_ended, wait_for_end, wait_until

mariadb = pytest.mark.mariadb


def sql(url, statement):
    """What a statement answers through SQLAlchemy, as psched will ask."""
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    with engine.begin() as connection:
        result = connection.execute(sqlalchemy.text(statement))
        return result.fetchall() if result.returns_rows else []


# --- the fixtures --------------------------------------------------------------------


def test_every_database_answers(database):
    assert sql(database.url, "SELECT 1") == [(1,)]


@pytest.mark.parametrize("_", ["first", "second"])
def test_every_test_has_an_empty_database(database, _):
    sql(database.url, "CREATE TABLE t (i INTEGER)")  # fails where another test left its own


def test_a_database_knows_its_kind_and_its_server(database):
    assert database.url.startswith({"sqlite": "sqlite:", "mariadb": "mysql"}[database.kind])
    assert (database.server is None) == (database.kind == "sqlite")


@pytest.mark.parametrize("what", ["kills it", "finds it again"])
def test_the_shared_server_is_there_again_after_a_test_that_killed_it(database, what):
    sql(database.url, "SELECT 1")
    if database.server and what == "kills it":
        database.server.kill()


# --- MariaDB -------------------------------------------------------------------------


@mariadb
def test_a_killed_server_comes_back_with_its_data_at_the_same_address(start_mariadb):
    server = start_mariadb()
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


@mariadb
def test_a_running_server_restarts_with_its_data_at_the_same_address(start_mariadb):
    server = start_mariadb()
    url = server.url(server.create_database())
    sql(url, "CREATE TABLE t (i INTEGER)")

    server.restart()

    assert sql(url, "SELECT i FROM t") == []


@mariadb
def test_two_servers_run_side_by_side(start_mariadb):
    one, other = start_mariadb(), start_mariadb()
    url = one.url(one.create_database())

    other.kill()

    assert one.port != other.port
    assert sql(url, "SELECT 1") == [(1,)]


@mariadb
def test_a_port_that_was_taken_is_given_up_for_another(start_mariadb, monkeypatch):
    taken = start_mariadb().port
    ports = iter([taken, free_port()])
    monkeypatch.setattr("support.servers.free_port", lambda: next(ports))

    assert start_mariadb().port != taken


@mariadb
def test_a_stopped_server_leaves_no_process(start_mariadb):
    server = start_mariadb()
    pid = server.pid

    server.stop()

    assert has_ended(pid)
    assert not server.running


@mariadb
@pytest.mark.usefixtures("mariadb_server")
def test_nothing_is_left_of_a_server_after_its_block(servers):
    with MariaDB(servers) as server:
        pid, folder = server.pid, server.folder

    assert has_ended(pid)
    assert not folder.exists()


@mariadb
def test_a_server_takes_further_flags_and_stays_durable(start_mariadb):
    server = start_mariadb("--lock-wait-timeout=3")

    assert server.query("SELECT @@global.lock_wait_timeout") == [(3,)]
    assert server.query("SELECT @@innodb_flush_log_at_trx_commit") == [(1,)]


@mariadb
def test_a_server_that_cannot_start_shows_its_log(start_mariadb):
    with pytest.raises(AssertionError, match="no-such-flag"):
        start_mariadb("--no-such-flag")


@mariadb
def test_a_server_listens_on_loopback_only(mariadb_server):
    assert mariadb_server.query("SELECT @@bind_address") == [("127.0.0.1",)]


@mariadb
@pytest.mark.usefixtures("mariadb_server")
def test_a_server_dies_with_the_tests_that_are_killed():
    script = """
        from support.home import server_home
        from support.servers import MariaDB
        with server_home() as home, MariaDB(home) as server:
            print(server.pid, home, flush=True)
            input()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        pid, home = tests.stdout.readline().split()
        tests.kill()

    wait_for_end(int(pid))
    os.utime(home, (0, 0))
    with server_home():  # or another session that begins just now
        wait_until(lambda: not Path(home).exists(), what="the next session to sweep up")


# --- folders and binaries ------------------------------------------------------------


@pytest.fixture
def storage(tmp_path, monkeypatch):
    """Where homes are made, for once not shared with other sessions."""
    monkeypatch.setattr("support.home.MEMORY", tmp_path / "none")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_home_is_gone_after_its_block(storage):
    with server_home() as home:
        assert home.parent == storage
    assert not home.exists()


@pytest.mark.usefixtures("storage")
def test_a_home_in_use_is_not_swept_however_old():
    with server_home() as home:
        os.utime(home, (0, 0))
        with server_home():
            assert home.exists()


def test_a_home_in_the_making_is_not_swept(storage):
    young = storage / f"{PREFIX}young"
    young.mkdir()
    with server_home():
        assert young.exists()


def test_a_missing_binary_names_the_package():
    with pytest.raises(MissingServerError, match="no-such-server is missing: install this"):
        find_binary("no-such-server", "this")

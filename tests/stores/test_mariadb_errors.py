"""Tests of how psched classifies real errors of a real MariaDB."""

import contextlib
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pymysql
import pytest

from psched.base.errors import (
    ProcessStopError,
    SchemaError,
    StoreError,
    StoreUnavailableError,
    TransientStoreError,
    UnknownOutcomeError,
)
from psched.core.model import Row, Settlement
from psched.core.store_protocol import Settled
from psched.stores import deadline_socket
from psched.stores.sql.dialects.pymysql_connection import PyMySQLConnection
from support.servers import LOOPBACK
from support.servers.mariadb import SOMEBODY_WAITS
from support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.parametrize("database", ["mariadb"], indirect=True)

CLAIM = {"limit": 10, "alive_time": 60, "shortest": 6, "horizon": 0}
LEASE = {"alive_time": 60, "shortest": 6}


@pytest.fixture
def name(database):
    """The name of the test's database."""
    return database.url.rpartition("/")[2]


@pytest.fixture
def connect(database, name):
    """A function that opens a client's connection, which is closed at the end of the test."""
    with contextlib.ExitStack() as opened:

        def connect():
            return opened.enter_context(
                pymysql.connect(
                    host=LOOPBACK,
                    port=database.server.port,
                    user="root",
                    database=name,
                    ssl_disabled=True,
                )
            )

        yield connect


@pytest.fixture
def user(database, name, store):  # noqa: ARG001  # the table is there
    """A function that creates a user with some rights on the table, and returns the user's url."""
    made = []

    def user(rights="SELECT, INSERT, UPDATE, DELETE", more=""):
        account = f"u{len(made)}_{name}"
        query = database.server.query
        query(f"CREATE USER {account}@'%' IDENTIFIED BY 'se/cr:et' {more}")
        made.append(account)
        query(f"GRANT {rights} ON {name}.* TO {account}@'%'")
        return f"mysql+pymysql://{account}:se%2Fcr%3Aet@{LOOPBACK}:{database.server.port}/{name}"

    yield user
    for account in made:
        database.server.query(f"DROP USER {account}@'%'")


def execute(connection, *statements):
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def add(store, *keys):
    store.add([Row(key=key, next_time=1, next_run_time=1) for key in keys], nonce="n")


def is_plainly_unavailable(error):
    """Return whether the error means that the store certainly did not apply the request."""
    return isinstance(error, StoreUnavailableError)


@contextlib.contextmanager
def unavailable():
    with pytest.raises(StoreUnavailableError) as raised:
        yield raised
    assert is_plainly_unavailable(raised.value), repr(raised.value)


def wait_longer_for_locks(store):
    """On the connection that the store has: a test may not find its statement within a second."""
    longer = "SET SESSION innodb_lock_wait_timeout = 60"
    store._connector.run(lambda connection: connection.exec_driver_sql(longer).close())


class TestLocks:
    """Tests that a request waits at most a second for another session's lock."""

    def test_a_row_that_is_locked_is_not_written_and_that_is_known(self, store, connect):
        add(store, "k")
        other = connect()
        execute(other, "BEGIN", "SELECT * FROM psched WHERE id = 'k' FOR UPDATE")
        for write in (
            lambda: store.claim("w.1", **CLAIM),
            lambda: store.delete("k"),
            lambda: store.replace(store.get("k"), store.get("k")),
        ):
            with unavailable() as raised:
                write()
            assert "1205" in str(raised.value)
        other.rollback()
        assert store.get("k").version == 1
        assert len(store.claim("w.1", **CLAIM).rows) == 1

    def test_rows_are_read_whoever_has_locked_them(self, store, connect):
        add(store, "k")
        other = connect()
        execute(other, "BEGIN", "UPDATE psched SET type = 'new'")
        assert store.get("k").type == "default"
        assert store.look(["k"])

    def test_a_locked_table_is_not_waited_for(self, store, connect):
        add(store, "k")
        other = connect()
        execute(other, "LOCK TABLES psched WRITE")
        with unavailable():
            store.get("k")
        with unavailable():
            store.claim("w.1", **CLAIM)
        execute(other, "UNLOCK TABLES")
        assert len(store.claim("w.1", **CLAIM).rows) == 1

    @pytest.mark.parametrize("reason", [KeyboardInterrupt, ProcessStopError])
    def test_an_answer_that_nobody_waited_for_is_not_taken_for_the_next_one(
        self, store, connect, database, reason
    ):
        add(store, "k")
        wait_longer_for_locks(store)

        def stop(_number, _frame):
            raise reason("by the test")

        before = signal.signal(signal.SIGUSR1, stop)  # noqa: TID251  # as a task is stopped
        execute(connect(), "BEGIN", "UPDATE psched SET type = 'new'")
        here = threading.get_ident()

        def interrupt():
            wait_until(lambda: database.server.query(SOMEBODY_WAITS), what="a claim that waits")
            signal.pthread_kill(here, signal.SIGUSR1)

        try:
            with ThreadPoolExecutor(1) as other:
                other.submit(interrupt)
                with pytest.raises(reason):
                    store.claim("w.1", **CLAIM)
        finally:
            signal.signal(signal.SIGUSR1, before)  # noqa: TID251
        assert store.get("k").key == "k"
        assert store.get("none") is None

    def test_the_victim_of_a_deadlock_asks_again(self, store, connect, database):
        add(store, "a", "b")
        tokens = {row.key: row.token for row in store.claim("w.1", **CLAIM).rows}
        other = connect()

        def deadlocks():
            [[_, count]] = database.server.query("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")
            return int(count)

        def waits_for_a_lock():
            return database.server.query(SOMEBODY_WAITS)

        wait_longer_for_locks(store)
        # The server rolls back the transaction that has changed less; this one changes more.
        execute(other, "CREATE TABLE weight (n INT PRIMARY KEY)", "BEGIN")
        execute(other, "INSERT INTO weight SELECT seq FROM seq_1_to_500")
        execute(other, "SELECT * FROM psched WHERE id = 'b' FOR UPDATE")
        before = deadlocks()
        with ThreadPoolExecutor(1) as worker:
            extended = worker.submit(lambda: store.extend(tokens, **LEASE))
            wait_until(waits_for_a_lock, what="the worker to hold one row and want the other")
            execute(other, "SELECT * FROM psched WHERE id = 'a' FOR UPDATE")
            wait_until(lambda: deadlocks() > before, what="the deadlock")
            other.rollback()
            assert extended.result(timeout=HANG_TIMEOUT) == {"a", "b"}


class TestConnections:
    """Tests of connections that break.

    If it was idle, psched connects again, and nobody notices. During a request, the outcome is
    unknown.
    """

    def test_a_connection_that_was_killed_is_replaced(self, store, sql, database):
        add(store, "k")
        for _ in range(2):
            kill_all_but_ours(database)
            wait_until(lambda: has_ended(store), what="the end of the connection")
            assert store.get("k").key == "k"
        assert sql("SELECT COUNT(*) FROM {table}") == [(1,)]

    def test_a_connection_that_was_idle_for_too_long_is_replaced(self, store):
        add(store, "k")
        (row,) = store.claim("w.1", **CLAIM).rows
        store._connector.run(lambda c: c.exec_driver_sql("SET wait_timeout = 1").close())
        wait_until(lambda: has_ended(store), what="the end of the connection")
        assert store.extend({"k": row.token}, **LEASE) == {"k"}

    def test_a_write_that_is_killed_while_it_waits_has_an_unknown_outcome(
        self, store, connect, database
    ):
        add(store, "k")
        other = connect()
        execute(other, "BEGIN", "SELECT * FROM psched FOR UPDATE")
        wait_longer_for_locks(store)
        with ThreadPoolExecutor(1) as worker:
            deleted = worker.submit(store.delete, "k")
            wait_until(
                lambda: kill_all_but_ours(database, "AND info LIKE 'DELETE%'"),
                what="the waiting statement",
            )
            assert isinstance(deleted.exception(timeout=HANG_TIMEOUT), UnknownOutcomeError)
        other.rollback()
        assert store.delete("k")

    def test_a_statement_that_is_stopped_for_its_time_is_not_applied(
        self, store, connect, database
    ):
        add(store, "k")
        other = connect()
        execute(other, "BEGIN", "SELECT * FROM psched FOR UPDATE")
        database.server.query("SET GLOBAL max_statement_time = 0.1")
        try:
            store.disconnect()
            with unavailable() as raised:
                store.delete("k")
            assert "1969" in str(raised.value)
        finally:
            database.server.query("SET GLOBAL max_statement_time = 0")
        other.rollback()
        assert store.delete("k")

    def test_a_server_that_is_killed_is_away_until_it_is_back(self, store, database):
        add(store, "k")
        (row,) = store.claim("w.1", **CLAIM).rows
        database.server.kill()
        for _ in range(2):
            with unavailable() as raised:
                store.extend({"k": row.token}, **LEASE)
        message = str(raised.value)
        assert message.startswith("cannot connect to mysql+pymysql://root@")
        assert "; start the server, or correct host and port in url" in message
        database.server.start()
        # What was acknowledged has survived.
        assert store.extend({"k": row.token}, **LEASE) == {"k"}

    def test_a_server_killed_under_a_request_leaves_its_outcome_open(
        self, store, connect, database
    ):
        add(store, "k")
        other = connect()
        execute(other, "BEGIN", "SELECT * FROM psched FOR UPDATE")
        wait_longer_for_locks(store)
        with ThreadPoolExecutor(1) as worker:
            deleted = worker.submit(store.delete, "k")
            waiting = "SELECT 1 FROM information_schema.processlist WHERE info LIKE 'DELETE%'"
            wait_until(lambda: database.server.query(waiting), what="the waiting statement")
            database.server.kill()
            assert isinstance(deleted.exception(timeout=HANG_TIMEOUT), UnknownOutcomeError)
        database.server.start()
        assert store.delete("k")

    def test_a_server_that_shuts_down_is_away_until_it_is_back(self, store, database):
        add(store, "k")
        database.server.stop()
        with pytest.raises(StoreUnavailableError):
            store.get("k")
        with unavailable():
            store.get("k")
        database.server.start()
        assert store.get("k").key == "k"

    def test_too_many_connections_are_waited_for(self, user, open_at):
        url = user(more="WITH MAX_USER_CONNECTIONS 1")
        one, other = open_at(url), open_at(url)
        one.now()
        with unavailable() as raised:
            other.now()
        assert "1226" in str(raised.value)
        one.disconnect()
        wait_until(lambda: _works(other), what="the server to see that one has gone")

    def test_a_server_without_a_free_connection_is_waited_for(self, user, open_at, database):
        """A limit for ordinary users, because root has a connection in reserve."""
        url = user()
        server = database.server
        [[limit]] = server.query("SELECT @@max_connections")
        server.query("SET GLOBAL max_connections = 10")
        try:
            with contextlib.ExitStack() as taken:
                store = open_at(url)
                with contextlib.suppress(pymysql.err.OperationalError):
                    for _ in range(20):
                        taken.enter_context(
                            pymysql.connect(host=LOOPBACK, port=server.port, user="root")
                        )
                with unavailable() as raised:
                    store.now()
                assert "1040" in str(raised.value)
            wait_until(lambda: _works(store), what="a free connection")
        finally:
            wait_until(lambda: _set_limit(server, limit), what="room for the fixture's queries")


def test_a_session_is_ours_also_where_the_server_is_not_what_it_says_it_is(store, monkeypatch):
    """A proxy may tell a version of its own, whose variables the server does not know."""
    greeted = PyMySQLConnection._get_server_information

    def say_another(connection):
        greeted(connection)
        connection.server_version = "8.0.36 (a proxy)"

    monkeypatch.setattr(PyMySQLConnection, "_get_server_information", say_another)
    store.disconnect()
    assert ("isolation", "read committed") in store.examine()
    [[mode, zone, wait]] = store._connector.read(
        lambda c: c.exec_driver_sql("SELECT @@sql_mode, @@time_zone, @@lock_wait_timeout").all()
    )
    assert mode == "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"
    assert (zone, wait) == ("+00:00", 1)


class TestReadOnly:
    """A server that refuses to write is left, whatever its error, and nothing was applied."""

    def is_left_and_found_again(self, store, number, mend):
        """A store's next claim is refused with an error number; it claims again later."""
        connection = store._connector._connection
        with unavailable() as raised:
            store.claim("w.1", **CLAIM)
        message = str(raised.value)
        assert message.startswith(f"the database is read-only: ({number}, ")
        assert connection is None or connection.closed
        assert store.get("k").fence == 0
        mend()
        store.disconnect()
        assert len(store.claim("w.1", **CLAIM).rows) == 1

    def test_a_session_that_has_become_read_only_is_left(self, store):
        add(store, "k")
        read_only = "SET SESSION TRANSACTION READ ONLY"
        store._connector.run(lambda c: c.exec_driver_sql(read_only).close())
        self.is_left_and_found_again(store, 1792, lambda: None)

    @pytest.mark.parametrize(
        ("setting", "values"),
        [
            ("init_connect", ("'SET SESSION TRANSACTION READ ONLY'", "''")),
            ("tx_read_only", (1, 0)),
        ],
    )
    def test_a_server_whose_sessions_may_only_read_is_left(
        self, user, open_at, database, setting, values
    ):
        """The first of the settings does not apply to administrators."""

        def set_to(value):
            database.server.query(f"SET GLOBAL {setting} = {value}")

        store = open_at(user())
        add(store, "k")
        store.disconnect()
        read_only, usual = values
        set_to(read_only)
        try:
            self.is_left_and_found_again(store, 1792, lambda: set_to(usual))
        finally:
            set_to(usual)

    def test_it_is_left_for_the_next_host_though_it_calls_itself_writable(
        self, user, open_at, start_mariadb, database, name
    ):
        """The servers do not replicate; their different rows tell which one was read."""
        url, port = user(), database.server.port
        first = start_mariadb("--init-connect=SET SESSION TRANSACTION READ ONLY")
        first.query(f"CREATE DATABASE {name}")
        first.query(f"CREATE USER u0_{name} IDENTIFIED BY 'se/cr:et'")
        first.query(f"GRANT ALL ON {name}.* TO u0_{name}")
        by_administrator = open_at(first.url(name))
        by_administrator.init()
        add(by_administrator, "there")
        add(open_at(url), "here")
        both = open_at(url.replace(f":{port}/", f":{first.port},{LOOPBACK}:{port}/"))
        with unavailable() as raised:
            both.claim("w.1", **CLAIM)
        assert "1792" in str(raised.value)
        assert [row.key for row in both.claim("w.1", **CLAIM).rows] == ["here"]
        assert by_administrator.get("there").fence == 0

    @pytest.mark.usefixtures("database")
    def test_an_engine_that_may_only_read_is_left(self, start_mariadb, open_at):
        """As after a start with innodb_read_only, or with innodb_force_recovery = 6."""
        server = start_mariadb()
        store = open_at(server.url(server.create_database()))
        store.init()
        add(store, "k")

        def restart(*flags):
            server.flags = flags
            server.restart()

        store.disconnect()
        restart("--innodb-read-only=1")
        self.is_left_and_found_again(store, 1036, restart)

    # MySQL's 1836 and 1874 are 1036 in MariaDB, so a trigger raises them, which may raise any
    # number.
    @pytest.mark.parametrize("number", [1290, 1836, 1874])
    def test_the_numbers_of_other_servers_are_known(self, store, sql, number):
        add(store, "k")
        signal = f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {number}"
        sql(f"CREATE TRIGGER odd BEFORE UPDATE ON {{table}} FOR EACH ROW {signal}")
        self.is_left_and_found_again(store, number, lambda: sql("DROP TRIGGER odd"))


class TestOneByOne:
    """Tests that a row is quarantined only because of its own values."""

    def test_a_claim_that_nobody_may_make_sets_no_row_aside(
        self, user, open_at, store, database, name
    ):
        """The user has all rights that quarantining a row takes."""
        add(store, "a", "b")
        url = user(rights="SELECT, INSERT, DELETE")
        columns = "status, reason, next_run_time, leased_by"
        database.server.query(f"GRANT UPDATE ({columns}) ON {name}.psched TO u0_{name}@'%'")
        reader = open_at(url)
        for limit in (10, 1):
            with pytest.raises(StoreError, match="denied"):
                reader.claim("w.1", **{**CLAIM, "limit": limit})
        assert {row.status for row in store.rows()} == {"waiting"}
        assert len(store.claim("w.2", **CLAIM).rows) == 2

    @pytest.mark.parametrize("number", [1644, 1235, 1105])
    def test_an_error_that_does_not_speak_of_a_value_sets_no_row_aside(self, store, sql, number):
        """Raise any error number at one row, as a user's trigger may."""
        add(store, "a")
        signal = f"SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = {number}"
        sql(
            "CREATE TRIGGER odd BEFORE UPDATE ON {table}"
            f" FOR EACH ROW IF NEW.fence > 0 THEN {signal}; END IF"
        )
        with pytest.raises(StoreError, match=str(number)):
            store.claim("w.1", **CLAIM)
        sql("DROP TRIGGER odd")
        assert [row.key for row in store.claim("w.2", **CLAIM).rows] == ["a"]


@pytest.mark.usefixtures("database")
class TestStatementLog:
    """psched's isolation cannot be written to a binary log of statements."""

    @pytest.fixture
    def server(self, start_mariadb):
        return start_mariadb("--log-bin", "--server-id=1", "--binlog-format=STATEMENT")

    def test_it_is_said_with_the_mend(self, server, open_at):
        url = server.url(server.create_database())
        for again in ("", "again"):
            with pytest.raises(StoreError, match=r"1665.*binlog_format to MIXED or ROW"):
                open_at(url).init()
            with pytest.raises(SchemaError, match="did not finish") as raised:
                open_at(url).now()
            assert "does not exist" not in str(raised.value), again
        server.query("SET GLOBAL binlog_format = ROW")
        store = open_at(url)
        store.init()
        add(store, "k")
        server.query("SET GLOBAL binlog_format = STATEMENT")
        store.disconnect()
        for request in (lambda: store.claim("w.1", **CLAIM), store.try_rights):
            with pytest.raises(StoreError, match="binlog_format to MIXED or ROW"):
                request()
        server.query("SET GLOBAL binlog_format = MIXED")
        store.disconnect()
        store.try_rights()
        assert len(store.claim("w.1", **CLAIM).rows) == 1


class TestRefusals:
    """Lasting errors say what to check, and never show the password."""

    def test_a_read_only_server_is_left_for_the_primary(self, user, open_at, database):
        store = open_at(user())
        add(store, "k")
        connection = store._connector._connection
        database.server.query("SET GLOBAL read_only = 1")
        try:
            with unavailable() as raised:
                store.claim("w.1", **CLAIM)
            assert "read-only" in str(raised.value)
            assert connection.closed
            assert store.get("k").fence == 0
        finally:
            database.server.query("SET GLOBAL read_only = 0")
        assert len(store.claim("w.1", **CLAIM).rows) == 1

    @pytest.mark.parametrize(
        ("part", "wrong", "fix"),
        [
            ("se%2Fcr%3Aet@", "secretive@", "correct user and password in url"),
            (
                "/psched_",
                "/missing_",
                "grant the user rights on this database, or correct its name",
            ),
            (
                "/psched_",
                "/missing?password=secretive&program_name=",
                "correct user and password in url",
            ),
            (f"@{LOOPBACK}", "@127.0.0.9", "start the server, or correct host and port in url"),
            (f"@{LOOPBACK}", "@nowhere.invalid", "correct the host in url"),
        ],
        ids=["password", "database", "parameter", "host", "name"],
    )
    def test_a_wrong_url_is_said_with_the_fix_and_without_its_password(
        self, part, wrong, fix, user, open_at
    ):
        url = user()
        assert url.count(part) == 1
        with unavailable() as raised:
            open_at(url.replace(part, wrong), timeout=2.0).now()
        message = str(raised.value)
        assert "cannot connect to mysql+pymysql://u0_" in message
        assert f"; {fix}" in message
        assert "cr:et" not in message
        assert "cr%3Aet" not in message
        assert "secretive" not in message

    def test_a_parameter_that_the_driver_does_not_take_is_said(self, user, open_at):
        with pytest.raises(StoreError, match=r"^cannot connect to .*:\*\*\*@.*'colour'") as raised:
            open_at(f"{user()}?colour=red").now()
        assert not isinstance(raised.value, TransientStoreError)

    def test_missing_rights_are_refused_and_not_waited_for(self, user, open_at):
        reader = open_at(user(rights="SELECT"))
        assert reader.get("k") is None
        with pytest.raises(StoreError, match="denied") as raised:
            add(reader, "k")
        assert not isinstance(raised.value, TransientStoreError | SchemaError)
        with pytest.raises(StoreError, match="denied"):
            open_at(user(rights="INSERT")).now()

    def test_the_rights_to_pause_types_are_tried(self, user, open_at, database, name):
        allowed = user(rights="SELECT")
        account = allowed.partition("//")[2].partition(":")[0]
        query = database.server.query
        for part in "", "_runs", "_workers", "_audit", "_output", "_alerts":
            query(f"GRANT INSERT, UPDATE, DELETE ON {name}.psched{part} TO {account}@'%'")
        with pytest.raises(StoreError, match="cannot INSERT, DELETE in the table 'psched_info'"):
            open_at(allowed).try_rights()
        query(f"GRANT INSERT, DELETE ON {name}.psched_info TO {account}@'%'")
        open_at(allowed).try_rights()

    def test_a_value_that_does_not_fit_is_refused(self, store):
        with pytest.raises(StoreError) as raised:
            add(store, "k" * 256)
        assert not isinstance(raised.value, TransientStoreError | SchemaError)
        assert [*store.rows()] == []

    def test_an_error_shows_no_payload(self, store):
        with pytest.raises(StoreError) as raised:
            store.add([Row(key="k" * 256, data='{"password":"hunter2"}')], nonce="n")
        assert "hunter2" not in str(raised.value)

    def test_one_refused_item_does_not_spoil_its_batch(self, store):
        add(store, "a", "b", "c")
        rows = store.claim("w.1", **CLAIM).rows
        ends = [
            Settlement(
                key=row.key,
                token=row.token,
                version=row.version,
                next_time=2**70 if row.key == "b" else 5,
            )
            for row in rows
        ]
        results = store.settle(ends)
        assert {key for key, result in results.items() if result is Settled.DONE} == {"a", "c"}
        assert store.get("b").owner == "w.1"


def has_ended(store):
    """Whether a store's connection was closed by the server; the next request opens another."""
    return deadline_socket.has_ended(store._connector._connection.connection.fileno())


def kill_all_but_ours(database, which=""):
    """Kill the connections to the test's database; return whether there were any."""
    query = database.server.query
    name = database.url.rpartition("/")[2]
    found = query(f"SELECT id FROM information_schema.processlist WHERE db = '{name}' {which}")  # noqa: S608
    for (number,) in found:
        with contextlib.suppress(pymysql.err.OperationalError):
            query(f"KILL {number}")
    return bool(found)


def _works(store):
    with contextlib.suppress(StoreUnavailableError):
        return store.now()


def _set_limit(server, limit):
    with contextlib.suppress(pymysql.err.OperationalError):
        server.query(f"SET GLOBAL max_connections = {limit}")
        return True

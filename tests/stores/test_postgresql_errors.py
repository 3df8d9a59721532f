"""Tests of how psched classifies real errors of a real PostgreSQL."""

import contextlib
import signal
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from psched.base.clock import SystemClock
from psched.base.errors import (
    SchemaError,
    StoreError,
    StoreUnavailableError,
    TransientStoreError,
    UnknownOutcomeError,
)
from psched.core.model import Row
from psched.stores import deadline_socket
from support.processes import kill
from support.servers import LOOPBACK
from support.stores import store_factory
from support.waiting import HANG_TIMEOUT, wait_until

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.parametrize("database", ["postgresql"], indirect=True),
]

CLAIM = {"limit": 10, "alive_time": 60, "shortest": 6, "horizon": 0}
LEASE = {"alive_time": 60, "shortest": 6}

NAMED = "correct what the server names: the user, password or database in url"

each_way = pytest.mark.parametrize("strategy", ["skip_locked", "cas"])


@pytest.fixture
def strategy():
    return "auto"


@pytest.fixture
def name(database):
    """The name of the test's database."""
    return database.url.rpartition("/")[2]


@pytest.fixture
def store(database, open_store, strategy):  # noqa: ARG001  # which has made the table
    with store_factory(database.url, claim_strategy=strategy) as factory:
        yield factory()


@pytest.fixture
def connect(database, name):
    """A function that opens a client's connection, which is closed at the end of the test."""
    with contextlib.ExitStack() as opened:

        def connect():
            port = database.server.port
            return opened.enter_context(
                psycopg.connect(host=LOOPBACK, port=port, user="postgres", dbname=name)
            )

        yield connect


@pytest.fixture
def user(database, name, store):
    """A function that creates a user with some rights on the table, and returns the user's url."""
    store.now()  # the table is there
    made = []

    def user(rights="SELECT, INSERT, UPDATE, DELETE", more=""):
        account = f"u{len(made)}_{name}"
        query = database.server.query
        query(f"CREATE ROLE {account} LOGIN PASSWORD 'se/cr:et' {more}")
        made.append(account)
        for table in "psched", "psched_info":
            query(f"GRANT {rights} ON {table} TO {account}", database=name)
        port = database.server.port
        return f"postgresql+psycopg://{account}:se%2Fcr%3Aet@{LOOPBACK}:{port}/{name}"

    yield user
    for account in made:
        database.server.query(f"DROP OWNED BY {account}", database=name)
        database.server.query(f"DROP ROLE {account}")


@pytest.fixture
def terminate(database, name):
    """End the sessions on the test's database; return whether there were any."""

    def terminate(which=""):
        found = database.server.query(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"  # noqa: S608
            f" WHERE datname = '{name}' AND backend_type = 'client backend' {which}"
        )
        return bool(found)

    return terminate


def add(store, *keys, **fields):
    rows = [Row(key=key, next_time=1, next_run_time=1, **fields) for key in keys]
    store.add(rows, nonce="n")


def is_plainly_unavailable(error):
    """Return whether the error means that the store certainly did not apply the request."""
    return isinstance(error, StoreUnavailableError)


@contextlib.contextmanager
def unavailable(text=None):
    with pytest.raises(StoreUnavailableError, match=text) as raised:
        yield raised
    assert is_plainly_unavailable(raised.value), repr(raised.value)


class TestLocks:
    """Tests that a request waits at most a second for another session's lock."""

    def test_a_row_that_is_locked_is_not_written_and_that_is_known(self, store, connect):
        add(store, "k")
        with connect() as other:
            other.execute("SELECT * FROM psched WHERE id = 'k' FOR UPDATE")
            with unavailable("55P03"):
                store.delete("k")
            assert store.get("k").version == 1
        assert store.delete("k")

    @each_way
    def test_a_row_that_is_locked_is_not_claimed_and_that_is_known(self, store, connect, strategy):
        add(store, "k")
        with connect() as other:
            other.execute("SELECT * FROM psched WHERE id = 'k' FOR UPDATE")
            if strategy == "skip_locked":
                assert store.claim("w.1", **CLAIM).rows == []
            else:
                with unavailable("55P03"):
                    store.claim("w.1", **CLAIM)
        assert len(store.claim("w.1", **CLAIM).rows) == 1

    def test_a_locked_table_is_not_waited_for(self, store, connect):
        add(store, "k")
        with connect() as other:
            other.execute("LOCK TABLE psched IN ACCESS EXCLUSIVE MODE")
            for request in (lambda: store.get("k"), lambda: store.claim("w.1", **CLAIM)):
                with unavailable(r"^the database is busy: \(55P03, "):
                    request()
        assert len(store.claim("w.1", **CLAIM).rows) == 1

    def test_the_victim_of_a_deadlock_asks_again(self, store, connect, database, name):
        add(store, "a", "b")
        tokens = {row.key: row.token for row in store.claim("w.1", **CLAIM).rows}
        store._connector.run(lambda c: c.exec_driver_sql("SET deadlock_timeout = '500ms'"))
        other, query = connect(), database.server.query
        waiting = (
            "SELECT 1 FROM pg_stat_activity"  # noqa: S608
            f" WHERE datname = '{name}' AND wait_event_type = 'Lock'"
        )

        def was_victim():
            # A session looks for a deadlock once, after deadlock_timeout; the other never does.
            other.execute("SET LOCAL deadlock_timeout = '60s'")
            other.execute("SELECT * FROM psched WHERE id = 'b' FOR UPDATE")
            with ThreadPoolExecutor(1) as worker:
                extended = worker.submit(lambda: store.extend(tokens, **LEASE))
                wait_until(lambda: query(waiting), what="the worker to want the other row")
                other.execute("SELECT * FROM psched WHERE id = 'a' FOR UPDATE")
                other.rollback()
                with contextlib.suppress(StoreUnavailableError):
                    assert extended.result(timeout=HANG_TIMEOUT) == {"a", "b"}
                    return "deadlock detected" in database.server.log.read_text()

        # On a busy machine it may have looked too early.
        wait_until(was_victim, what="a deadlock")


class TestSerialization:
    """Tests that a transaction which cannot be serialized is rolled back and repeated."""

    LEVEL = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"

    def transact(self, store, others, keys=("k",)):
        """Read and write in a transaction while others write; return the number of tries."""
        tries = []

        def work(connection):
            tries.append(connection.exec_driver_sql(self.LEVEL).close())
            connection.exec_driver_sql("SELECT COUNT(*) FROM psched").scalar_one()
            others(len(tries))
            for key in keys:
                change = f"UPDATE psched SET version = version + 10 WHERE id = '{key}'"  # noqa: S608
                connection.exec_driver_sql(change)

        store._connector.transact(work)
        return len(tries)

    def test_a_transaction_that_came_too_late_is_repeated_as_a_whole(self, store, sql):
        add(store, "a", "b")

        def others(number):
            if number == 1:
                sql("UPDATE {table} SET version = version + 100 WHERE id = 'b'")

        assert self.transact(store, others, ("a", "b")) == 2
        assert (store.get("a").version, store.get("b").version) == (11, 111)

    def test_one_that_comes_too_late_for_ever_is_given_up_and_undone(self, store, sql):
        add(store, "a", "b")

        def others(_number):
            sql("UPDATE {table} SET type = 'theirs' WHERE id = 'b'")

        with unavailable(r"^the database is busy: \(40001, 'could not serialize access"):
            self.transact(store, others, ("a", "b"))
        assert (store.get("a").version, store.get("b").version) == (1, 1)
        add(store, "c")  # the connection is in no transaction

    def test_a_statement_that_came_too_late_is_repeated(self, store, connect, database, name):
        """The isolation level of the session was changed, as a pooler may do."""
        add(store, "k")
        (row,) = store.claim("w.1", **CLAIM).rows
        level = "SET default_transaction_isolation = 'serializable'"
        store._connector.run(lambda c: c.exec_driver_sql(level).close())
        waiting = (
            "SELECT 1 FROM pg_stat_activity"  # noqa: S608
            f" WHERE datname = '{name}' AND wait_event_type = 'Lock'"
        )
        said = database.server.log.read_text().count("could not serialize access")
        with connect() as other, ThreadPoolExecutor(1) as worker:
            other.execute("UPDATE psched SET type = 'theirs'")
            extended = worker.submit(lambda: store.extend({"k": row.token}, **LEASE))
            wait_until(lambda: database.server.query(waiting), what="the worker to want the row")
            other.commit()
            assert extended.result(timeout=HANG_TIMEOUT) == {"k"}
        assert database.server.log.read_text().count("could not serialize access") == said + 1


class TestConnections:
    """Tests of connections that break.

    If it was idle, psched connects again, and nobody notices. During a request, the outcome is
    unknown.
    """

    def test_a_session_that_was_ended_is_replaced(self, store, terminate):
        add(store, "k")
        for _ in range(2):
            assert terminate()
            assert store.get("k").key == "k"

    @pytest.mark.parametrize(
        "setting", ["idle_session_timeout", "idle_in_transaction_session_timeout"]
    )
    def test_a_session_that_was_idle_for_too_long_is_replaced(self, store, setting):
        add(store, "k")
        (row,) = store.claim("w.1", **CLAIM).rows
        opened = store._connector._connection.connection.driver_connection
        begin = "BEGIN" if "transaction" in setting else "SELECT 1"
        store._connector.run(lambda c: c.exec_driver_sql(f"SET {setting} = 20; {begin}").close())
        # The server lists the session no longer before it closes its connection.
        wait_until(lambda: deadline_socket.has_ended(opened.fileno()), what="the connection's end")
        assert store.extend({"k": row.token}, **LEASE) == {"k"}

    def test_a_write_that_is_ended_while_it_waits_has_an_unknown_outcome(
        self, store, connect, terminate
    ):
        add(store, "k")
        with connect() as other, ThreadPoolExecutor(1) as worker:
            other.execute("SELECT * FROM psched FOR UPDATE")
            deleted = worker.submit(store.delete, "k")
            wait_until(lambda: terminate("AND query LIKE 'DELETE%'"), what="the waiting statement")
            assert isinstance(deleted.exception(timeout=HANG_TIMEOUT), UnknownOutcomeError)
        assert store.delete("k")

    def test_a_statement_that_is_stopped_for_its_time_is_not_applied(self, store, connect):
        add(store, "k")
        store._connector.run(lambda c: c.exec_driver_sql("SET statement_timeout = 300"))
        with connect() as other:
            other.execute("SELECT * FROM psched FOR UPDATE")
            with unavailable("57014"):
                store.delete("k")
        assert store.delete("k")

    def test_a_server_that_is_killed_is_away_until_it_is_back(self, store, database):
        add(store, "k")
        (row,) = store.claim("w.1", **CLAIM).rows
        database.server.kill()
        for _ in range(2):
            with unavailable(
                r"^cannot connect to postgresql\+psycopg://postgres@.*; start the server"
            ):
                store.extend({"k": row.token}, **LEASE)
        database.server.start()
        assert store.extend({"k": row.token}, **LEASE) == {"k"}

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
    def test_a_server_that_shuts_down_is_away_until_it_is_back(self, store, database, number):
        add(store, "k")
        (row,) = store.claim("w.1", **CLAIM).rows
        kill(database.server.pid, number)
        wait_until(lambda: not database.server.running, what="the server's end")
        with unavailable("cannot connect"):
            store.get("k")
        database.server.start()
        assert store.extend({"k": row.token}, **LEASE) == {"k"}

    def test_a_smart_shutdown_waits_for_those_who_are_connected(self, store, open_at, database):
        """Sessions that are connected go on; no new one is accepted."""
        store.now()
        kill(database.server.pid, signal.SIGTERM)
        other = open_at(database.url)
        wait_until(lambda: "shutting down" in str(_failure(other)), what="the shutdown to begin")
        add(store, "k")
        assert len(store.claim("w.1", **CLAIM).rows) == 1
        assert database.server.running
        store.disconnect()
        wait_until(lambda: not database.server.running, what="the server's end")

    def test_a_session_that_crashes_takes_the_others_with_it(self, store, connect):
        add(store, "k")
        (row,) = store.claim("w.1", **CLAIM).rows
        other = connect()
        kill(other.info.backend_pid, signal.SIGKILL)
        # The server ends the store's session during a request, or between two.
        with pytest.raises((UnknownOutcomeError, StoreUnavailableError)):
            wait_until(lambda: not store.extend({"k": row.token}, **LEASE), what="the crash")
        wait_until(lambda: _works(store), what="the server's recovery")
        assert store.extend({"k": row.token}, **LEASE) == {"k"}

    def test_a_user_without_a_free_connection_waits(self, user, open_at):
        url = user(more="CONNECTION LIMIT 1")
        one, other = open_at(url), open_at(url)
        one.now()
        with unavailable("cannot connect .* too many connections for role .*limit of connections"):
            other.now()
        one.disconnect()
        wait_until(lambda: _works(other), what="the server to see that one has gone")

    @pytest.mark.usefixtures("database")
    def test_a_server_without_a_free_connection_is_waited_for(self, start_postgresql, open_at):
        server = start_postgresql("--max-connections=4", "--superuser-reserved-connections=2")
        server.query("CREATE ROLE u LOGIN PASSWORD 'p'")
        url = server.url("postgres").replace("postgres@", "u:p@", 1)
        taken = [open_at(url) for _ in range(2)]
        for one in taken:
            with pytest.raises(SchemaError):
                one.now()
        stores = [psycopg.connect(url.replace("+psycopg", "")) for _ in range(2)]
        with unavailable("cannot connect .* (too many clients|reserved) .*limit of connections"):
            taken[0].now()
        for one in stores:
            one.close()
        wait_until(lambda: "does not exist" in str(_failure(taken[0])), what="a free connection")

    @pytest.mark.usefixtures("database")
    def test_a_server_that_is_shutting_down_is_waited_for(self, start_postgresql, open_at):
        server = start_postgresql()
        url = server.url("postgres")
        store = open_at(url)
        with psycopg.connect(url.replace("+psycopg", "")):  # the server waits until this has left
            kill(server.pid, signal.SIGTERM)
            wait_until(lambda: "is shutting down" in str(_failure(store)), what="the shutdown")
            with unavailable("; wait: the server is starting up or shutting down, and accepts no"):
                store.now()
            store.disconnect()


class TestPatience:
    """No answer is waited for longer than the timeout, which libpq itself does not ensure."""

    TIMEOUT = 3.0

    @pytest.fixture
    def far(self, proxy, open_at, database, store):
        add(store, "k")
        url = database.url.replace(f":{database.server.port}/", f":{proxy.port}/")
        return open_at(url, timeout=self.TIMEOUT)

    @contextlib.contextmanager
    def soon(self, limit=TIMEOUT):
        clock = SystemClock()
        begin = clock.monotonic()
        yield
        assert clock.monotonic() - begin > limit * 0.9

    def test_a_session_that_was_stopped_is_left_for_another(self, store, open_at, database):
        add(store, "k")
        (row,) = store.claim("w.1", **CLAIM).rows
        hasty = open_at(database.url, timeout=self.TIMEOUT)
        pid = backend(hasty)
        kill(pid, signal.SIGSTOP)
        try:
            with self.soon(), pytest.raises(UnknownOutcomeError, match="no answer within 3 s"):
                hasty.extend({"k": row.token}, **LEASE)
            assert hasty.extend({"k": row.token}, **LEASE) == {"k"}
        finally:
            kill(pid, signal.SIGCONT)

    def test_a_server_that_was_stopped_is_away_until_it_goes_on(self, store, open_at, database):
        store.now()
        hasty = open_at(database.url, timeout=self.TIMEOUT)
        kill(database.server.pid, signal.SIGSTOP)
        try:
            with self.soon(), unavailable("cannot connect"):
                hasty.now()
        finally:
            kill(database.server.pid, signal.SIGCONT)
        assert hasty.now() > 0

    @pytest.mark.parametrize("way", ["black_hole", "drip"])
    def test_an_answer_that_does_not_come_is_not_waited_for(self, far, proxy, way):
        (row,) = far.claim("w.1", **CLAIM).rows
        with getattr(proxy, way)():
            with self.soon(), pytest.raises(UnknownOutcomeError, match="no answer within 3 s"):
                far.extend({"k": row.token}, **LEASE)
            if way == "black_hole":
                with unavailable("cannot connect"):
                    far.get("k")
        assert far.extend({"k": row.token}, **LEASE) == {"k"}


@pytest.mark.usefixtures("database")
class TestReplicas:
    """Tests that psched works only on the primary, whichever host of the url this is."""

    def test_a_server_that_has_become_read_only_is_left(self, store):
        add(store, "k")
        connection = store._connector._connection
        store._connector.run(
            lambda c: c.exec_driver_sql("SET default_transaction_read_only = on").close()
        )
        with unavailable(r"^the database is read-only: \(25006, "):
            store.claim("w.1", **CLAIM)
        assert connection.closed
        assert len(store.claim("w.1", **CLAIM).rows) == 1

    def test_a_replica_is_read_and_never_written(self, start_postgresql, open_at):
        primary = start_postgresql("--synchronous-standby-names=*")
        replica = start_postgresql(primary=primary)
        store, far = open_at(primary.url("postgres")), open_at(replica.url("postgres"))
        store.init()
        add(store, "k")
        wait_until(lambda: _failure(far) is None, what="the replica to follow")
        assert far.get("k").key == "k"
        for write in (lambda: far.claim("w.1", **CLAIM), lambda: far.delete("k")):
            with unavailable("read-only"):
                write()

    def test_the_promoted_replica_is_found_and_has_all_that_was_answered(
        self, start_postgresql, open_at
    ):
        primary = start_postgresql("--synchronous-standby-names=*")
        replica = start_postgresql(primary=primary)
        url = primary.url("postgres")
        both = [
            url.replace(f":{primary.port}/", f":{one.port},{LOOPBACK}:{other.port}/")
            for one, other in ((primary, replica), (replica, primary))
        ]
        stores = [open_at(url) for url in both]
        stores[0].init()
        add(stores[0], "k")
        (row,) = stores[0].claim("w.1", **CLAIM).rows
        wait_until(lambda: _works(stores[1]), what="the primary to be found")
        primary.kill()
        replica.query("ALTER SYSTEM SET synchronous_standby_names = ''")
        for store in stores:
            for _ in range(4):
                with pytest.raises(TransientStoreError):
                    store.extend({"k": row.token}, **LEASE)
        replica.promote()
        replica.query("SELECT pg_reload_conf()")
        for store in stores:
            wait_until(lambda store=store: _extends(store, row), what="the new primary to be found")


class TestRefusals:
    """Lasting errors say what to check, and never show the password."""

    @pytest.mark.parametrize(
        ("part", "wrong", "fix"),
        [
            ("se%2Fcr%3Aet@", "secretive@", NAMED),
            (":se%2Fcr%3Aet@", "@", "put the password into url or password_file"),
            ("/psched_", "/missing_", NAMED),
            (f"@{LOOPBACK}", "@127.0.0.9", "start the server, or correct host and port in url"),
            (f"@{LOOPBACK}", "@nowhere.invalid", "correct the host in url"),
        ],
        ids=["password", "no password", "database", "host", "name"],
    )
    def test_a_wrong_url_is_said_with_the_fix_and_without_its_password(
        self, part, wrong, fix, user, open_at
    ):
        url = user()
        assert url.count(part) == 1
        with unavailable() as raised:
            open_at(url.replace(part, wrong), timeout=2.0).now()
        message = str(raised.value)
        assert "cannot connect to postgresql+psycopg://u0_" in message
        assert f"; {fix}" in message
        assert "\n" not in message
        for secret in ("cr:et", "cr%3Aet", "secretive"):
            assert secret not in message

    def test_missing_rights_are_refused_and_not_waited_for(self, user, open_at):
        reader = open_at(user(rights="SELECT"))
        assert reader.get("k") is None
        with pytest.raises(StoreError, match="permission denied") as raised:
            add(reader, "k")
        assert not isinstance(raised.value, TransientStoreError | SchemaError)

    def test_the_rights_to_pause_types_are_tried(self, user, open_at, database, name):
        allowed = user()
        account = allowed.partition("//")[2].partition(":")[0]

        def change(statement):
            database.server.query(statement, database=name)

        for table in ("runs", "workers", "audit", "output", "alerts"):
            change(f"GRANT SELECT, INSERT, UPDATE, DELETE ON psched_{table} TO {account}")
        change(f"REVOKE INSERT, UPDATE, DELETE ON psched_info FROM {account}")
        with pytest.raises(StoreError, match="cannot INSERT, DELETE in the table 'psched_info'"):
            open_at(allowed).try_rights()
        change(f"GRANT INSERT, DELETE ON psched_info TO {account}")
        open_at(allowed).try_rights()

    def test_a_value_that_does_not_fit_is_refused_and_not_shown(self, store, sql):
        sql("ALTER TABLE {table} ADD CONSTRAINT odd CHECK (type <> 'odd')")
        payload = '{"password":"hunter2"}'
        for wrong in ({"type": "odd"}, {"cron": "c" * 10_000}):
            with pytest.raises(StoreError, match="refused") as raised:
                add(store, "k", data=payload, **wrong)
            assert not isinstance(raised.value, TransientStoreError | SchemaError)
            assert "hunter2" not in str(raised.value)
            assert "\n" not in str(raised.value)
        assert [*store.rows()] == []

    def test_a_table_that_is_missing_is_said_with_the_mend(self, store, sql):
        add(store, "k")
        sql("ALTER TABLE {table} RENAME TO away")
        for request in (lambda: store.get("k"), lambda: store.claim("w.1", **CLAIM)):
            with pytest.raises(SchemaError, match=r"run `psched init`: \(42P01, ") as raised:
                request()
            assert "\n" not in str(raised.value)
        sql("ALTER TABLE away RENAME TO {table}")
        assert len(store.claim("w.1", **CLAIM).rows) == 1


class TestTransactions:
    """Tests that a failed transaction changes nothing, and does not stay open."""

    @pytest.fixture
    def transact(self, store):
        def transact(statement):
            def work(connection):
                connection.exec_driver_sql("UPDATE psched SET type = 'changed'")
                connection.exec_driver_sql(statement).close()

            return store._connector.transact(work)

        return transact

    @pytest.mark.parametrize(
        ("statement", "kind"),
        [
            ("UPDATE psched SET fence = 9223372036854775807 + version", StoreError),
            ("SELECT * FROM missing", SchemaError),
            ("LOCK TABLE psched_info NOWAIT", StoreUnavailableError),
            ("SELECT pg_terminate_backend(pg_backend_pid())", StoreUnavailableError),
        ],
    )
    def test_it_is_undone(self, store, transact, connect, statement, kind):
        add(store, "k")
        with connect() as other:
            other.execute("LOCK TABLE psched_info IN SHARE MODE")
            with pytest.raises(kind) as raised:
                transact(statement)
        assert not isinstance(raised.value, UnknownOutcomeError)
        assert store.get("k").type == "default"
        add(store, "other")
        assert connect().execute("SELECT COUNT(*) FROM psched").fetchone() == (2,)


def backend(store):
    """The pid of the server's process that serves a store."""
    return store._connector.run(lambda c: c.exec_driver_sql("SELECT pg_backend_pid()").scalar())


def _failure(store):
    try:
        store.now()
    except StoreError as error:
        return error
    return None


def _works(store):
    return _failure(store) is None


def _extends(store, row):
    with contextlib.suppress(TransientStoreError):
        return store.extend({row.key: row.token}, **LEASE)

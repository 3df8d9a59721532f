"""Tests that the defaults of a server's sessions change nothing of what psched reads and writes."""

import contextlib
import sqlite3
from dataclasses import replace

import psycopg
import pymysql
import pytest
from sqlalchemy import make_url

from psched.base.clock import SystemClock
from psched.base.errors import AlreadyExistsError, InvalidError, StoreError, StoreUnavailableError
from psched.core.model import Row, Settlement
from psched.core.selection import Selection
from psched.core.store_protocol import Settled
from support.servers import LOOPBACK
from support.waiting import HANG_TIMEOUT

CLAIM = {"limit": 20, "alive_time": 60, "shortest": 6, "horizon": 0}

ODD = Row(key="odd", type="a\\b'\"", data='{"a":"\\\\"}', next_time=1, next_run_time=1)

MARIADB = {
    "autocommit": "0",
    "completion_type": "1",
    "max_sort_length": "8",
    "sql_auto_is_null": "1",
    "sql_big_selects": "0",
    "sql_mode": "'ORACLE,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH'",
    "sql_safe_updates": "1",
    "sql_select_limit": "3",
    "time_zone": "'+05:45'",
    "tx_isolation": "'SERIALIZABLE'",
    "unique_checks": "0",
    "wsrep_dirty_reads": "1",
}
"""Defaults of MariaDB's sessions that psched replaces."""

MARIADB_KEPT = {
    "character_set_server": "'utf16'",
    "default_storage_engine": "'Aria'",
    "div_precision_increment": "0",
    "foreign_key_checks": "0",
    "group_concat_max_len": "4",
    "max_join_size": "1",
    "max_recursive_iterations": "0",
}
"""Defaults on which no statement of psched's depends; max_join_size needs sql_big_selects = 0."""

POSTGRESQL = {
    "array_nulls": "off",
    "client_encoding": "latin1",
    "default_transaction_isolation": "serializable",
    "exit_on_error": "on",
    "lock_timeout": "1",
    "quote_all_identifiers": "on",
    "standard_conforming_strings": "off",
    "statement_timeout": "'10min'",  # a short one would end the statements that replace it
}
"""Defaults of PostgreSQL's sessions that psched replaces."""

POSTGRESQL_KEPT = {
    "backslash_quote": "off",
    "bytea_output": "escape",
    "DateStyle": "'SQL, DMY'",
    "default_transaction_deferrable": "on",
    "extra_float_digits": "-15",
    "IntervalStyle": "sql_standard",
    "row_security": "off",
    "TimeZone": "'Asia/Kathmandu'",
    "transform_null_equals": "on",
}
"""Defaults on which no statement of psched's depends."""


def is_used_as_ever(store, other):
    """Check that a store creates its tables, and reads and writes everything.

    Args:
        store: the store; it has no tables yet.
        other: another store on the same database, which sees only what was committed.
    """
    assert store.init()
    assert other.init() == []
    rows = [Row(key=f"k{n}", cron="@daily", next_time=1, next_run_time=1) for n in range(30)]
    store.add([*rows, ODD], nonce="n")
    assert abs(store.now() - SystemClock().wall()) < HANG_TIMEOUT
    found = {row.key: row for row in other.rows()}
    assert len(found) == other.count() == 31
    assert [row.key for row in other.rows(Selection(by_key=True))] == sorted(found)
    assert found["odd"].type == ODD.type
    assert found["odd"].data in (ODD.data, ODD.data.encode())
    assert (found["odd"].cron, found["k1"].cron) == (None, "@daily")
    with pytest.raises(AlreadyExistsError):
        store.add([ODD], nonce="m")
    # A transaction, and then a statement that commits by itself.
    assert all(store.replace_many([(row, replace(row, delay=5)) for row in found.values()]))
    leased = store.claim("w.1", **CLAIM).rows
    assert sum(row.owner == "w.1" for row in other.rows()) == len(leased) == 20
    ends = [Settlement.of(row, rest=True, status="finished") for row in leased]
    assert {*store.settle(ends).values()} == {Settled.DONE}
    assert sum(row.status == "finished" and row.delay == 5 for row in other.rows()) == 20


@pytest.mark.mariadb
class TestMariaDB:
    @pytest.fixture
    def server(self, start_mariadb):
        server = start_mariadb()
        server.query("CREATE USER u IDENTIFIED BY 'p'")
        return server

    @pytest.fixture
    def url(self, server):
        """The url of an empty database for a user to whom init_connect applies."""
        name = server.create_database()
        server.query(f"GRANT ALL ON {name}.* TO u")
        return f"mysql+pymysql://u:p@{LOOPBACK}:{server.port}/{name}"

    def test_the_defaults_of_the_server_may_be_any(self, server, url, open_at):
        defaults = MARIADB | MARIADB_KEPT
        for name, value in defaults.items():
            server.query(f"SET GLOBAL {name} = {value}")
        store = open_at(url)
        is_used_as_ever(store, open_at(url))
        query = f"SELECT {', '.join(f'@@global.{name}, @@session.{name}' for name in defaults)}"
        [values] = store._connector.read(lambda c: c.exec_driver_sql(query).all())
        pairs = zip(defaults, values[::2], values[1::2], strict=True)
        assert {name for name, odd, ours in pairs if odd == ours} == {*MARIADB_KEPT}

    @pytest.mark.parametrize(
        "begin",
        [
            "SET autocommit = 0",
            "BEGIN",
            "SET completion_type = CHAIN",
            "SET timestamp = 1000",
            "SET sql_select_limit = 3; SET NAMES latin1; SET sql_auto_is_null = 1",
        ],
    )
    def test_what_the_server_does_on_connecting_may_be_anything(self, server, url, open_at, begin):
        server.query(f'SET GLOBAL init_connect = "{begin}"')
        is_used_as_ever(open_at(url), open_at(url))

    def test_a_programs_session_may_have_another_character_set(self, server, url, open_at):
        store = open_at(url)
        store.init()
        connection = pymysql.connect(
            host=LOOPBACK,
            port=server.port,
            user="u",
            password="p",
            database=make_url(url).database,
            charset="latin1",
            init_command="SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
        )
        with connection:
            joined = store.join_transaction(connection)
            data = '{"a":"\xe9\\\\\'"}'
            joined.add([replace(ODD, key="\xe9", data=data, options=data)], nonce="n")
            with pytest.raises(
                InvalidError, match=r"^connection: '\u4e2d' is not in its character"
            ):
                joined.add([replace(ODD, key="\u4e2d")], nonce="n")
            connection.commit()
        [row] = store.rows()
        assert (row.key, row.type) == ("\xe9", ODD.type)
        assert row.data == row.options == data.encode()

    def test_a_refusal_after_the_login_is_not_said_to_be_one_of_the_login(
        self, server, url, open_at
    ):
        server.query('SET GLOBAL init_connect = "nonsense"')
        with pytest.raises(
            StoreUnavailableError, match=r"\(1184, .*; correct what the server names"
        ):
            open_at(url).now()


@pytest.mark.postgresql
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
class TestPostgreSQL:
    def are_replaced(self, database, open_at):
        """Check that the defaults are those above, and that psched works as ever."""
        defaults = POSTGRESQL | POSTGRESQL_KEPT
        shown = ", ".join(f"current_setting('{name}')" for name in defaults)
        query = f"SELECT {shown}"
        with psycopg.connect(
            host=LOOPBACK,
            port=database.server.port,
            user="postgres",
            dbname=make_url(database.url).database,
        ) as plain:
            [odd] = plain.execute(query).fetchall()
        store = open_at(database.url)
        is_used_as_ever(store, open_at(database.url))
        [ours] = store._connector.read(lambda c: c.exec_driver_sql(query).all())
        triples = zip(defaults, odd, ours, strict=True)
        assert {name for name, odd, ours in triples if odd == ours} == {*POSTGRESQL_KEPT}

    @pytest.mark.parametrize("of_role", [False, True], ids=["database", "role"])
    def test_the_defaults_of_the_database_or_role_may_be_any(self, database, open_at, of_role):
        name = make_url(database.url).database
        whose = f"ROLE postgres IN DATABASE {name}" if of_role else f"DATABASE {name}"
        for setting, value in (POSTGRESQL | POSTGRESQL_KEPT).items():
            database.server.query(f"ALTER {whose} SET {setting} = {value}")
        self.are_replaced(database, open_at)

    def test_the_defaults_of_the_environment_may_be_any(self, database, open_at, monkeypatch):
        values = (POSTGRESQL | POSTGRESQL_KEPT).items()
        plain = {name: value.strip("'").replace(" ", r"\ ") for name, value in values}
        monkeypatch.setenv("PGOPTIONS", " ".join(f"-c {k}={v}" for k, v in plain.items()))
        self.are_replaced(database, open_at)

    def test_a_programs_session_reads_the_time_with_all_its_digits(self, database, open_at):
        store = open_at(database.url)
        name = make_url(database.url).database
        database.server.query(f"ALTER DATABASE {name} SET extra_float_digits = -15")
        connection = psycopg.connect(
            host=LOOPBACK, port=database.server.port, user="postgres", dbname=name
        )
        with connection:
            assert (
                abs(store.join_transaction(connection).now() - SystemClock().wall()) < HANG_TIMEOUT
            )


class TestSQLite:
    def test_a_file_in_another_encoding_is_refused(self, open_at, tmp_path):
        file = tmp_path / "psched.db"
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA encoding = 'UTF-16le'")
            connection.execute("CREATE TABLE theirs (n INTEGER)")
        with pytest.raises(StoreError, match="its encoding is UTF-16le; name another file in url"):
            open_at(f"sqlite:///{file}").init()

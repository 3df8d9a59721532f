"""Announcements: within transactions, and when the connection of who listens breaks."""

import contextlib
import re
from pathlib import Path

import pytest
from sqlalchemy import create_engine

import psched
from psched import StoreError
from psched.base.errors import NotSupportedError
from psched.core.model import Row
from psched.stores.redis import connector as redis_connector
from psched.stores.sql.dialects import postgresql as postgresql_dialect
from psched.testing.store_contract.announcing import announce, listening
from support.stores import Sql, make_store, store_factory

postgresql = pytest.mark.parametrize(
    "database", [pytest.param("postgresql", marks=pytest.mark.postgresql)], indirect=True
)
announcing = pytest.mark.parametrize(
    "database",
    [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("postgresql", "redis")],
    indirect=True,
)


@pytest.fixture
def begin(database):
    """Begins a transaction of a program."""
    engine = create_engine(database.url)
    yield engine.begin
    engine.dispose()


@postgresql
def test_an_announcement_in_a_transaction_arrives_with_its_commit(open_store, begin):
    store = open_store()
    with listening(open_store()) as listener:
        with begin() as connection:
            transaction = store.join_transaction(connection)
            transaction.add([Row(key="a", next_time=1, next_run_time=1)], nonce="n")
            transaction.announce()
            announce(store)
            listener.wait()  # of the store
            assert listener.heard_nothing()
        listener.wait()  # of the transaction


@postgresql
def test_an_announcement_in_a_transaction_that_is_rolled_back_is_not_made(open_store, begin):
    store = open_store()
    with listening(open_store()) as listener:
        with contextlib.suppress(ZeroDivisionError), begin() as connection:
            store.join_transaction(connection).announce()
            1 / 0  # noqa: B018
        announce(store)
        listener.wait()
        assert listener.heard_nothing()


@postgresql
def test_an_announcement_leaves_a_transaction_as_it_was(open_store, begin):
    store = open_store()
    with begin() as connection:
        transaction = store.join_transaction(connection)
        transaction.announce()
        transaction.add([Row(key="a", next_time=1, next_run_time=1)], nonce="n")
    assert store.get("a").settled_by == "n"


@announcing
def test_tables_of_one_database_are_told_apart(database, open_store):
    with store_factory(database.url, table="other") as open_other:
        open_other().init()
        with listening(open_store()) as listener, listening(open_other()) as other:
            announce(open_other())
            other.wait()
            announce(open_store())
            listener.wait()
            assert listener.heard_nothing()
            assert other.heard_nothing()


def cut(database):
    """Break the connections of all others, as a server that is stopped does."""
    if database.kind == "redis":
        database.server.query("CLIENT", "KILL", "TYPE", "pubsub")
    else:
        others = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN %'"
        for (pid,) in Sql(database.url)(others):
            Sql(database.url)("SELECT pg_terminate_backend(:pid)", pid=pid)


@announcing
def test_a_connection_that_breaks_is_an_error(database, open_store):
    begun = []

    def is_over():
        if not begun:
            begun.append(True)
            cut(database)
        return False

    with pytest.raises(StoreError):
        open_store().announcements.listen(lambda: None, is_over)


@announcing
def test_who_hears_nothing_asks_the_server_now_and_then(open_store, monkeypatch):
    for module in postgresql_dialect, redis_connector:
        monkeypatch.setattr(module, "_LOOKS_PER_PROBE", 1)
    heard, rounds = [], []

    def is_over():
        rounds.append(True)
        if len(rounds) == 2:
            announce(open_store())
        return len(heard) > 1

    open_store().announcements.listen(lambda: heard.append(True), is_over)
    assert len(heard) == 2


@pytest.mark.parametrize(
    "database", [pytest.param("redis", marks=pytest.mark.redis)], indirect=True
)
def test_announcements_that_arrive_together_leave_nothing_unread(database, open_store, monkeypatch):
    monkeypatch.setattr(redis_connector, "_LOOKS_PER_PROBE", 1)
    store = open_store()
    channel = store._connector._channel
    twice = "for _ = 1, 2 do redis.call('publish', KEYS[1], '') end"
    heard, rounds = [], []

    def is_over():
        rounds.append(True)
        if len(rounds) == 2:
            database.server.query("EVAL", twice, "1", channel)
        elif len(rounds) == 5:
            monkeypatch.setattr(redis_connector, "_LOOKS_PER_PROBE", 10**6)
        elif len(rounds) == 6:
            heard.clear()
            announce(open_store())
        return len(rounds) > 6 and (bool(heard) or len(rounds) > 12)

    store.announcements.listen(lambda: heard.append(True), is_over)
    assert heard


@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True
)
def test_other_databases_announce_nothing_and_refuse_to_listen(open_store, begin):
    store = open_store()
    assert store.announcements is not None
    store.announcements.announce()
    with pytest.raises(NotSupportedError, match="use local"):
        store.announcements.listen(lambda: None, lambda: True)
    store.disconnect()
    with begin() as connection:
        store.join_transaction(connection).announce()


@pytest.mark.parametrize(
    "database", [pytest.param("redis", marks=pytest.mark.redis)], indirect=True
)
def test_the_rights_in_the_documentation_suffice_and_a_push_needs_none_of_them(database):
    document = (Path(__file__).parents[2] / "docs/redis.md").read_text()
    [needed] = re.findall(r"\nACL SETUSER psched on >SECRET (.*)\n", document)
    [more] = re.findall(r"needs these rights, besides those above: `([^`]*)`", document)
    make_store(database.url).init()
    url = database.url.replace("://", "://announcer:s3cret@")

    def allow(*rights):
        query = database.server.query
        query("ACL", "SETUSER", "announcer", "reset", "on", ">s3cret", *rights)

    try:
        allow(*needed.split())
        settings = {"url": url, "wake": "notify", "dispatch": "tests:Dispatch"}
        with psched.open(settings) as schedules, store_factory(url) as open_mine:
            with pytest.raises(StoreError, match="NOPERM"):
                announce(open_mine())
            assert schedules.push("k").exists()
            allow(*needed.split(), *more.split())
            with listening(open_mine()) as listener:
                schedules.push("k2")
                listener.wait()
    finally:
        database.server.query("ACL", "DELUSER", "announcer")

"""Tests of databases whose disk is full; for SQLite see test_sqlite_errors."""

import os
import secrets

import pytest

from psched.base.errors import StoreUnavailableError, TransientStoreError
from psched.core.model import Row
from support.disks import small_disk
from support.stores import store_factory
from support.waiting import wait_until

CLAIM = {"limit": 10, "alive_time": 60, "shortest": 6, "horizon": 0}


@pytest.fixture
def disk(servers):
    """A folder on a separate disk, and a function that fills it up to some free megabytes."""
    with small_disk(servers) as made:
        yield made


def fill(store):
    for number in range(200):
        data = secrets.token_hex(200_000)
        store.add([Row(key=f"n{number}", data=data, next_run_time=None)], nonce="n")


def is_refused_until_there_is_room(url, *, shrink, make_room, number):
    with store_factory(url) as open_store:
        store = open_store()
        store.init()
        store.add([Row(key="k", next_time=1, next_run_time=1)], nonce="n")
        shrink()
        told = rf"^the database is unavailable: \({number}, "
        with pytest.raises(StoreUnavailableError, match=told):
            fill(store)
        # Reads can fail, too, because PostgreSQL may have to write a changed page before it reads.
        make_room()
        wait_until(lambda: is_read(store, "k"), what="an answer")
        more = Row(key="more", data="x" * 50_000, next_time=1, next_run_time=1)
        wait_until(lambda: is_added(store, more), what="room")
        assert {row.key for row in store.claim("w.1", **CLAIM).rows} == {"k", "more"}


def is_added(store, row):
    try:
        store.add([row], nonce="n")
    except TransientStoreError:
        return False
    return True


def is_read(store, key):
    try:
        return store.get(key).key == key
    except TransientStoreError:
        return False


@pytest.mark.postgresql
def test_what_does_not_fit_into_postgresql_can_be_asked_again(disk, start_postgresql):
    """The server's log is on another disk, because a server without room for its log stops."""
    place, leave = disk
    # A server of its own, because afterwards it lacks the files of this disk.
    server = start_postgresql()
    folder = place / "data"
    folder.mkdir(0o700)
    owner = server.data.stat()
    os.chown(folder, owner.st_uid, owner.st_gid)
    server.query(f"CREATE TABLESPACE small LOCATION '{folder}'")
    server.query("CREATE DATABASE small TABLESPACE small")
    is_refused_until_there_is_room(
        server.url("small"),
        shrink=lambda: leave(3),
        make_room=lambda: leave(100),
        number="53100",
    )


@pytest.mark.mariadb
def test_what_does_not_fit_into_mariadb_can_be_asked_again(start_mariadb):
    """A tablespace that has reached its maximum, because on a full disk the server may crash."""
    in_one = "--innodb-file-per-table=0"
    server = start_mariadb(in_one, "--innodb-data-file-path=ibdata1:12M:autoextend:max:24M")

    def enlarge():
        server.flags = (in_one,)
        server.restart()

    is_refused_until_there_is_room(
        server.url(server.create_database()),
        shrink=lambda: None,
        make_room=enlarge,
        number="1114",
    )

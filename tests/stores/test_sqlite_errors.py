"""Tests of SQLite with several processes, on a full disk, with a read-only or missing file."""

import contextlib
import os
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest

from psched.base.clock import SystemClock
from psched.base.errors import (
    AlreadyExistsError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
)
from psched.core.model import Row, Token
from support.isolated import say, started_isolated
from support.odd_files import KINDS, leave
from support.stores import make_store, store_factory
from support.waiting import wait_until

CLAIM = {"limit": 10, "alive_time": 60, "shortest": 6, "horizon": 0}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "psched.db"


@pytest.fixture
def open_store(file):
    with store_factory(f"sqlite:///{file}") as factory:
        factory().init()
        yield factory


@pytest.fixture
def store(open_store):
    return open_store()


def add(store, *keys):
    store.add([Row(key=key, next_time=1, next_run_time=1) for key in keys], nonce="n")


@contextlib.contextmanager
def unavailable(text):
    """Check that the block raises an error which says that the request was not applied."""
    with pytest.raises(StoreUnavailableError, match=text):
        yield


def lock(file):
    """Hold SQLite's only write lock; runs in another process until this process is killed."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    say("locked")
    signal.pause()


class TestLocks:
    def test_a_locked_database_is_not_written_and_that_is_known(self, store, file):
        add(store, "k")
        with started_isolated(lock, str(file)) as other:
            other.said("locked")
            with unavailable("busy"):
                store.claim("w.1", **CLAIM)
            with unavailable("busy"):
                store.delete("k")
            with unavailable("busy"):
                add(store, "new")
        assert [row.version for row in store.rows()] == [1]
        assert len(store.claim("w.1", **CLAIM).rows) == 1

    def test_a_locked_database_can_be_read(self, store, open_store, file):
        add(store, "k")
        with started_isolated(lock, str(file)) as other:
            other.said("locked")
            assert store.get("k").key == "k"
            assert open_store().look(["k"])

    def test_a_lock_that_passes_is_waited_for(self, store, file):
        with started_isolated(lock_often, str(file)) as other:
            other.said("starts")
            for number in range(20):
                add(store, f"k{number}")
        assert len([*store.rows()]) == 20


MANY = 1000
"""How often a process extends its lease while the others try to do the same."""


def lock_often(file):
    """Write for ever, in transactions of 0.1 s; runs in another process."""
    clock, connection = SystemClock(), sqlite3.connect(file, isolation_level=None, timeout=60)
    say("starts")
    while True:
        connection.execute("BEGIN IMMEDIATE")
        clock.sleep(0.1)
        connection.execute("COMMIT")
        clock.sleep(0.002)


def extend_until_one_has(url, key, owner, folder):
    """Extend a lease until the first of several processes has done so `MANY` times.

    It runs in another process, and returns how often it has succeeded.
    """
    store, over = make_store(url), Path(folder) / "over"
    store.now()  # connected
    say("ready")
    wait_until((Path(folder) / "go").exists, what="the start")
    written = 0
    while written < MANY and not over.exists():
        with contextlib.suppress(StoreBusyError):  # on a slow machine, others hold the lock
            written += len(store.extend({key: Token(owner, 1)}, alive_time=60, shortest=6))
    over.touch()
    return written


def test_of_several_processes_that_write_none_starves(store, file, tmp_path):
    """SQLite's own wait for a lock may let one of four writers through once in two seconds."""
    keys = ["a", "b", "c", "d"]
    add(store, *keys)
    owner = store.claim("w.1", **CLAIM).rows[0].owner
    with contextlib.ExitStack() as started:
        writers = [
            started.enter_context(
                started_isolated(
                    extend_until_one_has, f"sqlite:///{file}", key, owner, str(tmp_path)
                )
            )
            for key in keys
        ]
        for writer in writers:
            writer.said("ready")
        (tmp_path / "go").touch()
        written = [writer.result() for writer in writers]
    assert min(written) >= MANY / 100, written


class TestFiles:
    def test_a_missing_folder_is_said_with_the_mend(self, tmp_path):
        store = make_store(f"sqlite:///{tmp_path}/missing/psched.db")
        with unavailable(
            f"^no database at {tmp_path}/missing/psched.db: run `psched init`, or correct url$"
        ):
            store.now()
        assert not (tmp_path / "missing").exists()
        store.init()
        assert store.now() > 0
        store.disconnect()

    def test_a_file_that_is_no_database_is_said(self, tmp_path):
        (tmp_path / "psched.db").write_text("a letter to my aunt\n" * 1000)
        store = make_store(f"sqlite:///{tmp_path}/psched.db")
        for request in (store.now, store.init):
            with pytest.raises(StoreError, match="not a database"):
                request()

    def test_a_folder_is_no_database(self, tmp_path):
        with unavailable("cannot connect"):
            make_store(f"sqlite:///{tmp_path}").now()

    def test_a_database_that_cannot_be_written_is_read_only(self, store, file):
        add(store, "k")
        with store_factory(f"sqlite:///file:{file}?mode=ro&uri=true") as open_reader:
            reader = open_reader()
            assert reader.get("k").key == "k"
            for write in (lambda: reader.claim("w.1", **CLAIM), lambda: add(reader, "new")):
                with unavailable("read-only"):
                    write()
            assert reader.get("k").fence == 0


def fill(store):
    for number in range(100):
        store.add([Row(key=f"n{number}", data="x" * 50_000)], nonce="n")


class TestFullDisk:
    @pytest.fixture
    def disk(self, tmp_path):
        """A folder with room for half a megabyte."""
        folder = tmp_path / "disk"
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
            pytest.skip("only root can make a small disk")
        yield folder
        subprocess.run(["umount", "--lazy", str(folder)], check=True)

    def test_what_does_not_fit_is_not_written_and_can_be_asked_again(self, disk):
        with store_factory(f"sqlite:///{disk}/psched.db") as open_store:
            store = open_store()
            store.init()
            add(store, "k")
            with pytest.raises(StoreUnavailableError):
                fill(store)
            count = len([*store.rows()])
            with pytest.raises(StoreUnavailableError):
                store.add([Row(key="more", data="x" * 200_000)], nonce="n")
            assert len([*open_store().rows()]) == count
            store.disconnect()
            # Somebody frees disk space.
            with sqlite3.connect(disk / "psched.db", isolation_level=None) as connection:
                subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
                connection.execute("DELETE FROM psched WHERE id <> 'k'")
            connection.close()
            add(store, "more")
            assert {row.key for row in store.claim("w.1", **CLAIM).rows} == {"k", "more"}

    def test_a_database_at_its_largest_refuses_in_the_same_way(self, store):
        add(store, "k")
        pages = store._connector.run(lambda c: c.exec_driver_sql("PRAGMA page_count").scalar())
        store._connector.run(lambda c: c.exec_driver_sql(f"PRAGMA max_page_count = {pages}"))
        with unavailable("full"):
            store.add([Row(key="more", data="x" * 50_000)], nonce="n")
        # The limit was dropped with the connection.
        store.add([Row(key="more", data="x" * 50_000)], nonce="n")
        with pytest.raises(AlreadyExistsError):
            add(store, "k")


class TestAnotherFile:
    """Tests in which somebody moves or removes the file, or replaces it by another file."""

    def test_a_file_that_is_moved_away_is_missed_and_none_is_made(self, store, open_store, file):
        add(store, "k")
        away = file.rename(file.with_name("away"))
        with unavailable("its file has been moved, removed or replaced"):
            store.get("k")
        for other in store, open_store():
            with unavailable("^no database at "):
                other.get("k")
        assert not file.exists()
        away.rename(file)
        assert store.get("k").key == "k"
        add(open_store(), "l")
        assert store.get("l").key == "l"

    def test_a_reader_meanwhile_does_not_cost_what_was_written(self, store, open_store, file):
        add(store, "k")
        away = file.rename(file.with_name("away"))
        with unavailable("^no database at "):
            open_store().get("k")
        away.rename(file)
        # What was written last is in the write-ahead log, which has stayed where it was.
        assert open_store().get("k").key == "k"

    def test_a_file_in_its_place_is_used_instead(self, store, file, tmp_path):
        add(store, "old")
        with store_factory(f"sqlite:///{tmp_path}/other.db") as factory:
            other = factory()
            other.init()
            add(other, "new")
            other.disconnect()
            (tmp_path / "other.db").rename(file)
            with unavailable("moved, removed or replaced"):
                store.get("new")
            store.disconnect()


class TestWhatTasksLeave:
    @pytest.mark.parametrize("beside", ["-wal", "-shm", "-journal"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_what_is_no_file_beside_it_is_removed(self, open_store, file, kind, beside):
        leave(kind, file.with_name(file.name + beside))
        store = open_store()
        add(store, "k")
        assert store.get("k").key == "k"

    @pytest.mark.parametrize("kind", ["fifo", "folder", "socket", "link to a fifo"])
    def test_what_is_no_file_in_its_place_is_not_waited_for(self, open_store, file, kind):
        file.unlink()
        leave(kind, file)
        with pytest.raises(StoreError):
            open_store().get("k")

    @pytest.mark.parametrize("umask", [0o022, 0o077])
    def test_others_may_not_read_it(self, file, umask):
        before = os.umask(umask)
        try:
            with store_factory(f"sqlite:///{file}") as factory:
                store = factory()
                store.init()
                add(store, "k")
                modes = {path.stat().st_mode & 0o777 for path in file.parent.glob("psched.db*")}
        finally:
            os.umask(before)
        assert modes == {0o640 & ~umask}

"""A collection that was opened before a fork, as by a server that loads its application first."""

import os
import signal
import threading
import traceback
import warnings
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

import psched
from support.waiting import HANG_TIMEOUT, PATIENCE


def open_connections():
    """How many sockets and database files this process has open."""
    opened = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            target = str(each.readlink())
        except FileNotFoundError:
            continue  # it was the descriptor of the folder itself
        opened += target.startswith("socket:") or target.endswith(".db")
    return opened


def in_child(work, meanwhile=lambda: None):
    """Run a function in a forked process, another one here, and return the child's exit status.

    The status is 0 if nothing was raised.
    """
    pid = os.fork()  # noqa: TID251  # as a server forks that knows nothing of psched
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001  # the test must not go on in the child
            traceback.print_exc()
        finally:
            os._exit(status)
    meanwhile()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_process_opens_a_connection_of_its_own(schedules, database):
    schedules.push("before", "t")

    def child():
        inherited = open_connections()
        assert inherited or database.kind == "sqlite"  # whose file is closed before a fork
        schedules.push("child", "t")
        assert open_connections() > inherited

    assert in_child(child) == 0
    opened = open_connections()
    schedules.push("parent", "t")
    assert open_connections() == opened or database.kind == "sqlite", "the parent's was closed"
    assert {each.key for each in schedules} == {"before", "child", "parent"}


def test_a_child_that_closes_its_collection_leaves_the_parent_connected(schedules, database):
    schedules.push("before", "t")
    assert in_child(schedules.close) == 0
    opened = open_connections()
    schedules.push("parent", "t")
    assert open_connections() == opened or database.kind == "sqlite"


def test_what_a_child_has_pushed_stays_when_the_parent_closes_its_collection(schedules):
    """SQLite would delete the log into which the child writes, if it were open during the fork."""
    schedules.push("before", "t")
    (told, tell), (heard, hear) = os.pipe(), os.pipe()

    def child():
        schedules.push("first", "t")
        os.write(tell, b"1")
        os.read(heard, 1)
        schedules.push("second", "t")

    def parent():
        os.read(told, 1)
        schedules.close()
        schedules.push("parent", "t")
        os.write(hear, b"1")

    assert in_child(child, meanwhile=parent) == 0
    for end in told, tell, heard, hear:
        os.close(end)
    schedules.close()
    assert {each.key for each in schedules} == {"before", "first", "second", "parent"}


def request_of(schedules):
    """The time of a request. A store on Redis has none."""
    return getattr(schedules._store._connector, "request", nullcontext)()


@contextmanager
def in_thread(settings, use):
    """Push by a collection of another thread, which then calls ``use`` with the collection."""
    pushed, end = threading.Event(), threading.Event()
    theirs = psched.open(settings)

    def work():
        with theirs:
            theirs.push("thread", "t")
            with use(theirs):
                pushed.set()
                assert end.wait(HANG_TIMEOUT)

    thread = threading.Thread(target=work)
    thread.start()
    assert pushed.wait(PATIENCE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's, of a fork beside a thread
        yield theirs
    end.set()
    thread.join()


def test_a_thread_that_sends_no_request_just_then_keeps_no_child_from_pushing(settings, schedules):
    with in_thread(settings, lambda _theirs: nullcontext()):
        assert in_child(lambda: schedules.push("child", "t")) == 0
        schedules.push("parent", "t")
    assert {each.key for each in schedules} == {"thread", "child", "parent"}


def test_a_child_does_not_use_a_file_that_another_thread_was_using(settings, schedules, database):
    def child():
        if database.kind != "sqlite":
            schedules.push("child", "t")
            return
        for collection in schedules, psched.open(settings):
            with pytest.raises(psched.StoreError, match="another thread was using it when"):
                collection.push("child", "t")

    with in_thread(settings, request_of):
        assert in_child(child) == 0
        schedules.push("parent", "t")
    pushed = {"thread", "parent"} if database.kind == "sqlite" else {"thread", "child", "parent"}
    assert {each.key for each in schedules} == pushed


def test_a_thread_that_has_ended_keeps_no_child_from_pushing(settings, schedules):
    theirs = []

    def work():
        theirs.append(psched.open(settings))
        theirs[0].push("thread", "t")  # and does not close it

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert in_child(lambda: schedules.push("child", "t")) == 0
    theirs[0].push("parent", "t")
    theirs[0].close()
    assert {each.key for each in schedules} == {"thread", "child", "parent"}


def test_a_fork_of_a_signal_handler_leaves_the_request_alone_that_it_interrupts(schedules):
    with request_of(schedules):
        schedules.push("first", "t")
        opened = open_connections()
        assert in_child(lambda: None) == 0
        assert open_connections() == opened
        schedules.push("second", "t")
    assert {each.key for each in schedules} == {"first", "second"}


def test_a_file_that_could_not_be_opened_is_not_taken_for_open(tmp_path):
    file = tmp_path / "later" / "psched.db"
    with psched.open({"url": f"sqlite:///{file}", "dispatch": "jobs:Dispatch"}) as schedules:
        with pytest.raises(psched.StoreError):
            schedules.push("before", "t")

        def child():
            file.parent.mkdir()
            schedules._store.init()
            schedules.push("child", "t")

        assert in_child(child) == 0
        assert schedules["child"].exists()


@contextmanager
def about_to_open(schedules):
    """The moment at which a request has begun and the connection is not open yet."""
    with request_of(schedules):
        schedules._store.disconnect()
        yield


def test_a_child_does_not_wait_for_a_thread_that_it_does_not_have(settings, schedules):
    with in_thread(settings, about_to_open) as theirs:

        def child():
            signal.alarm(int(PATIENCE))
            theirs.push("child", "t")

        assert in_child(child) == 0
    assert {each.key for each in schedules} == {"thread", "child"}

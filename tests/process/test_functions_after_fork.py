"""An app in a process that was forked after the app had opened a connection."""

import os
import threading
import warnings

import pytest

import psched
from psched.app import make_store, read_config
from support.isolated import isolated


def push_in_parent_and_child(url):
    """What a web server does that loads the program, uses it, and forks its workers then."""
    warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of a fork beside a thread
    make_store(read_config({"url": url})).init()
    app = psched.App(url=url)

    @app.task("mail")
    def mail(who): ...

    reference = mail.push("parent")
    before = app._schedules.current()
    opened = before._store._connector._connection
    ready, go_on = threading.Event(), threading.Event()

    def other_thread():
        mail.push("thread")
        ready.set()
        go_on.wait(60)

    thread = threading.Thread(target=other_thread)
    thread.start()
    ready.wait(60)
    app._schedules._lock.acquire()  # as if the other thread were just opening a connection
    child = os.fork()  # noqa: TID251
    if not child:
        status = 1
        try:
            mail.push("child")
            assert app._schedules.current() is not before
            assert before._store._connector._connection is opened  # not closed here
            assert reference.exists()
            app.close()
            status = 0
        finally:
            os._exit(status)
    app._schedules._lock.release()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    mail.push("parent again")
    go_on.set()
    thread.join()
    same = app._schedules.current() is before and before._store._connector._connection is opened
    who = sorted(each.data["who"] for each in app.schedules.list())
    app.close()
    return [status, same, who]


@pytest.mark.postgresql
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_child_opens_a_connection_of_its_own(database):
    status, same, who = isolated(push_in_parent_and_child, database.url)
    assert status == 0
    assert same
    assert who == ["child", "parent", "parent again", "thread"]

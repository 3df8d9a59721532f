"""Pushes that a worker of the same host picks up at once, long before its next poll."""

import contextlib
import os
import signal
import socket
import sys
import tempfile

import pytest
import sqlalchemy

from psched.master.runtime_folders import short_address
from support.odd_files import leave
from support.rare_polls import POLL, poll_rarely
from support.waiting import wait_until

pytestmark = pytest.mark.extended


@pytest.fixture
def here(service, monkeypatch):
    """A service whose workers never poll again, and whose master this process finds."""
    poll_rarely(service)
    monkeypatch.setenv("RUNTIME_DIRECTORY", service.env["RUNTIME_DIRECTORY"])
    return service


def started(service, *command, **how):
    """Start a master, and wait until its workers sleep until somebody wakes them."""
    service.add("first")
    master = service.start(*command, **how)
    service.wait_for_finish("first")
    service.wait_until_asleep()
    return master


def woken(service, key, change=None):
    """Have a task started by a change, by default a push: no poll finds it."""
    if change is None:
        with service.schedules() as schedules:
            schedules.push(key, "recorder")
    else:
        change()
    return service.runs.wait(key)[-1]


def sockets(service):
    """The sockets of masters for hints."""
    return [*(service.folder / "run").glob("wake.*.sock")]


def waits_for_a_poll(service, key):
    """See that a due task is not claimed, although everybody has heard all that was said."""
    # A worker may answer in the step in which it looks for due rows, and a second time only later.
    service.wait_until_asleep()
    service.wait_until_asleep()
    assert service.row(key).row.fence == 0


@pytest.mark.landing
def test_a_push_is_picked_up_at_once_on_each_database(each_service, monkeypatch):
    poll_rarely(each_service)
    monkeypatch.setenv("RUNTIME_DIRECTORY", each_service.env["RUNTIME_DIRECTORY"])
    master = started(each_service)
    for number in range(3):
        woken(each_service, f"k{number}")
    assert master.stop() == 0
    assert not [*(each_service.folder / "run").iterdir()]


def test_a_command_wakes_a_worker(here):
    started(here)
    woken(here, "pushed", lambda: here.psched("push", "pushed", "recorder", "{}"))


@pytest.mark.parametrize("folder", [None, "/run/shop"])
def test_a_program_that_does_not_know_the_masters_folder_wakes_a_worker(here, monkeypatch, folder):
    # The kernel lists the socket only if its path is short.
    with tempfile.TemporaryDirectory() as short:
        here.env["RUNTIME_DIRECTORY"] = short
        master = started(here)
        for env in os.environ, here.env:
            monkeypatch.delitem(env, "RUNTIME_DIRECTORY")
            if folder is not None:
                monkeypatch.setitem(env, "RUNTIME_DIRECTORY", folder)
        woken(here, "k")
        woken(here, "pushed", lambda: here.psched("push", "pushed", "recorder", "{}"))
        assert master.stop() == 0


def test_a_task_that_submits_a_task_wakes_a_worker(here):
    started(here)
    push = {"type": "recorder"}
    woken(here, "tick.1000000000", lambda: here.add("tick", "push", data=push))


def test_many_at_once_wake_as_many_workers_as_they_need(here):
    here.configure(processors=3)
    master = started(here)
    master.wait_for_workers(3)
    keys = [f"k{number}" for number in range(3)]
    with here.schedules() as schedules:
        data = {"until": "gate"}
        schedules.push_many({"key": key, "type": "recorder", "data": data} for key in keys)
    runs = [here.runs.wait(key)[-1] for key in keys]
    assert len({run.worker for run in runs}) == 3
    here.open_gate("gate")


def test_a_program_that_serves_its_own_handlers_is_woken_too(here):
    settings = {"url": here.url, "poll_interval": POLL, "processors": 1, "cgroup": "off"}
    here.write(
        "program.py", f"import psched, rarely\npsched.Worker.run(rarely.Dispatch, {settings})\n"
    )
    started(here, sys.executable, "program.py")
    woken(here, "k")


@pytest.mark.landing
def test_a_push_in_the_callers_transaction_wakes_a_worker_after_the_commit(here):
    started(here)
    engine = sqlalchemy.create_engine(here.url)

    def push():
        with here.schedules() as schedules, engine.begin() as mine:
            schedules.push("mine", "recorder", connection=mine)

    woken(here, "mine", push)
    engine.dispose()


def test_a_push_in_a_transaction_of_the_driver_waits_for_a_poll(here):
    started(here)
    engine = sqlalchemy.create_engine(here.url)
    mine = engine.raw_connection()
    with here.schedules() as schedules:
        schedules.push("mine", "recorder", connection=mine.driver_connection)
    mine.commit()
    mine.close()
    engine.dispose()
    waits_for_a_poll(here, "mine")
    woken(here, "other")
    woken(here, "mine", lambda: None)


def test_a_plain_insert_wakes_nobody_and_is_picked_up_with_the_next_push(here):
    started(here)
    here.insert("plain", "recorder", data={})
    waits_for_a_poll(here, "plain")
    woken(here, "k")
    woken(here, "plain", lambda: None)


@pytest.mark.landing
def test_with_wake_off_there_is_no_socket_and_nobody_is_woken(here):
    here.configure(wake="off")
    started(here)
    assert sockets(here) == []
    with here.schedules() as schedules:
        schedules.push("k", "recorder")
    waits_for_a_poll(here, "k")


def test_a_restart_with_other_settings_makes_the_socket_anew_or_removes_it(here):
    master = started(here)
    [before] = sockets(here)
    here.configure(table="other")
    here.init()
    master.send(signal.SIGHUP)
    master.wait_for_generation(2)
    wait_until(lambda: sockets(here) and sockets(here) != [before], what="another socket")
    here.wait_until_asleep()
    woken(here, "k")
    here.configure(wake="off")
    master.send(signal.SIGHUP)
    master.wait_for_generation(3)
    wait_until(lambda: sockets(here) == [], what="the end of the socket")


@pytest.mark.parametrize("kind", ["nothing", "link to a fifo", "full folder"])
def test_a_socket_that_vanishes_costs_no_push_and_comes_back(here, kind):
    started(here)
    [path] = sockets(here)
    path.unlink()
    leave(kind, path)
    with here.schedules() as schedules:
        schedules.push("unheard", "recorder")
    wait_until(path.is_socket, what="the socket")
    woken(here, "k")
    woken(here, "unheard", lambda: None)


def test_garbage_and_a_flood_of_hints_disturb_nobody(here):
    master = started(here)
    [path] = sockets(here)
    garbage = b"", os.urandom(9000), b'{"look": true}', *[b"look"] * 20_000
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as hostile,
        short_address(path) as address,
    ):
        for data in garbage:
            with contextlib.suppress(BlockingIOError):
                hostile.sendto(data, address)
    woken(here, "k")
    assert master.status is None
    assert "fault" not in master.text
    assert "Traceback" not in master.text


def test_hints_during_a_stop_are_read_and_obeyed_by_nobody(here):
    master = started(here)
    with here.schedules() as schedules:
        schedules.push("last", "recorder", {"until": "gate"})
        here.runs.wait("last")
        [path] = sockets(here)
        master.send(signal.SIGTERM)
        master.wait_for_log("stopping")
        schedules.push("late", "recorder")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender,
        short_address(path) as address,
    ):

        def fits():
            with contextlib.suppress(BlockingIOError):
                return sender.sendto(b"look", address)

        while fits():
            pass
        wait_until(fits, what="room in the socket")
    here.open_gate("gate")
    assert master.wait() == 0
    assert here.runs.runs("late") == []


def test_two_masters_of_different_tables_are_woken_apart(here, make_service, tmp_path):
    other = make_service(f"sqlite:///{tmp_path}/psched.db", table="other")
    poll_rarely(other)
    other.init()
    other.env["RUNTIME_DIRECTORY"] = here.env["RUNTIME_DIRECTORY"]
    started(here)
    started(other)
    assert len(sockets(here)) == 2
    woken(here, "k")
    woken(other, "k")


@pytest.mark.landing
def test_two_masters_of_one_table_run_a_push_once(here):
    first = started(here)
    second = here.start(generation=0)
    second.wait_for_generation(1)
    woken(here, "k")
    here.wait_for_finish("k")
    assert len(here.runs.runs("k")) == 1
    assert [first.stop(), second.stop()] == [0, 0]


def test_the_socket_is_for_the_group(here):
    started(here)
    [path] = sockets(here)
    assert path.stat().st_mode & 0o777 == 0o660

"""A running service, and the commands that people look at it with, beside rows of any kind."""

import contextlib
import json
import socket
import sqlite3

import pytest

from psched.master.runtime_folders import short_address
from support.fuzzing import cases, told
from support.service import services
from support.waiting import HANG_TIMEOUT, wait_until
from support.wrong_rows import wrong_row

ROWS = 150
CLIENTS = 100

SHOWING = (["list"], ["status"], ["export", "-"], ["list", "--json"], ["status", "--json"])
"""Commands that print what stands in rows."""


@pytest.fixture
def service(tmp_path):
    with services(tmp_path) as make:
        made = make(
            f"sqlite:///{tmp_path}/psched.db",
            processors=2, concurrency=4, max_tasks_per_child=100, catchup="latest", retry_wait=60,
            poll_interval=0.1,
        )  # fmt: skip
        made.init()
        yield made


def insert(connection, columns):
    names = ", ".join(columns)
    marks = ", ".join("?" * len(columns))
    with contextlib.suppress(sqlite3.Error, OverflowError, UnicodeError):
        connection.execute(f"INSERT INTO psched ({names}) VALUES ({marks})", [*columns.values()])  # noqa: S608


def test_no_process_of_a_service_dies_of_a_row(service):
    healthy = []
    with service.sql() as connection:
        for number, case in enumerate(cases("service", ROWS)):
            columns = wrong_row(case, number)
            if columns.get("type", "t") == "t":
                columns["type"] = "recorder"
            insert(connection, columns)
            if number % 15 == 0:
                healthy.append(f"healthy{number}")
                due = {"id": healthy[-1], "type": "recorder", "next_time": 1, "next_run_time": 1}
                insert(connection, due)
    master = service.start()
    workers = master.wait_for_workers(2)
    for key in healthy:
        service.runs.wait(key)

    def rest():
        with service.sql() as connection:
            due = "next_run_time <= unixepoch() AND (leased_by IS NULL OR status != 'waiting')"
            return connection.execute(f"SELECT COUNT(*) FROM psched WHERE {due}").fetchone() == (0,)  # noqa: S608

    wait_until(rest, what="rows that are run or set aside, all of them")
    assert master.workers() == workers
    for words in SHOWING:
        done = service.psched(*words)
        # export says with 1 that it has left rows out.
        assert done.returncode == 0 or "export" in words, (words, done.stderr)
        assert "Traceback" not in done.stderr
        if "export" not in words:  # a file
            assert_harmless(done.stdout)
        if "--json" in words:
            assert done.stdout.isascii()
            for document in done.stdout.splitlines():
                json.loads(document)
    assert_harmless(master.text)
    assert master.stop() == 0


def assert_harmless(text):
    """Nothing in it changes what a terminal shows."""
    odd = {c for c in text if not (c.isprintable() or c in "\n\t")}
    assert odd == set()


def test_no_client_of_the_control_socket_harms_a_master(service):
    master = service.start()
    workers = master.wait_for_workers(2)
    (door,) = (service.folder / "run").glob("master.*.sock")
    with contextlib.ExitStack() as opened:
        for case in cases("control", CLIENTS):
            with told(case):
                client = opened.enter_context(socket.socket(socket.AF_UNIX))
                client.settimeout(HANG_TIMEOUT)
                # One that is refused because there are too many has been dealt with, too.
                with contextlib.suppress(OSError), short_address(door) as address:
                    client.connect(address)
                    client.send(case.bytes(10_000))
                    if case.maybe():
                        client.close()
        wait_until(lambda: service.psched("status").returncode == 0, what="an answer")
    assert master.workers() == workers
    assert master.stop() == 0

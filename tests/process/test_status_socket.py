"""The status socket, in a folder that tasks can write, too."""

import json
import os
import socket
import threading
from contextlib import ExitStack

import pytest

from psched.base.clock import SystemClock
from psched.master.messages import STATUS
from psched.master.reports import queries
from psched.master.reports.status_socket import StatusSocket
from psched.process.link import Shapes, packed
from psched.testing import ManualClock
from support.odd_files import KINDS, leave
from support.waiting import HANG_TIMEOUT, wait_until

SAID = {
    "pid": os.getpid(), "phase": "serving", "generation": 1, "uptime": 1.0, "problem": None,
    "worker_deaths": 0, "workers": [], "errors": [],
}  # fmt: skip
"""What a master says to whoever asks."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / f"master.{os.getpid()}.sock"


@pytest.fixture
def master(tmp_path):
    """A master's socket, and whoever asks is answered when it advances."""
    master = StatusSocket([tmp_path], SystemClock())
    yield master
    master.close()


def advance(master):
    master._next_check = 0.0
    master.advance()
    master.answer(SAID)


def answer_of(master, folder):
    """What a person is told who asks."""
    told = []
    asking = threading.Thread(target=lambda: told.extend(queries.ask_all([folder])))
    asking.start()

    def answered():
        advance(master)
        return not asking.is_alive()

    wait_until(answered, what="the answer")
    asking.join()
    return told


@pytest.mark.parametrize("kind", [*KINDS, "file", "nothing"])
def test_a_socket_that_was_removed_or_replaced_is_made_again(master, path, kind):
    path.unlink()
    path.write_text("") if kind == "file" else leave(kind, path)
    advance(master)
    assert answer_of(master, path.parent) == [(os.getpid(), SAID)]


@pytest.mark.parametrize("kind", [*KINDS, "file", "nothing"])
def test_what_has_taken_its_place_is_not_in_the_way_of_an_end(tmp_path, path, kind):
    master = StatusSocket([tmp_path], SystemClock())
    path.unlink()
    path.write_text("") if kind == "file" else leave(kind, path)
    master.close()
    assert not os.path.lexists(path)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_there_before_a_start_is_not_in_the_way(tmp_path, path, kind):
    leave(kind, path)
    leave(kind, tmp_path / "master.4194305.sock")
    master = StatusSocket([tmp_path], SystemClock())
    assert path.is_socket()
    assert not os.path.lexists(tmp_path / "master.4194305.sock") or kind == "link to itself"
    master.close()


def test_a_folder_that_was_removed_is_made_again(tmp_path):
    folder = tmp_path / "run"
    master = StatusSocket([folder], SystemClock())
    [path] = folder.iterdir()
    path.unlink()
    folder.rmdir()
    advance(master)
    assert path.is_socket()
    master.close()


def test_a_request_for_output_may_arrive_long_after_its_client_was_accepted(master, path):
    with socket.socket(socket.AF_UNIX) as client:
        client.bind("")
        client.connect(str(path))
        for _ in range(3):
            advance(master)
        assert not master.asking
        client.sendall(packed({"follow": "s1"}))
        advance(master)
        assert [reader.asks_for for reader in master.asking] == ["s1"]
        with pytest.raises(BlockingIOError):
            client.recv(1, socket.MSG_DONTWAIT)
    advance(master)  # it closes the connection


def test_who_has_an_address_and_asks_for_nothing_is_disconnected(tmp_path):
    clock = ManualClock()
    master = StatusSocket([tmp_path], clock)
    [path] = tmp_path.iterdir()
    with socket.socket(socket.AF_UNIX) as client:
        client.bind("")
        client.connect(str(path))
        advance(master)
        clock.sleep(10)
        advance(master)
        assert client.recv(1) == b""
    master.close()


def test_a_client_is_answered_however_many_others_are_connected(master, path):
    def connect(*, streams):
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(HANG_TIMEOUT)
        if streams:
            client.bind("")
        client.connect(str(path))
        return client

    with ExitStack() as stack:
        follower = stack.enter_context(connect(streams=True))
        follower.sendall(packed({"follow": "s1"}))
        others = []
        for _ in range(40):  # each of them asks for nothing
            others.append(stack.enter_context(connect(streams=True)))
            advance(master)
        person = stack.enter_context(connect(streams=False))
        advance(master)
        with person.makefile("rb") as answer:
            assert json.loads(answer.read()) == SAID
        assert others[0].recv(1) == b""
        follower.settimeout(0)
        with pytest.raises(BlockingIOError):
            follower.recv(1)
    advance(master)  # it closes the connections


POSED = {
    "not a document": b"{",
    "a list": b"[]",
    "too deep": b"[" * 100_000,
    "no text": b"\xff\xfe",
    "nothing": b"",
    "only what may be missing": b'{"url": "sqlite://", "table": "psched"}',
    "no texts": json.dumps(SAID | {"programs": 1}).encode(),
}


def test_who_poses_as_a_master_is_not_waited_for_beside_the_others(master, tmp_path, monkeypatch):
    monkeypatch.setattr(queries, "_TIMEOUT", 8.0)
    monkeypatch.setattr(queries, "STATUS", Shapes(STATUS.kinds, longest=1 << 20))
    posing = {}
    for number, name in enumerate([*POSED, "silent", "deaf", "endless"], start=1):
        posing[name] = socket.socket(socket.AF_UNIX)
        posing[name].bind(str(tmp_path / f"master.{number}.sock"))
        posing[name].listen(0 if name == "deaf" else 5)
    filling = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for each in filling:
        each.setblocking(False)  # noqa: FBT003
        try:
            each.connect(posing["deaf"].getsockname())
        except BlockingIOError:
            break

    def pose():
        for name, said in POSED.items():
            connection, _ = posing[name].accept()
            with connection:
                connection.sendall(said)
        connection, _ = posing["endless"].accept()
        with connection:
            try:
                while True:
                    connection.sendall(b" " * 65536)
            except OSError:
                pass

    posers = threading.Thread(target=pose)
    posers.start()
    told = dict(answer_of(master, tmp_path))
    posers.join()
    for each in (*posing.values(), *filling):
        each.close()
    assert told.pop(os.getpid()) == SAID
    assert [type(each).__mro__[-4] for each in told.values()] == [OSError] * len(posing)
    assert json.dumps(sorted(told)) == json.dumps([*range(1, len(posing) + 1)])

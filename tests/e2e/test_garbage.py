"""Processes and clients that send what they must not send: the service goes on."""

import contextlib
import gzip
import json
import os
import signal
import socket
import struct
import threading
from pathlib import Path

import pytest

from psched.master.runtime_folders import short_address
from support.processes import kill
from support.waiting import wait_for_end, wait_until

# A worker loads no code of users but that of a store.
WILD = """
    import contextlib, gc, signal
    from psched.config import from_mapping
    from psched.process.link import Link
    from psched.app import create_store

    links = []

    def send(number, frame):
        for link in links:
            # Of the other workers' there is a copy here, but no socket any more.
            with contextlib.suppress(OSError):
                link._socket.send({garbage!r})

    def make(settings, **parts):
        links[:] = [each for each in gc.get_objects() if isinstance(each, Link)]
        signal.signal(signal.SIGRTMIN + 3, send)
        return create_store(from_mapping({{"url": {url!r}}}), **parts)
"""


def start_wild(service, garbage, **settings):
    """Start a master whose processes with a store send garbage when they get a signal."""
    url = service.url
    service.write("wild.py", WILD.format(garbage=garbage, url=url))
    service.configure(url=None, type="wild:make", **settings)
    master = service.start()
    service.configure(url=url, type=None)
    return master


def framed(message):
    text = json.dumps(message).encode()
    return struct.pack("!II", len(text), 0) + text


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack("!II", 2**32 - 1, 0),
        framed({"report": {"tasks": [{}], "errors": []}}),
    ],
)
def test_a_worker_that_sends_garbage_is_replaced_and_no_other_is(service, garbage):
    service.add("s1", data={"until": "gate"})
    master = start_wild(service, garbage, processors=2)
    before = master.wait_for_workers(2)
    [run] = service.runs.wait("s1")
    [idle] = {*before} - {run.worker}

    kill(idle, signal.SIGRTMIN + 3)

    wait_for_end(idle)
    master.wait_for_log(rf"worker \d \(gen 1\), pid {idle}, has sent .*: killed")
    after = wait_until(
        lambda: [pid for pid in master.wait_for_workers(2) if pid not in before],
        what="another in its place",
    )
    assert len(after) == 1
    service.open_gate("gate")
    service.wait_for_finish("s1")
    assert [each.worker for each in service.runs.runs("s1")] == [run.worker]
    assert master.stop() == 0


def test_what_a_worker_says_of_nonces_that_are_not_its_to_release_is_ignored(service):
    garbage = framed({"recovered": ["of another"]})
    service.add("s1", data={"until": "gate"})
    master = start_wild(service, garbage)
    [worker] = master.workers()
    service.runs.wait("s1")
    kill(worker, signal.SIGRTMIN + 3)
    service.open_gate("gate")
    service.wait_for_finish("s1")
    assert master.workers() == [worker]


def cpu_time(pid):
    """Seconds that a process has computed, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.extended
def test_rows_that_cost_a_parser_seconds_cost_a_worker_nothing(service):
    brackets = gzip.compress(b'{"a":[' + b"[]," * 5_000_000 + b"[]]}x", compresslevel=1)
    service.configure(concurrency=2)
    service.init()
    with service.sql() as connection:
        for n in range(4):
            connection.execute(
                f"INSERT INTO psched (id, next_time, {'data' if n % 2 else 'options'})"  # noqa: S608
                " VALUES (?, 1, ?)",
                [f"bad{n}", brackets],
            )
    service.add("good")
    master = service.start()
    [worker] = master.workers()
    service.wait_for_finish("good")
    for n in range(4):
        service.wait_for_row(f"bad{n}", lambda seen: seen.status == "quarantined")
    assert master.workers() == [worker]
    # Parsing one of them takes a second at least.
    assert cpu_time(worker) < 3
    assert len(service.runs.runs()) == 1
    assert master.stop() == 0


def test_who_talks_to_the_control_socket_is_hung_up_on_and_nobody_else(service):
    master = service.start()
    [door] = (service.folder / "run").glob("master.*.sock")
    with contextlib.ExitStack() as open_:
        talkers = []
        for n in range(200):
            each = open_.enter_context(socket.socket(socket.AF_UNIX))
            with short_address(door) as address:
                each.connect(address)
            with contextlib.suppress(OSError):
                each.send(b"\xff" * (n % 2) * 10_000)
            talkers.append(each)
        for each in talkers[1::2]:
            each.settimeout(20)
            with contextlib.suppress(ConnectionError):
                while each.recv(1 << 16):
                    pass
        service.add("s1")
        service.wait_for_finish("s1")
    wait_until(lambda: service.psched("status").returncode == 0, what="an answer")
    assert master.stop() == 0


GOOD = {
    "pid": 1234, "phase": "serving", "generation": 1, "uptime": 1.5, "problem": None,
    "worker_deaths": 0, "workers": [], "errors": [], "url": "sqlite://", "table": "psched",
}  # fmt: skip


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (json.dumps(GOOD).encode(), None),
        (b"", "it has hung up"),
        (b"hello", "it has hung up"),
        (b"[" * 100_000, "it has hung up"),
        (b"[]", "a message that is no object"),
        (json.dumps({**GOOD, "workers": [{}]}).encode(), "an impossible 'workers'"),
        (json.dumps({**GOOD, "uptime": float("nan")}).encode(), "an impossible 'uptime'"),
        (json.dumps({**GOOD, "url": None}).encode(), "an impossible 'url'"),
        (json.dumps({**GOOD, "errors": ["x" * 10_000]}).encode(), "an impossible 'errors'"),
    ],
)
def test_what_a_stranger_says_in_a_masters_place_harms_nobody_who_asks(service, said, told):
    folder = service.folder / "run"
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        path = folder / "master.1234.sock"
        with short_address(path) as address:
            listening.bind(address)
        listening.listen()

        def answer():
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        done = service.psched("status", "--all")
        thread.join()
    if told is None:
        assert "psched-master 1234 serving, generation 1" in done.stdout
    else:
        assert told in done.stderr
        assert "Traceback" not in done.stderr

"""A process that sends what it must not send is cut off; only what it runs fails."""

import json
import os
import signal
import socket
import struct

import pytest

from psched.process.child import Exit
from psched.process.link import packed
from psched.runner.fork_server import MOST_AT_ONCE
from support.bench import Bench
from support.forks import fork_server
from support.isolated import isolated, started_isolated
from support.misbehaving_handlers import HANDLERS
from support.waiting import has_ended, wait_until


def framed(text, data=b""):
    return struct.pack("!II", len(text), len(data)) + text + data


def said(**message):
    return framed(json.dumps(message).encode())


END = {
    "done": None,
    "error": None,
    "exit": [None, None],
    "used": [0, None],
    "last": True,
    "store": False,
}


def ended(**changes):
    return said(**{**END, **changes})


def ended_without(field):
    return said(**{name: value for name, value in END.items() if name != field})


DONE = said(**END)
EXTEND = said(extend=True)

GARBAGE = {
    "length of 4 GiB": struct.pack("!II", 2**32 - 1, 0),
    "4 GiB beside it": struct.pack("!II", 2, 2**32 - 1) + b"{}",
    "more data than is allowed": struct.pack("!II", 2, 200_001) + b"{}",
    "text": b"Traceback (most recent call last):\n",
    "not JSON": framed(b"hello"),
    "not UTF-8": framed(b'{"done":"\xff"}'),
    "nothing": framed(b""),
    "NaN": framed(b"NaN"),
    "null": framed(b"null"),
    "list": framed(b"[]"),
    "number": framed(b"9" * 5000),
    "deep": framed(b"[" * 100_000),
    "deep in a field": framed(b'{"done":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "no kind": said(),
    "unknown kind": said(hello=1),
    **{f"done without {field}": ended_without(field) for field in END if field != "done"},
    "done with a number": ended(done=1),
    "done with a list": ended(done=[]),
    "last as a text": ended(last="no"),
    "last as a number": ended(last=1),
    "long failure": ended(done="x" * 100_000),
    "NUL in a failure": ended(done="\0"),
    "half a character": ended(done="\ud800"),
    "error as a list": ended(error=["x"]),
    "long error": ended(error="x" * 8193),
    "NUL in an error": ended(error="\0"),
    "half a character in an error": ended(error="\ud800"),
    "exit as a number": ended(exit=0),
    "exit without signal": ended(exit=[0]),
    "negative exit status": ended(exit=[-9, None]),
    "large exit status": ended(exit=[256, None]),
    "exit status as a flag": ended(exit=[True, None]),
    "signal 0": ended(exit=[None, 0]),
    "signal 65": ended(exit=[None, 65]),
    "no processor time": ended(used=[None, None]),
    "usage as a number": ended(used=1),
    "negative processor time": ended(used=[-1, None]),
    "processor time of ages": ended(used=[2**63, None]),
    "processor time as a fraction": ended(used=[0.5, None]),
    "peak as a text": ended(used=[0, "1"]),
    "peak of ages": ended(used=[0, 2**63]),
    "unknown decision": said(decide="explode"),
    "decision as a list": said(decide=["finish"]),
    "retry without wait": said(retry=None),
    "wait of NaN": said(retry=None, wait=float("nan")),
    "infinite wait": said(retry=None, wait=float("inf")),
    "negative wait": said(retry=None, wait=-1),
    "wait of ages": said(retry=None, wait=1e300),
    "wait of digits": said(retry=None, wait=10**4000),
    "wait as a flag": said(retry=None, wait=True),
    "wait as a text": said(retry=None, wait="1"),
    "reason as a number": said(retry=1, wait=None),
    "extend as a number": said(extend=1),
    "update without data": said(update_data=True),
    "update with text": said(update_data=True, data="{}"),
    "update as a text": said(update_data="{}"),
    "two questions at once": EXTEND + EXTEND,
    "two ends": DONE + DONE,
    "decision after the end": DONE + said(decide="finish"),
}

REFUSED = {
    "data that is no object": framed(b'{"update_data":true}', b"[]"),
    "data that is not UTF-8": framed(b'{"update_data":true}', b'{"\xff":1}'),
    "data with NUL": framed(b'{"update_data":true}', b'{"\0":1}'),
}


def sends(task):
    task._holder._link._socket.sendall(bytes.fromhex(task.data["bytes"]))
    signal.pause()


def asks(task):
    task._holder._link._socket.sendall(bytes.fromhex(task.data["bytes"]))
    raise ValueError(json.dumps(task._holder._link.wait()))


def asks_without_end(task):
    # Never reads the answers: they would fill its worker.
    line = task._holder._link._socket
    line.settimeout(None)
    while True:
        line.sendall(EXTEND)


def outcomes():
    bench = Bench({**HANDLERS, "sends": sends}, data_limit=200_000, concurrency=2)
    beside = bench.start("sends", key="beside", bytes="")
    found = {}
    for name, text in GARBAGE.items():
        task = bench.start("sends", bytes=text.hex())
        found[name] = bench.finish(task)
        assert has_ended(task.runner.pid)
        assert bench.run("returns") == "Finish()"
    assert not has_ended(beside.runner.pid)
    assert not beside.over
    return found


def test_a_runner_that_sends_garbage_is_killed_and_only_its_own_task_fails():
    with started_isolated(outcomes) as process:
        found = process.result()
        assert found.keys() == GARBAGE.keys()
        for name, outcome in found.items():
            assert "Retry(wait=None, reason=" in outcome, name
            assert "its process has sent " in outcome, name
        assert process.text.count("killing process ") == len(GARBAGE)


def answers():
    bench = Bench({"asks": asks}, data_limit=1024)
    found = {name: bench.run("asks", bytes=text.hex()) for name, text in REFUSED.items()}
    return found, bench.ledger.data


def test_data_that_is_no_payload_is_refused_and_not_stored():
    found, stored = isolated(answers)
    refusal = "must be a JSON object in UTF-8"
    for name in REFUSED:
        assert refusal in found[name]
    assert stored == []


def asked_without_end():
    bench = Bench({**HANDLERS, "asks": asks_without_end})
    return bench.run("asks"), bench.run("returns")


def test_who_asks_without_hearing_the_answers_is_cut_off():
    failed = "Retry(wait=None, reason='its process has sent a message out of turn')"
    assert isolated(asked_without_end) == [failed, "Finish()"]


def idle_that_speaks():
    def returns(task):
        link = task._holder._link
        signal.signal(  # noqa: TID251
            signal.SIGALRM, lambda *_: link._socket.sendall(EXTEND)
        )

    bench = Bench({**HANDLERS, "speaks": returns}, max_tasks_per_child=100)
    task = bench.start("speaks")
    first = bench.finish(task)
    os.kill(task.runner.pid, signal.SIGALRM)  # noqa: TID251  # it speaks now
    bench.until(lambda: has_ended(task.runner.pid))
    return first, bench.run("returns")


def test_a_runner_that_speaks_without_a_task_is_replaced():
    assert isolated(idle_that_speaks) == ["Finish()", "Finish()"]


def half_a_message_before_the_next_task():
    def halves(task):
        link = task._holder._link
        # It arrives together with the end, which it follows.
        deliver = link.deliver

        def delivers(message):
            link.deliver = deliver
            deliver(packed(message) + EXTEND[:5])

        link.deliver = delivers

    bench = Bench({**HANDLERS, "halves": halves}, max_tasks_per_child=100)
    found = [bench.run(name) for name in ("returns", "halves", "returns")]
    return [*found, bench.ledger.extended]


def test_half_a_message_of_one_task_is_not_the_beginning_of_anothers():
    assert isolated(half_a_message_before_the_next_task) == ["Finish()", "Finish()", "Finish()", 0]


# --- the fork server -----------------------------------------------------------------

FORK_SERVERS_GARBAGE = [
    b"hello",
    b"{}",
    b"[" * 100_000,
    b'{"ended":[[1,0,null,0,0]]}',
    b'{"ended":[[99999,0,null,0,0]]}',
    b'{"ended":[["1",0,null,0,0]]}',
    b'{"ended":1}',
    b'{"born":[],"error":null,"refused":null}',
    b'{"born":[99999],"error":null,"refused":null}',
    b'{"born":["1"],"error":null,"refused":null}',
    b'{"born":[]}',
    b"x" * 180_000,
]


def told_by_the_fork_server():
    """What becomes of a worker whose fork server sends each of these."""
    found = []
    for text in FORK_SERVERS_GARBAGE:
        bench = Bench(HANDLERS)
        bench.run("returns")
        server = bench.pool._server
        kept, theirs = _other_end_of(server.channel)
        theirs.send(text)
        bench.until(lambda server=server: has_ended(server.pid))
        kept.close()
        found.append(bench.run("returns"))
        bench.close()
    return found


def _other_end_of(channel):
    """The socket that a channel had, and the other end of the one that it has now."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel._socket, kept = one, channel._socket
    return kept, other


def test_a_fork_server_that_sends_garbage_is_replaced():
    found = isolated(told_by_the_fork_server)
    assert found == ["Finish()"] * len(FORK_SERVERS_GARBAGE)


def worker_that_sends_garbage():
    server = fork_server(lambda _place, link: link.wait() or 0)
    [(_, living, kept, _), *_] = born = server.fork(MOST_AT_ONCE)
    # Whom it must not wait for: a runner that lives, a process that is nobody's.
    server.channel.send({"bury": [living, os.getpid(), 99999]})
    alive = [len(server.fork(1)), not has_ended(living), len(born) == MOST_AT_ONCE]
    del kept
    server.channel.send({"fork": "all"})
    _, status = os.waitpid(server.pid, 0)
    return alive, str(Exit(server.pid, os.waitstatus_to_exitcode(status), None))


def test_a_fork_server_leaves_a_worker_that_sends_garbage():
    with started_isolated(worker_that_sends_garbage) as process:
        assert process.result() == [[1, True, True], "exited with status 0"]


def grown():
    """Pages that a worker gains while a runner announces 4 GiB and sends what it can of it."""
    bench = Bench({**HANDLERS, "floods": floods})
    bench.run("returns")
    before = _resident()
    task = bench.start("floods")
    outcome = bench.finish(task)
    wait_until(lambda: has_ended(task.runner.pid), what="the end of it")
    return outcome, _resident() - before


def floods(task):
    line = task._holder._link._socket
    line.settimeout(None)
    line.sendall(struct.pack("!II", 2, 2**32 - 1) + b"{}")
    while True:
        line.sendall(b"x" * 2**20)


def _resident():
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_an_announced_length_costs_no_memory():
    outcome, more = isolated(grown)
    assert outcome == (
        "Retry(wait=None, reason='its process has sent a message of 4294967297 bytes')"
    )
    assert more < 32 * 2**20


@pytest.mark.parametrize("size", [2**20, pytest.param(60 * 2**20, marks=pytest.mark.extended)])
def test_large_payloads_pass_both_ways(size):
    assert isolated(both_ways, size) == ["Finish()", size]


def both_ways(size):
    bench = Bench({"copies": copies}, data_limit=64 * 2**20)
    outcome = bench.run("copies", text="x" * size)
    [data] = bench.ledger.data
    return outcome, len(json.loads(data)["text"])


def copies(task):
    task.update_data({"text": task.data["text"]})

"""Messages between processes: whatever a peer sends, only the peer is cut off."""

import contextlib
import json
import socket
import struct

import pytest

from psched.master import messages as master_messages
from psched.process import link
from psched.process.link import Channel, Link
from psched.runner import messages
from support.bench import Bench
from support.fuzzing import FACTOR, cases, told
from support.isolated import isolated
from support.waiting import PATIENCE, has_ended

LENGTHS = struct.Struct("!II")

ACCEPTED = {
    name: accepted
    for module in (master_messages, messages)
    for name, accepted in vars(module).items()
    if isinstance(accepted, link.Shapes) and accepted.kinds
}
"""What each side of a line accepts, by its name."""


def frame(case, accepted):
    """What a peer may send: a message, more or less, with its lengths, more or less."""
    kinds = case.choice((accepted, *ACCEPTED.values())).kinds
    names = [*kinds[case.choice([*kinds])], case.text(5)]
    message = {name: value(case) for name in names if case.maybe(0.9)}
    text = json.dumps(message).encode()
    if case.maybe(0.3):
        text = case.spoilt(text.decode()).encode(errors="replace")
    beside = case.bytes(100) if case.maybe(0.3) else b""
    lengths = [len(text), len(beside)]
    if case.maybe(0.2):
        lengths[case.randrange(2)] = case.choice((0, 1, 2**16, 2**31, 2**32 - 1))
    return LENGTHS.pack(*lengths) + text + beside


def value(case):
    """What a field may hold: often what some field of some message does hold."""
    usual = (None, True, False, 0, 1, "finish", "retry", "k", [], {}, [1], {"wait": 1}, "x" * 3000)
    return case.choice(usual) if case.maybe(0.8) else case.json()


# --- the line itself -------------------------------------------------------------------------


def check_link(count):
    """What a link hands on is as its owner accepts it; after anything else it hands on nothing."""
    for case in cases("link", count):
        name = case.choice(sorted(ACCEPTED))
        sent = b"".join(frame(case, ACCEPTED[name]) for _ in range(case.randint(1, 3)))
        with told(case, name, sent), contextlib.ExitStack() as opened:
            peer, ours = map(opened.enter_context, socket.socketpair())
            link = Link(ours)
            link.expects, link.data_limit = ACCEPTED[name], 1000
            with peer:
                peer.sendall(sent)
            received = link.receive()
            assert all(ACCEPTED[name].fault(message) is None for message in received)
            assert link.fault is None or (link.closed and link.receive() == [])
            assert len(link._incoming) < len(sent) + 2**16


def check_channel(count):
    """So does the line to a fork server, which carries descriptors, too."""
    for case in cases("channel", count):
        ours, theirs = Channel.pair(messages.FROM_FORK_SERVER, messages.TO_FORK_SERVER)
        sent = (
            frame(case, messages.FROM_FORK_SERVER)[LENGTHS.size :]
            if case.maybe()
            else case.bytes(200)
        )
        with told(case, sent):
            theirs._socket.send(sent)
            while (received := ours.receive()) is not None:
                assert messages.FROM_FORK_SERVER.fault(received[0]) is None
            ours.close()
            theirs.close()


def test_links():
    check_link(3000)


def test_channels():
    check_channel(1000)


@pytest.mark.parametrize("name", ["FROM_RUNNER", "FROM_WORKER"])
def test_a_field_that_nobody_checks_is_found(name, monkeypatch):
    accepted = ACCEPTED[name]
    kinds = {
        kind: {field: check if field == kind else lambda _: True for field, check in fields.items()}
        for kind, fields in accepted.kinds.items()
    }
    planted = link.Shapes(kinds, accepted.longest)
    monkeypatch.setattr(Link, "_next", looking_past(Link._next, accepted, planted))
    with pytest.raises(AssertionError):
        check_link(30_000)  # it ends at the first that is found


def looking_past(sound, accepted, planted):
    def faulty(link):
        if link.expects is accepted:
            link.expects = planted
        return sound(link)

    return faulty


# --- a worker and its runners ------------------------------------------------------------------


def sends(task):
    """A handler that says anything to its worker, on psched's own line."""
    task._holder._link._socket.sendall(bytes.fromhex(task.data["bytes"]))


def outcomes(count):
    """What becomes of tasks that do so, each beside one that does not."""
    bench = Bench({"sends": sends, "returns": lambda _task: None}, concurrency=2, kill_timeout=5)
    beside = bench.start("returns", key="beside")
    for case in cases("runner", count):
        sent = b"".join(frame(case, messages.FROM_RUNNER) for _ in range(case.randint(1, 2)))
        with told(case, sent):
            slot = bench.start("sends", bytes=sent.hex())
            bench.finish(slot)
            # It can say that it takes another task, and then says more.
            bench.until(lambda: slot.runner.exit is not None)  # noqa: B023  # called at once
            assert has_ended(slot.runner.pid)
            assert bench.run("returns") == "Finish()"
    bench.finish(beside)
    bench.close()
    return "the worker has lived"


def test_no_runner_harms_its_worker():
    assert isolated(outcomes, 100, timeout=PATIENCE * FACTOR) == "the worker has lived"


def trusting(count):
    """A worker that accepts everything from its runners."""
    messages.FROM_RUNNER.kinds.clear()
    return outcomes(count)


def test_a_worker_that_trusts_its_runners_is_found():
    with pytest.raises(AssertionError):
        isolated(trusting, 100, timeout=PATIENCE * FACTOR)

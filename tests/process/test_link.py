"""The line between two processes: whole messages, and the news of a death."""

import json
import os
import select
import signal
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched.process import tree
from psched.process.child import Child, Exit, reap
from psched.process.link import Link
from psched.process.signals import unblock
from psched.process.spawn import spawn
from psched.runner.messages import FROM_RUNNER
from support.isolated import isolated

LARGE = b"\xff" * 15_000_000
"""Far more than any socket takes at once."""

TAKEN = {"large": True, "data": LARGE}
"""How it is received that was sent beside a message."""


def encoded(message, data=b""):
    text = json.dumps(message).encode()
    return struct.pack("!II", len(text), len(data)) + text + data


def large(link):
    """A link that accepts what is large."""
    link.data_limit = len(LARGE)
    return link


def exchange(link):
    """Wait until the link has news or room, and use it; what has arrived."""
    poller = select.poll()
    poller.register(link, select.POLLIN | (select.POLLOUT if link.unsent else 0))
    poller.poll(20_000)
    link.flush()
    return link.receive()


def messages_until_the_end(link):
    received = []
    while not link.closed:
        received += exchange(link)
    return received


def line():
    """A socket, and the link at its other end."""
    raw, end = socket.socketpair()
    return raw, Link(end)


# --- messages ------------------------------------------------------------------------


@given(
    messages=st.lists(st.dictionaries(st.text(), st.none() | st.integers() | st.text())),
    cuts=st.lists(st.integers(min_value=1, max_value=40)),
)
def test_messages_arrive_whole_and_in_order_whatever_pieces_they_come_in(messages, cuts):
    raw, link = line()
    stream = b"".join(map(encoded, messages))
    received = []
    with raw:
        for cut in cuts:
            raw.sendall(stream[:cut])
            stream = stream[cut:]
            received += link.receive()
        raw.sendall(stream)
        received += link.receive()
    link.close()
    assert received == messages


def test_a_message_that_the_other_side_did_not_live_to_complete_is_dropped():
    raw, link = line()
    raw.sendall(encoded({"n": 1}) + encoded({"n": 2})[:-1])
    raw.close()
    assert link.receive() == [{"n": 1}]
    assert link.receive() == []
    assert link.closed
    link.close()


@pytest.mark.parametrize(
    "text", [b"hello", b"{}   ", b"{}{} ", b'{"\xff"', b"", b"[" * 2**16, b"9" * 2**16]
)
def test_what_is_no_message_ends_the_line_and_harms_nobody(text):
    raw, link = line()
    with raw:
        raw.sendall(encoded({"n": 1}) + struct.pack("!II", len(text), 0) + text + encoded({"n": 2}))
        assert link.receive() == [{"n": 1}]
    assert (link.closed, link.fault) == (True, "a message that is not JSON")
    link.close()


@pytest.mark.parametrize("lengths", [(2**32 - 1, 0), (2**16 + 1, 0), (2, 1), (2, 2**32 - 1)])
def test_what_is_longer_than_agreed_is_refused_before_it_is_received(lengths):
    raw, link = line()
    with raw:
        raw.sendall(struct.pack("!II", *lengths) + b"{}")
        assert link.receive() == []
        assert (link.closed, link.fault) == (True, f"a message of {sum(lengths)} bytes")
        # Nothing is kept of it, and nothing more is read.
        raw.sendall(b"x" * 100_000)
        assert link.receive() == []
        assert len(link._incoming) == 0
    link.close()


def test_who_sends_without_end_holds_nobody_up():
    raw, link = line()
    message = encoded({"n": "x" * 60_000})
    sent = 0

    class Endless:
        """A socket that is filled again as soon as it is read."""

        def recv(self, size):
            nonlocal sent
            sent += size
            return (message * 2)[:size]

    with raw:
        link._socket, kept = Endless(), link._socket
        link.receive(at_most=1 << 20)
        assert sent == 1 << 20
        link._socket = kept
    link.close()


def test_bytes_beside_a_message_stand_in_its_data_whatever_it_says_of_them():
    raw, link = line()
    link.data_limit = 4
    with raw:
        raw.sendall(encoded({"data": 1}, b"\x00\xff[{") + encoded({"data": 1}))
        assert link.receive() == [{"data": b"\x00\xff[{"}, {"data": 1}]
    link.close()


def test_a_message_of_another_shape_ends_the_line():
    raw, link = line()
    link.expects = FROM_RUNNER
    with raw:
        raw.sendall(encoded({"extend": True, "unknown": []}) + encoded({"extend": 1}))
        assert link.receive() == [{"extend": True, "unknown": []}]
    assert link.fault == "the message 'extend' with an impossible 'extend'"
    link.close()


def test_a_large_message_waits_for_the_socket_and_not_its_sender():
    one, other = map(large, Link.pair())
    one.send({"large": True}, LARGE)  # would hang here: nobody reads
    one.send({"n": 1})
    assert one.unsent
    received = []
    while len(received) < 2:
        received += other.receive()
        one.flush()
    assert received == [TAKEN, {"n": 1}]
    assert not one.unsent
    one.close()
    other.close()


# --- a child at the other end --------------------------------------------------------


def echo(link):
    """A child that sends back what it gets, as often as it is told to."""
    unblock()
    large(link)
    while (message := link.wait()) is not None:
        link.send(message, message.pop("data", b""))
    return 0


def parent_of_a_stopped_child():
    pid, link = spawn(echo)
    tree.send(pid, signal.SIGSTOP)
    large(link).send({"large": True}, LARGE)  # would hang here
    link.send({"last": True})
    waited = link.unsent
    tree.send(pid, signal.SIGCONT)
    received = []
    while len(received) < 2:
        received += exchange(link)
    return waited, received == [TAKEN, {"last": True}]


def test_a_parent_does_not_wait_for_a_child_that_is_stopped():
    assert isolated(parent_of_a_stopped_child) == [True, True]


def both_at_once():
    def talkative(link):
        unblock()
        large(link).send({"large": True}, LARGE)
        received = link.wait()
        link.deliver({"received": received == TAKEN})
        return 0

    _, link = spawn(talkative)
    large(link).send({"large": True}, LARGE)
    received = messages_until_the_end(link)
    return received == [TAKEN, {"received": True}]


def test_two_sides_that_send_large_messages_at_once_do_not_block_each_other():
    assert isolated(both_at_once) is True


def child_that_delivers_and_exits():
    def dying(link):
        link.send({"large": True}, LARGE)
        link.deliver({"last": True})
        os._exit(3)

    pid, link = spawn(dying)
    received = messages_until_the_end(large(link))
    return received == [TAKEN, {"last": True}], os.waitpid(pid, 0)[1] >> 8


def test_what_a_child_delivers_before_it_exits_arrives():
    assert isolated(child_that_delivers_and_exits) == [True, 3]


def child_killed_after_its_last_words():
    def dying(link):
        for n in range(100):
            link.send({"n": n})
        tree.send(os.getpid(), signal.SIGKILL)
        return 0

    pid, link = spawn(dying)
    # Unread by the child: the kernel then reports a reset, not an end.
    link.send({"unread": True})
    child = Child(pid, link, 0.0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    [ended] = reap()
    child.reaped(ended)
    return [word["n"] for word in child.last_words], str(child.exit)


def test_the_last_words_of_a_child_killed_by_kill_9_can_still_be_read():
    assert isolated(child_killed_after_its_last_words) == [[*range(100)], "was killed by SIGKILL"]


def test_an_end_is_told_by_its_status_or_its_signal():
    assert str(Exit(1, 3, None)) == "exited with status 3"
    assert str(Exit(1, None, signal.SIGSEGV)) == "was killed by SIGSEGV"
    assert str(Exit(1, None, 40)) == "was killed by signal 40"  # a real-time signal


def parent_of_a_dead_child():
    pid, link = spawn(lambda _link: 0)
    os.waitpid(pid, 0)
    for n in range(1000):
        link.send({"n": n})
    before = link.closed
    received = link.receive()
    link.send({"after": True})
    return before, received, link.closed, link.unsent


def test_sending_to_the_dead_is_no_error_and_their_end_is_seen_by_reading():
    assert isolated(parent_of_a_dead_child) == [False, [], True, False]


def child_of_a_dead_parent():
    def middle(link):
        def orphan(its_link):
            reader_of_death, writer_of_last_words = its_link, link
            its_link.send({"large": True}, LARGE)  # never read
            reader_of_death.deliver({"n": 1})  # would hang here
            writer_of_last_words.deliver({"waited for": reader_of_death.wait()})
            return 0

        spawn(orphan, keep=[link.fileno()])
        tree.send(os.getpid(), signal.SIGKILL)
        return 0

    _, link = spawn(middle)
    return messages_until_the_end(link)


def test_a_child_whose_parent_has_died_waits_for_nothing():
    assert isolated(child_of_a_dead_parent) == [{"waited for": None}]

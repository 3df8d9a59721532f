"""The proxy that loses what it should pass on, before a server that echoes."""

import contextlib
import socket
import threading

import pytest

from psched.base.clock import SystemClock
from support.proxy import LOOPBACK, Fault, Proxy
from support.waiting import HANG_TIMEOUT, wait_until

CLOCK = SystemClock()


@pytest.fixture
def echo():
    """A server that answers each request with itself, and a list of what it has been asked."""
    asked = []
    with socket.create_server((LOOPBACK, 0)) as listener:

        def serve(connection):
            with connection, contextlib.suppress(OSError):
                while data := connection.recv(1000):
                    asked.append(data)
                    connection.sendall(data)

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    serve(listener.accept()[0])

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1], asked
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture
def proxy(echo):
    with Proxy(echo[0]) as proxy:
        yield proxy


@pytest.fixture
def ask(proxy):
    """Sends a request on a connection of its own; the answer, or None if none comes."""

    def ask(request, timeout=HANG_TIMEOUT):
        with socket.create_connection((LOOPBACK, proxy.port), timeout=timeout) as client:
            client.sendall(request)
            try:
                return client.recv(1000)
            except TimeoutError:
                return None
            except ConnectionError:
                return b""

    return ask


def test_it_passes_requests_and_answers(ask, echo):
    assert ask(b"one") == b"one"
    assert ask(b"two") == b"two"
    assert echo[1] == [b"one", b"two"]


def test_a_lost_request_never_reaches_the_server(ask, proxy, echo):
    with proxy.fault(Fault.LOSE_REQUEST, b"wo"):
        assert ask(b"one") == b"one"
        assert ask(b"two") == b""
    assert ask(b"two") == b"two"
    assert echo[1] == [b"one", b"two"]


def test_a_lost_reply_is_to_a_request_that_was_served(ask, proxy, echo):
    with proxy.fault(Fault.LOSE_REPLY, b"one"):
        assert ask(b"one") == b""
    assert echo[1] == [b"one"]


def test_a_held_reply_leaves_the_client_waiting(ask, proxy, echo):
    with proxy.fault(Fault.HOLD_REPLY, b"one"):
        assert ask(b"one", timeout=0.2) is None
        wait_until(lambda: echo[1] == [b"one"], what="the request")


def test_a_held_request_is_served_when_nobody_waits_for_it_any_more(ask, proxy, echo):
    with proxy.fault(Fault.HOLD_REQUEST, b"one"):
        assert ask(b"one", timeout=0.2) is None
        wait_until(lambda: proxy._armed is None, what="the request at the proxy")
    assert echo[1] == []
    proxy.release()
    wait_until(lambda: echo[1] == [b"one"], what="the request")


def test_nothing_passes_a_black_hole_and_everything_after_it(ask, proxy):
    with proxy.black_hole():
        assert ask(b"one", timeout=0.2) is None
    assert ask(b"two") == b"two"


def test_an_answer_that_drips_comes_byte_by_byte_and_the_rest_of_it_afterwards(proxy):
    with socket.create_connection((LOOPBACK, proxy.port), timeout=HANG_TIMEOUT) as client:
        with proxy.drip():
            client.sendall(b"onward")
            assert [client.recv(1), client.recv(1)] == [b"o", b"n"]
        assert client.recv(4, socket.MSG_WAITALL) == b"ward"


def test_a_slow_answer_arrives_late_and_whole(ask, proxy):
    begin = CLOCK.monotonic()
    with proxy.slow(0.3):
        assert ask(b"one") == b"one"
    assert CLOCK.monotonic() - begin >= 0.3


def test_answers_are_counted_once_however_many_pieces_they_have(ask, proxy):
    assert [ask(b"one"), ask(b"two" * 100)] == [b"one", b"two" * 100]
    assert proxy.answers == 2


def test_a_fault_that_nothing_has_met_is_a_failure(proxy):
    with pytest.raises(AssertionError, match="no request"), proxy.fault(Fault.LOSE_REPLY, b"x"):
        pass


def test_a_cut_breaks_all_connections_and_new_ones_work(proxy, ask):
    with socket.create_connection((LOOPBACK, proxy.port), timeout=HANG_TIMEOUT) as client:
        client.sendall(b"one")
        assert client.recv(1000) == b"one"

        proxy.cut()

        assert client.recv(1000) == b""
    assert ask(b"two") == b"two"


def test_a_late_request_arrives_after_its_sender_has_left(proxy, echo):
    with (
        proxy.fault(Fault.HOLD_REQUEST, b""),
        socket.create_connection((LOOPBACK, proxy.port), timeout=HANG_TIMEOUT) as client,
    ):
        client.sendall(b"late")
        wait_until(lambda: proxy.heard == 2, what="the request")
    assert echo[1] == []

    proxy.release_late()

    wait_until(lambda: echo[1] == [b"late"], what="the request at the server")

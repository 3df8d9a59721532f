"""The server of the command web, and clients that want to keep it for themselves."""

import contextlib
import socket
import threading
import warnings

from psched.monitor.server import HttpServer
from psched.testing import ManualClock
from support.isolated import isolated
from support.waiting import HANG_TIMEOUT, wait_until

HALF = b"GET / HTTP/1.1\r\nHost: x\r\n"


class Served:
    """A server whose pages are made by a function of their paths, and its clients."""

    def __init__(self, make=lambda _path: b"page"):
        warnings.simplefilter("ignore", ResourceWarning)  # the server goes on until the end
        self.clock = ManualClock()
        self.made = []
        self._make = make
        self._clients = []
        listener = socket.create_server(("127.0.0.1", 0))
        self._address = listener.getsockname()
        server = HttpServer(self._site, listener, self.clock, threads=1, notices_hangups=True)
        threading.Thread(target=server.run, daemon=True).start()
        self.channels = server.clients

    def _site(self, environ, start_response):
        path = environ["PATH_INFO"]
        self.made.append(path)
        start_response("200 OK", [])
        return [self._make(path)]

    def connect(self, request=b""):
        """A client that has sent a request, or a part of it."""
        client = socket.create_connection(self._address, timeout=HANG_TIMEOUT)
        client.sendall(request)
        self._clients.append(client)
        return client

    def ask(self, path="/"):
        client = self.connect(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
        return everything(client)


def everything(client):
    """What a client receives until it is disconnected."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := client.recv(1 << 16):
            received += chunk
    return received


def many_halves():
    served = Served()
    halves = [served.connect(HALF) for _ in range(110)]
    answers = [served.ask()[-4:] == b"page" for _ in range(5)]
    return all(answers), everything(halves[0]) == b"", len(served.channels) <= 100


def test_a_page_is_shown_however_many_clients_send_half_a_request():
    assert isolated(many_halves) == [True, True, True]


def a_deadline():
    size = 64 << 20  # more than a kernel takes at once
    served = Served(lambda path: b"x" * (size if path == "/long" else 1))
    half, whole = served.connect(HALF), served.connect(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
    wait_until(lambda: served.made == ["/long"], what="the page")
    wait_until(lambda: served.ask()[-1:] == b"x", what="another page")
    served.clock.advance(29)
    half.sendall(b"X: y\r\n")  # a request that drips is a half one, too
    in_time = served.ask()[-1:] == b"x"
    served.clock.advance(2)
    return (
        in_time,
        everything(half) == b"",
        len(everything(whole)) < size,
        served.ask()[-1:] == b"x",
    )


def test_a_client_that_is_too_slow_is_disconnected():
    assert isolated(a_deadline) == [True, True, True, True]


def clients_that_hang_up():
    goes_on = threading.Event()

    def make(path):
        if path == "/first":
            goes_on.wait(HANG_TIMEOUT)
        return b"page"

    served = Served(make)
    request = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"
    first = served.connect(request % b"/first")
    wait_until(lambda: served.made == ["/first"], what="the first page")
    others = [served.connect(request % b"/other") for _ in range(4)]
    waits = served.connect(request % b"/waits")
    wait_until(lambda: sum(bool(e.requests) for e in [*served.channels.values()]) == 6, what="all")
    for each in others:
        each.close()
    wait_until(lambda: len(served.channels) == 2, what="their ends")
    goes_on.set()
    return [everything(each)[-4:] == b"page" for each in (first, waits)], served.made


def test_no_page_is_made_for_clients_that_have_hung_up():
    assert isolated(clients_that_hang_up) == [[True, True], ["/first", "/waits"]]

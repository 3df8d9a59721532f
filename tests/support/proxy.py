"""A TCP proxy in front of a server; on demand, it loses requests or answers.

with Proxy(server.port) as proxy:
    store = make_store(f"mysql+pymysql://root@127.0.0.1:{proxy.port}/{name}")
    with proxy.fault(Fault.LOSE_REPLY, b"UPDATE"):
        store.settle(ends)      # executed, and never answered
"""

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from enum import Enum, auto
from typing import Self

from support.waiting import HANG_TIMEOUT

LOOPBACK = "127.0.0.1"
_CHUNK = 1 << 16
_PERIOD = 0.02
"""Seconds within which the proxy notices an order."""

_DRIP = 0.5
"""Seconds between two bytes of an answer that drips."""


class Fault(Enum):
    """What happens to a request."""

    LOSE_REQUEST = auto()
    """The connection breaks before the server gets the request."""

    LOSE_REPLY = auto()
    """The server executes the request; then the connection breaks, and the answer is lost."""

    HOLD_REQUEST = auto()
    """The request is passed on only at `Proxy.release`, even if the client has left."""

    HOLD_REPLY = auto()
    """The server executes the request; the client waits for an answer that does not arrive."""


class _Line:
    """One connection: the client's side and the server's."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.fault: Fault | None = None
        self.held = bytearray()
        self.released = False
        self.answer = bytearray()
        self.next_drop = 0.0
        self.asked = True  # a server may speak first
        self.late: deque[tuple[float, bytes]] = deque()

    def close(self) -> None:
        self.client.close()
        self.server.close()


class Proxy:
    """Passes everything on, except for the faults that are ordered. A context manager.

    Args:
        server: the server's port on this host.

    Attributes:
        port: the port that clients connect to.
        heard: how often a client has connected, or sent something.
        answers: how many requests the server has answered; its greeting counts, too.
    """

    def __init__(self, server: int) -> None:
        self._server = server
        self.heard = 0
        self.answers = 0
        self._delay = 0.0
        self._armed: tuple[Fault, bytes] | None = None
        self._passing = threading.Event()
        self._passing.set()
        self._dripping = False
        self._stopping = False
        self._releasing = False
        self._cutting = False
        self._late = threading.Event()
        self._lines: set[_Line] = set()
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port = self._listener.getsockname()[1]
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._passing.set()
        self._thread.join()
        for line in self._lines:
            line.close()
        self._listener.close()
        self._selector.close()

    @contextlib.contextmanager
    def fault(self, fault: Fault, request: bytes) -> Iterator[None]:
        """Apply a fault to the first request that contains these bytes, within this context."""
        self._armed = (fault, request)
        try:
            yield
        finally:
            met, self._armed = self._armed is None, None
        assert met, f"no request with {request!r} has come by"

    @contextlib.contextmanager
    def black_hole(self) -> Iterator[None]:
        """Within this context, pass nothing on in either direction, and refuse nothing."""
        self._passing.clear()
        try:
            yield
        finally:
            self._passing.set()

    @contextlib.contextmanager
    def drip(self) -> Iterator[None]:
        """Within this context, pass answers on byte by byte, so that they never end."""
        self._dripping = True
        try:
            yield
        finally:
            self._dripping = False

    @contextlib.contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Within this context, delay each answer by so many seconds."""
        self._delay = seconds
        try:
            yield
        finally:
            self._delay = 0.0

    def cut(self) -> None:
        """Break all connections."""
        self._cutting = True

    def release_late(self) -> None:
        """Pass on the requests that were held, if there are any; wait for no answer."""
        self._releasing = True

    def release(self) -> None:
        """Pass on the request that was held; return when the server has answered it."""
        self._late.clear()
        self._releasing = True
        assert self._late.wait(HANG_TIMEOUT), "no request was held"

    def _run(self) -> None:
        while not self._stopping:
            self._passing.wait()
            for key, _ in self._selector.select(self._rest()):
                if not self._passing.is_set():
                    break
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data in self._lines:
                    self._pass(key.data, key.fileobj)
            for line in [line for line in self._lines if line.answer]:
                self._answer_a_little(line)
            for line in [line for line in self._lines if line.late]:
                self._answer_late(line)
            self._obey()

    def _obey(self) -> None:
        """Do what was ordered for all connections."""
        if self._releasing:
            self._releasing = False
            for line in [line for line in self._lines if line.held]:
                self._release(line)
        if self._cutting:
            self._cutting = False
            for line in [*self._lines]:
                self._cut(line)

    def _release(self, line: _Line) -> None:
        try:
            line.server.sendall(line.held)
        except OSError:  # the server has died meanwhile
            self._cut(line)
        line.held.clear()
        line.released = True

    def _rest(self) -> float:
        """The most seconds to wait: until the next late answer is due."""
        late = [line.late[0][0] - time.monotonic() for line in self._lines if line.late]
        return max(0.0, min(late, default=_PERIOD))

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        self.heard += 1
        try:
            server = socket.create_connection((LOOPBACK, self._server), timeout=HANG_TIMEOUT)
        except OSError:
            client.close()
            return
        line = _Line(client, server)
        self._lines.add(line)
        for end in (client, server):
            self._selector.register(end, selectors.EVENT_READ, line)

    def _pass(self, line: _Line, source: socket.socket) -> None:
        try:
            data = source.recv(_CHUNK)
            if source is line.server:
                self._answer(line, data)
            else:
                self._ask(line, data)
        except OSError:
            self._cut(line)

    def _ask(self, line: _Line, data: bytes) -> None:
        self.heard += 1
        line.asked = True
        if self._armed is not None and self._armed[1] in data:
            line.fault, self._armed = self._armed[0], None
        if line.fault is Fault.HOLD_REQUEST:
            line.held += data
            if not data:  # the client has given up; the request has not
                self._selector.unregister(line.client)
        elif line.fault is Fault.LOSE_REQUEST or not data:
            self._cut(line)
        else:
            line.server.sendall(data)

    def _answer(self, line: _Line, data: bytes) -> None:
        if line.released:
            line.released = False
            self._late.set()
        # An answer may come in several pieces. The end of a connection is none: it may come when
        # somebody counts the answers on the next one.
        self.answers += bool(data) and line.asked
        line.asked = False
        if line.fault is Fault.LOSE_REPLY or not data:
            self._cut(line)
        elif self._dripping or line.answer:
            line.answer += data
        elif line.fault is Fault.HOLD_REPLY:
            pass
        elif self._delay or line.late:
            line.late.append((time.monotonic() + self._delay, data))
        else:
            line.client.sendall(data)

    def _answer_a_little(self, line: _Line) -> None:
        """Pass on one byte while the answers drip, then all that is left."""
        now = time.monotonic()
        if self._dripping and now < line.next_drop:
            return
        line.next_drop = now + _DRIP
        size = 1 if self._dripping else len(line.answer)
        try:
            line.client.sendall(line.answer[:size])
        except OSError:
            self._cut(line)
        del line.answer[:size]

    def _answer_late(self, line: _Line) -> None:
        """Pass on the answers that were delayed for long enough."""
        try:
            while line.late and line.late[0][0] <= time.monotonic():
                line.client.sendall(line.late.popleft()[1])
        except OSError:
            self._cut(line)

    def _cut(self, line: _Line) -> None:
        self._lines.discard(line)
        for end in (line.client, line.server):
            with contextlib.suppress(KeyError):
                self._selector.unregister(end)
        line.close()

"""Servers on loopback that receive notifications: they do what a test says, byte by byte."""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from support.servers.certificates import Certificates

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Request:
    """A request that a server has received.

    Attributes:
        line: the first line.
        headers: the headers, with names in lower case.
        body: the body.
    """

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass
class Receiver:
    """A running server.

    Attributes:
        port: where it listens on 127.0.0.1.
        requests: what it has received.
        ending: set when the server ends, so that an answer that waits can stop.
    """

    port: int
    requests: list[Request] = field(default_factory=list)
    ending: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str = "/", *, scheme: str = "http", host: str = "127.0.0.1") -> str:
        """A URL that leads to this server."""
        return f"{scheme}://{host}:{self.port}{path}"


Respond = Callable[[socket.socket, Receiver], None]
"""Answers one request, in a thread of its own."""


def fixed(answer: bytes = OK) -> Respond:
    """Always the same answer."""
    return lambda connection, _: connection.sendall(answer)


def status(number: int, body: bytes = b"", headers: str = "") -> bytes:
    """An answer with a status."""
    begin = f"HTTP/1.1 {number} Status\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return begin.encode() + body


def drip(answer: bytes, pause: float = 0.05) -> Respond:
    """One byte at a time, and then for ever the last byte."""

    def respond(connection: socket.socket, receiver: Receiver) -> None:
        position = 0
        while not receiver.ending.wait(pause):
            connection.sendall(answer[position : position + 1] or answer[-1:])
            position += 1

    return respond


def in_turn(*answers: bytes) -> Respond:
    """One answer after the other; the last one again and again."""
    left = list(answers)

    def respond(connection: socket.socket, _: Receiver) -> None:
        connection.sendall(left.pop(0) if len(left) > 1 else left[0])

    return respond


@contextmanager
def receiving(
    respond: Respond | None = None, *, certificates: Certificates | None = None
) -> Iterator[Receiver]:
    """Run a server.

    Args:
        respond: answers each request.
        certificates: for TLS; None means none.
    """
    respond = respond or fixed()
    context = None
    if certificates is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificates.certificate, certificates.key)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        receiver = Receiver(listening.getsockname()[1])

        def serve(connection: socket.socket) -> None:
            with suppress(OSError), connection:
                if context is not None:
                    connection = context.wrap_socket(connection, server_side=True)
                with connection:
                    receiver.requests.append(_read(connection))
                    respond(connection, receiver)

        def accept() -> None:
            with suppress(OSError):
                while not receiver.ending.is_set():
                    connection, _ = listening.accept()
                    threading.Thread(target=serve, args=[connection], daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            receiver.ending.set()
            listening.shutdown(socket.SHUT_RDWR)  # ends `accept`
            thread.join()


def _read(connection: socket.socket) -> Request:
    file = connection.makefile("rb")
    line = file.readline().decode().strip()
    headers: dict[str, str] = {}
    while header := file.readline().decode().strip():
        name, _, value = header.partition(":")
        headers[name.lower()] = value.strip()
    return Request(line, headers, file.read(int(headers.get("content-length", "0"))))

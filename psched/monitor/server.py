"""Serves metrics and health over HTTP, and nothing else.

Whoever can connect can ask for three paths, by GET or HEAD. A connection serves one request, which
must be short and arrive in time. The number of connections is limited.
"""

import logging
import selectors
import socket
import stat
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from psched.base.clock import Clock

_HIGHEST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Place:
    """Where metrics are shown; exactly one attribute is set.

    Attributes:
        tcp: host and port to listen on.
        socket: the path of a Unix socket to listen on.
        textfile: the path of a file to write.
    """

    tcp: tuple[str, int] | None = None
    socket: Path | None = None
    textfile: Path | None = None


def place_of(text: str) -> Place:
    """Take the value of the setting apart, which `psched.config` has checked."""
    kind, _, path = text.partition(":")
    if kind == "unix":
        return Place(socket=Path(path))
    if kind == "textfile":
        return Place(textfile=Path(path))
    host, _, port = text.rpartition(":")
    if not 0 < int(port) <= _HIGHEST_PORT:
        raise ValueError(f"there is no port {port}")
    return Place(tcp=(host.strip("[]"), int(port)))


_log = logging.getLogger("psched.monitor")

_MOST_CLIENTS = 128
"""The most clients whose requests are awaited at the same time."""

_SLOW = "/metrics"
"""The path whose answer takes time, and may be too long for the kernel to take it at once."""

_MOST_SCRAPES = 4
"""The most requests for that path that are answered at the same time."""

_LONGEST_REQUEST = 8192
"""The most bytes of a request, up to the end of its head; a body is not read."""

_LONGEST_TIME = 5.0
"""The usual most seconds of a request."""

_PAUSE = 0.1
"""Seconds after a connection could not be accepted."""

_WORDS = 3
"""The words of the first line of a request: method, path and version."""

_END = b"\r\n\r\n"

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}

PLAIN = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """What is sent for a path.

    Attributes:
        status: the HTTP status.
        text: the body.
        content_type: the media type of the body.
    """

    status: int
    text: bytes
    content_type: str = PLAIN


@dataclass(slots=True)
class _Client:
    """A client that has not sent its whole request yet.

    Attributes:
        connection: the connection to it.
        until: when it is disconnected at the latest, in seconds of the monotonic clock.
        head: what it has sent.
        head_only: whether it wants only the head of the answer.
    """

    connection: socket.socket
    until: float
    head: bytes = b""
    head_only: bool = False

    def send(self, answer: Answer, longest: float) -> None:
        """Send the answer within some seconds, and disconnect the client."""
        with self.connection, suppress(OSError):
            self.connection.settimeout(longest)
            self.connection.sendall(_response(answer, head_only=self.head_only))


class MetricsServer:
    """Serves some paths in threads of its own, until `close`.

    One thread reads all requests, and answers all but those for metrics at once: a client that
    sends nothing, or little, delays no probe. When there are too many clients, the one that has
    been waited for longest is disconnected, because a probe sends its request at once.

    Args:
        place: the address, or the path of the Unix socket.
        paths: what is answered for each path. The function of ``/metrics`` can be called in several
            threads at once, and may take its time; the others must return at once.
        clock: measures how long a request takes.
        longest: the most seconds until a request has arrived, and then until its answer was sent.

    Raises:
        OSError: the address cannot be used.
    """

    def __init__(
        self,
        place: Place,
        paths: Mapping[str, Callable[[], Answer]],
        clock: Clock,
        longest: float = _LONGEST_TIME,
    ) -> None:
        self._longest = longest
        self._socket_path = place.socket
        self._free = threading.BoundedSemaphore(_MOST_SCRAPES)
        self._paths = paths
        self._clock = clock
        self._listener = listen(place)
        self._listener.setblocking(False)  # noqa: FBT003  # its parameter has no name
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._clients: dict[socket.socket, _Client] = {}  # the oldest first
        self._is_closed = False
        # Daemon threads do not keep the process from exiting.
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more; requests that are being served are left to themselves."""
        self._is_closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the waiting in `_run`
        self._thread.join(self._longest)
        if self._socket_path is not None:
            self._socket_path.unlink(missing_ok=True)

    def _run(self) -> None:
        with self._listener, self._selector:
            while not self._is_closed:
                self._step()
            while self._clients:
                self._forget(next(iter(self._clients))).close()

    def _step(self) -> None:
        """Wait for clients; accept one, and read what others have sent."""
        now = self._clock.monotonic()
        oldest = next(iter(self._clients.values()), None)
        for key, _ in self._selector.select(None if oldest is None else max(0, oldest.until - now)):
            if key.fileobj is self._listener:
                self._accept()
            elif (client := self._clients.get(key.fileobj)) is not None:  # type: ignore[call-overload]  # each is a socket
                self._receive(client)
        now = self._clock.monotonic()
        for client in [each for each in self._clients.values() if each.until <= now]:
            self._refuse(client, 408)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            # The listener was shut down, or no descriptor is left. A short pause keeps the latter
            # from taking the whole processor.
            self._drop_oldest()
            self._clock.sleep(_PAUSE)
            return
        if len(self._clients) >= _MOST_CLIENTS:
            self._drop_oldest()
        connection.setblocking(False)  # noqa: FBT003  # its parameter has no name
        self._clients[connection] = _Client(connection, self._clock.monotonic() + self._longest)
        self._selector.register(connection, selectors.EVENT_READ)

    def _drop_oldest(self) -> None:
        if self._clients:
            self._forget(next(iter(self._clients))).close()

    def _forget(self, connection: socket.socket) -> socket.socket:
        del self._clients[connection]
        self._selector.unregister(connection)
        return connection

    def _receive(self, client: _Client) -> None:
        """Read what a client has sent; if it is a whole request, answer it."""
        try:
            chunk = client.connection.recv(_LONGEST_REQUEST)
        except BlockingIOError:
            return
        except OSError:
            self._forget(client.connection).close()
            return
        client.head += chunk
        if not chunk:
            self._refuse(client, 400)
        elif len(client.head) > _LONGEST_REQUEST:
            self._refuse(client, 413)
        elif _END in client.head:
            self._answer(client)

    def _refuse(self, client: _Client, status: int) -> None:
        self._send(client, Answer(status, f"{_REASONS[status]}\n".encode()))

    def _answer(self, client: _Client) -> None:
        words = client.head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != _WORDS or not words[2].startswith("HTTP/1."):
            self._refuse(client, 400)
            return
        method, path = words[0], words[1].partition("?")[0]
        client.head_only = method == "HEAD"
        if path not in self._paths:
            self._send(client, Answer(404, b"/metrics, /livez and /readyz are here\n"))
        elif method not in ("GET", "HEAD"):
            self._send(client, Answer(405, b"only GET and HEAD\n"))
        elif path != _SLOW:
            self._send(client, self._made(path))
        elif not self._free.acquire(blocking=False):
            self._send(client, Answer(503, b"too many ask for the metrics\n"))
        else:
            self._forget(client.connection)
            serving = threading.Thread(target=self._serve, args=[client, path], daemon=True)
            try:
                serving.start()
            except RuntimeError:  # no thread is left
                client.connection.close()
                self._free.release()

    def _serve(self, client: _Client, path: str) -> None:
        try:
            client.send(self._made(path), self._longest)
        finally:
            self._free.release()

    def _send(self, client: _Client, answer: Answer) -> None:
        """Send a short answer, for which the kernel has room; then disconnect the client."""
        self._forget(client.connection)
        client.send(answer, 0)

    def _made(self, path: str) -> Answer:
        try:
            return self._paths[path]()
        except Exception:  # noqa: BLE001  # a bug must not end the server
            _log.exception("a fault in the answer to %s", path)
            return Answer(500, b"a fault in psched; its log says more\n")


def _response(answer: Answer, *, head_only: bool) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.text)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "Connection: close\r\n\r\n"
    ).encode()
    return head if head_only else head + answer.text


def listen(place: Place) -> socket.socket:
    """Listen at an address or a path."""
    if place.socket is not None:
        return _listen_on_path(place.socket)
    host, port = place.tcp or ("", 0)
    [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    listener = socket.socket(family, kind, protocol)
    try:
        # A port that an earlier monitor has used is free again at once.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_MOST_CLIENTS)
    except OSError:
        listener.close()
        raise
    return listener


def _listen_on_path(path: Path) -> socket.socket:
    """Listen on a Unix socket, which only the user and the group of the service can connect to."""
    _remove_unused(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o660)
        listener.listen(_MOST_CLIENTS)
    except OSError:
        listener.close()
        raise
    return listener


def _remove_unused(path: Path) -> None:
    """Remove the Unix socket of a monitor that was killed."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(f"{path} is no socket; remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass  # a process listens that accepts nobody
    raise FileExistsError(f"another process listens on {path}")

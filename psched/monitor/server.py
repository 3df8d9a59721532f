"""Serves metrics and health over HTTP, and nothing else.

Whoever can connect can ask for three paths, by GET or HEAD. A connection serves one request, which
must be short and arrive in time. The number of connections is limited; further ones are closed.
"""

import logging
import socket
import stat
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from psched.base.clock import Clock
from psched.monitor.address import Place

_log = logging.getLogger("psched.monitor")

_MOST_CONNECTIONS = 16
"""The most connections that are served at the same time."""

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


class _InvalidError(Exception):
    """A request that is not answered as asked; the argument is the HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(_REASONS[status])
        self.status = status


class MetricsServer:
    """Serves some paths in threads of its own, until `close`.

    Args:
        place: the address, or the path of the Unix socket.
        paths: what is answered for each path. A function can be called in several threads at once.
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
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._paths = paths
        self._clock = clock
        self._listener = listen(place)
        self._is_closed = False
        # Daemon threads do not keep the process from exiting.
        self._thread = threading.Thread(target=self._accept, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more; requests that are being served are left to themselves."""
        self._is_closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the waiting in `_accept`
        self._listener.close()
        if self._socket_path is not None:
            self._socket_path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                # The listener was closed, or no descriptor is left. A short pause keeps the latter
                # from taking the whole processor.
                self._clock.sleep(_PAUSE)
                continue
            if not self._free.acquire(blocking=False):
                connection.close()
                continue
            serving = threading.Thread(target=self._serve, args=[connection], daemon=True)
            try:
                serving.start()
            except RuntimeError:  # no thread is left
                connection.close()
                self._free.release()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                head_only, answer = self._answer(connection)
                connection.settimeout(self._longest)
                connection.sendall(_response(answer, head_only=head_only))
        finally:
            self._free.release()

    def _answer(self, connection: socket.socket) -> tuple[bool, Answer]:
        """Read a request; return whether only the head is wanted, and the answer.

        Raises:
            OSError: the connection is broken.
        """
        try:
            method, path = self._request(connection)
        except _InvalidError as error:
            return False, Answer(error.status, f"{error}\n".encode())
        function = self._paths.get(path.partition("?")[0])
        if function is None:
            return method == "HEAD", Answer(404, b"/metrics, /livez and /readyz are here\n")
        if method not in ("GET", "HEAD"):
            return False, Answer(405, b"only GET and HEAD\n")
        try:
            return method == "HEAD", function()
        except Exception:  # noqa: BLE001  # a bug must not end the server
            _log.exception("a fault in the answer to %s", path)
            return method == "HEAD", Answer(500, b"a fault in psched; its log says more\n")

    def _request(self, connection: socket.socket) -> tuple[str, str]:
        """Read the head of a request; return its method and its path.

        Raises:
            OSError: the connection is broken.
        """
        until = self._clock.monotonic() + self._longest
        head = b""
        while _END not in head:
            left = until - self._clock.monotonic()
            if left <= 0:
                raise _InvalidError(408)
            connection.settimeout(left)
            try:
                chunk = connection.recv(_LONGEST_REQUEST)
            except TimeoutError:
                raise _InvalidError(408) from None
            if not chunk:
                raise _InvalidError(400)
            head += chunk
            if len(head) > _LONGEST_REQUEST:
                raise _InvalidError(413)
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != _WORDS or not words[2].startswith("HTTP/1."):
            raise _InvalidError(400)
        return words[0], words[1]


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
    """Listen at an address or a path.

    Raises:
        OSError: it cannot be used.
    """
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
        listener.listen(_MOST_CONNECTIONS)
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
        listener.listen(_MOST_CONNECTIONS)
    except OSError:
        listener.close()
        raise
    return listener


def _remove_unused(path: Path) -> None:
    """Remove the Unix socket of a monitor that was killed.

    Raises:
        OSError: another process listens on it, or it is no socket.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(f"{path} is no socket; remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise FileExistsError(f"another process listens on {path}")

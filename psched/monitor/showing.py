"""The duty that shows metrics: on an address, on a Unix socket, or as a file for node_exporter."""

from __future__ import annotations

import os
import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from psched.monitor.address import listen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from psched.base.clock import Clock
    from psched.monitor.address import Place
    from psched.monitor.monitor import Observed
    from psched.monitor.server import HttpServer

    Headers = list[tuple[str, str]]

_EVERY = 15.0  # seconds between two writings of the file
_LONG = 3600.0  # seconds until the next step of a server, which works in threads of its own

_SILENT = 30.0
"""Seconds without a message of the master after which the host is not ready. The master sends one
at least every 15 seconds, see `psched.master.monitor_child`."""

_PATIENCE = 5.0  # seconds for the end of the server's thread
_MOST_SCRAPES = 4  # the most requests for the metrics that are answered at the same time

_PLAIN = "text/plain; charset=utf-8"

_TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of Prometheus' text format."""


class ServesMetrics:
    """Serves metrics, ``/livez`` and ``/readyz``. While the address is in use, it tries again."""

    name = "the server of metrics"

    def __init__(
        self, place: Place, read: Callable[[], bytes], observed: Observed, clock: Clock
    ) -> None:
        self._place = place
        self._read = read
        self._observed = observed
        self._clock = clock
        self._scrapes = threading.BoundedSemaphore(_MOST_SCRAPES)
        self._server: HttpServer | None = None
        self._thread: threading.Thread | None = None

    def step(self, now: float) -> float:
        """Begin to listen, if that is not done yet."""
        # Loaded only here: it takes memory, and its package is optional.
        from psched.monitor.server import HttpServer  # noqa: PLC0415

        del now
        if self._server is None:
            self._server = HttpServer(
                self._answer,
                listen(self._place),
                self._clock,
                threads=_MOST_SCRAPES + 1,
            )
            # A daemon thread does not keep the process from exiting.
            self._thread = threading.Thread(target=self._server.run, name="metrics", daemon=True)
            self._thread.start()
        return _LONG

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None and self._thread is not None:
            self._server.close()
            self._thread.join(_PATIENCE)
            if self._place.socket is not None:
                self._place.socket.unlink(missing_ok=True)

    def _answer(
        self, environ: Mapping[str, Any], start_response: Callable[[str, Headers], object]
    ) -> Sequence[bytes]:
        """Answer a request, as PEP 3333 defines it."""
        method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO")
        kind, status, text = _PLAIN, HTTPStatus.OK, b"alive\n"
        # The kernel kills the monitor with its master: an answer to /livez shows that both live.
        if path not in {"/metrics", "/livez", "/readyz"}:
            status, text = HTTPStatus.NOT_FOUND, b"/metrics, /livez and /readyz are here\n"
        elif method not in {"GET", "HEAD"}:
            status, text = HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD\n"
        elif path == "/readyz":
            status, text = self._ready()
        elif path == "/metrics" and not self._scrapes.acquire(blocking=False):
            # One thread is left for those who only ask whether this host lives.
            status, text = HTTPStatus.SERVICE_UNAVAILABLE, b"too many ask for the metrics\n"
        elif path == "/metrics":
            try:
                kind, text = _TEXT_FORMAT, self._read()
            finally:
                self._scrapes.release()
        headers = [
            ("Content-Type", kind),
            ("Content-Length", str(len(text))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        start_response(f"{status.value} {status.phrase}", headers)
        return [b"" if method == "HEAD" else text]

    def _ready(self) -> tuple[HTTPStatus, bytes]:
        seen = self._observed.now
        if seen.host is None:
            why: str | None = "the master has not said anything yet"
        elif seen.silent >= _SILENT:
            why = f"the master has said nothing for {seen.silent:.0f} s"
        else:
            why = seen.host.problem
        if why is None:
            return HTTPStatus.OK, b"ready\n"
        return HTTPStatus.SERVICE_UNAVAILABLE, f"{why}\n".encode()


class WritesMetrics:
    """Writes metrics to a file, again and again; a reader never sees half of it."""

    name = "the file of metrics"

    def __init__(self, path: Path, read: Callable[[], bytes]) -> None:
        self._path = path
        self._read = read

    def step(self, now: float) -> float:
        """Write the file."""
        del now
        # node_exporter reads only names that end in .prom.
        new = self._path.with_name(f"{self._path.name}.new")
        new.unlink(missing_ok=True)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(new, flags), "wb") as file:
            os.fchmod(file.fileno(), 0o644)  # node_exporter is another user
            file.write(self._read())
        new.replace(self._path)
        return _EVERY

    def close(self) -> None:
        """Remove the file, because its numbers are no longer true."""
        self._path.unlink(missing_ok=True)

"""The duty that shows metrics: on an address, on a Unix socket, or as a file for node_exporter."""

import os
from collections.abc import Callable
from pathlib import Path

from psched.base.clock import Clock
from psched.monitor.observed import Observed
from psched.monitor.server import Answer, MetricsServer, Place

_EVERY = 15.0
"""Seconds between two writings of the file."""

_LONG = 3600.0
"""Seconds until the next step of a server, which works in threads of its own."""

_SILENT = 30.0
"""Seconds without a message of the master after which the host is not ready. The master sends one
at least every 15 seconds, see `psched.master.monitor_child`."""

_TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of Prometheus' text format."""


class ServesMetrics:
    """Serves metrics, ``/livez`` and ``/readyz``. If the address is in use, it tries again later.

    Args:
        place: where.
        read: returns the metrics as text; several threads can call it at once.
        observed: what the master has told.
        clock: measures how long requests take.
    """

    name = "the server of metrics"

    def __init__(
        self, place: Place, read: Callable[[], bytes], observed: Observed, clock: Clock
    ) -> None:
        self._place = place
        self._read = read
        self._observed = observed
        self._clock = clock
        self._server: MetricsServer | None = None

    def step(self, now: float) -> float:
        """Begin to listen, if that is not done yet."""
        del now
        if self._server is None:
            paths = {
                "/metrics": lambda: Answer(200, self._read(), _TEXT_FORMAT),
                # The kernel kills the monitor with its master, so an answer shows that both live.
                "/livez": lambda: Answer(200, b"alive\n"),
                "/readyz": self._ready,
            }
            self._server = MetricsServer(self._place, paths, self._clock)
        return _LONG

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    def _ready(self) -> Answer:
        seen = self._observed.now
        if seen.host is None:
            why: str | None = "the master has not said anything yet"
        elif seen.silent >= _SILENT:
            why = f"the master has said nothing for {seen.silent:.0f} s"
        else:
            why = seen.host.problem
        return Answer(200, b"ready\n") if why is None else Answer(503, f"{why}\n".encode())


class WritesMetrics:
    """Writes metrics to a file, again and again; a reader never sees half of it.

    Args:
        path: the file.
        read: returns the metrics as text.
    """

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

"""A ping server on loopback that behaves as Healthchecks documents it.

https://healthchecks.io/docs/http_api/ and https://healthchecks.io/docs/measuring_script_run_time/
"""

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from support.waiting import wait_until

PING_KEY = "fqOOd6-F4MMNuCEnzTU01w"

_WHAT = r"(?:/(?P<what>start|fail|log|\d{1,9}))?"
_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_BY_UUID = re.compile(rf"/ping/(?P<check>{_UUID}){_WHAT}")
_BY_SLUG = re.compile(rf"/ping/{PING_KEY}/(?P<check>[a-z0-9_-]+?){_WHAT}")
_HIGHEST_STATUS = 255


@dataclass(frozen=True)
class Signal:
    """One ping that was accepted.

    Attributes:
        kind: start, success, fail or log.
        status: the exit status that was sent.
        rid: the id of the run.
        body: what is kept of the body.
        duration: seconds since the start with the same id; None if there was none.
    """

    kind: str
    status: int | None
    rid: str | None
    body: str
    duration: float | None


@dataclass
class Check:
    """What is known of one job.

    Attributes:
        status: new, up or down.
        started: whether a start was signalled, and no end.
        signals: the pings, the oldest first.
    """

    status: str = "new"
    started: bool = False
    signals: list[Signal] = field(default_factory=list)
    starts: dict[str | None, float] = field(default_factory=dict)
    last_start: str | None = None

    @property
    def kinds(self) -> list[str]:
        """The kinds of all pings; the exit status if one was sent."""
        return [each.kind if each.status is None else str(each.status) for each in self.signals]

    def signal(self, kind: str, status: int | None, rid: str | None, body: str) -> None:
        """Note a ping."""
        now, duration = time.monotonic(), None
        if kind == "start":
            self.started, self.last_start = True, rid
            self.starts[rid] = now
        elif kind != "log":
            begun = self.starts.pop(rid, None)
            duration = None if begun is None else now - begun
            # The success of another run does not end the run that was started last.
            if kind == "fail" or rid is None or rid == self.last_start:
                self.started = False
            self.status = "up" if kind == "success" else "down"
        self.signals.append(Signal(kind, status, rid, body, duration))


class PingServer:
    """A server with some checks.

    Attributes:
        port: where it listens on 127.0.0.1.
        body_limit: how many bytes of a body are kept, the first ones.
        status: if it is not None, it answers this status, and accepts nothing.
        requests: how many requests have come, accepted or not.
    """

    def __init__(self, *, body_limit: int = 100_000) -> None:
        self.port = 0
        self.body_limit = body_limit
        self.status: int | None = None
        self.requests = 0
        self._checks: dict[str, Check] = {}
        self._lock = threading.Lock()
        self._answers = threading.Event()
        self._answers.set()
        self._http: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def url(self, check: str, *, more: str = "") -> str:
        """The URL of a check; it is created if there is none with this UUID."""
        self._checks.setdefault(check, Check())
        return f"http://127.0.0.1:{self.port}/ping/{check}{more}"

    def slug_url(self, *, more: str = "") -> str:
        """The URL by which checks are found by slugs."""
        return f"http://127.0.0.1:{self.port}/ping/{PING_KEY}/{{key}}{more}"

    def check(self, name: str) -> Check:
        """A check, by its UUID or slug; an empty one if there is none."""
        with self._lock:
            return self._checks.get(name, Check())

    def wait_for(self, name: str, *kinds: str) -> list[Signal]:
        """Wait until exactly these pings have come to a check; return them."""
        try:
            wait_until(lambda: self.check(name).kinds == [*kinds], what=f"{kinds} at {name}")
        except AssertionError as error:
            error.add_note(f"there are {self.check(name).kinds}")
            raise
        return self.check(name).signals

    def hang(self) -> None:
        """Accept connections from now on, but answer nothing."""
        self._answers.clear()

    def go_on(self) -> None:
        """Answer again, also those that wait."""
        self._answers.set()

    def start(self) -> None:
        """Listen, at the same port as before."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                with suppress(OSError):  # the client does not wait any longer
                    server.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._http.server_port
        self._thread = threading.Thread(target=self._http.serve_forever, args=[0.01], daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Listen no more; connections are refused."""
        if self._http is not None and self._thread is not None:
            self._http.shutdown()
            self._http.server_close()
            self._thread.join()
            self._http = None

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer a request."""
        body = request.rfile.read(int(request.headers.get("content-length", "0")))
        with self._lock:
            self.requests += 1
        self._answers.wait()
        status, text = self._accept(request.path, body)
        request.send_response(status)
        request.send_header("Ping-Body-Limit", str(self.body_limit))
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        request.wfile.write(text.encode())

    def _accept(self, target: str, body: bytes) -> tuple[int, str]:
        parts = urlsplit(target)
        options = parse_qs(parts.query)
        found = _BY_UUID.fullmatch(parts.path) or _BY_SLUG.fullmatch(parts.path)
        if self.status is not None or found is None:
            return self.status or 404, "not found"
        rid = options.get("rid", [None])[0]
        what = found["what"] or "success"
        status = int(what) if what.isdigit() else None
        if (rid is not None and str(_uuid(rid)) != rid) or (status or 0) > _HIGHEST_STATUS:
            return 400, "invalid uuid or url format"
        if status is not None:
            what = "fail" if status else "success"
        return self._signal(found, options, (what, status, rid), body)

    def _signal(
        self,
        found: re.Match[str],
        options: Mapping[str, list[str]],
        told: tuple[str, int | None, str | None],
        body: bytes,
    ) -> tuple[int, str]:
        with self._lock:
            is_new = found["check"] not in self._checks
            if is_new and found.re is _BY_UUID:
                return 200, "OK (not found)"
            if is_new and options.get("create") != ["1"]:
                return 404, "not found"
            check = self._checks.setdefault(found["check"], Check())
            text = body[: self.body_limit].decode()  # raises if it is not UTF-8
            check.signal(*told, text)
        return (201, "Created") if is_new else (200, "OK")


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


@contextmanager
def ping_server(**options: Any) -> Iterator[PingServer]:
    """Run a ping server."""
    server = PingServer(**options)
    server.start()
    try:
        yield server
    finally:
        server.go_on()
        server.stop()

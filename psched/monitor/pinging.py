"""Makes pings, by the protocol of Healthchecks, of what the master tells about runs.

The protocol: https://healthchecks.io/docs/http_api/
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from psched.base.clock import Clock
from psched.base.fault_log import FaultLog
from psched.base.stable_hash import stable_hash
from psched.base.texts import counted
from psched.config.monitoring import KEY
from psched.output.masking import Secrets
from psched.reports.redaction import Redaction

if TYPE_CHECKING:
    from psched.monitor.ping_delivery import PingDelivery

_log = logging.getLogger("psched.monitor")

_LANES = 4
"""The threads for each ping server. All pings of one schedule are sent by the same thread, so that
their order stays."""

_MOST_NAMES = 100  # the most names of which it is logged that they are not defined
_PAUSE = 60.0  # seconds between two looks whether a fault is over

_LONGEST_SLUG = 100
_DIGITS = 8


class Ping(NamedTuple):
    """One request."""

    name: str  # the name of the ping, for the log
    url: str  # the URL, with what has happened and the run's id
    body: bytes  # the end of the output, and a line that says what has happened
    since: float  # when it was asked for, in seconds of the monotonic clock


class Pinging:
    """Sends pings; a duty of the monitor. It waits for nothing, because others deliver them."""

    name = "pings"

    def __init__(
        self,
        urls: Mapping[str, str],
        # Creates what delivers pings; called when the first one is to be sent.
        open_delivery: "Callable[[], PingDelivery]",
        *,
        clock: Clock,
        secrets: Iterable[str] = (),  # texts that are masked in reasons; output was masked before
        redact: Sequence[str] = (),  # patterns of the names of fields whose values are hidden
    ) -> None:
        self._urls = urls
        self._open_delivery = open_delivery
        self._delivery: PingDelivery | None = None
        self._clock = clock
        self._secrets = Secrets(secrets)
        self._redaction = Redaction(redact)
        self._undefined: set[str] = set()
        self._lost = FaultLog("pings are lost", _log, clock)

    def note(self, message: Mapping[str, Any]) -> None:
        """Have the ping of a message about a run sent soon."""
        if lost := message.get("lost_pings", 0):
            what = f"{counted(lost, 'message')} about runs could not be passed on to the monitor"
            self._lost.failed(what)
        if "ping" not in message:
            return
        name, key = message["ping"], message["key"]
        url = self._urls.get(name)
        if url is None:
            self._tell_undefined(name, key)
            return
        if self._delivery is None:
            self._delivery = self._open_delivery()
        ping = Ping(name, url_of(url, message), self._body(message), self._clock.monotonic())
        self._delivery.add(ping, urlsplit(url).netloc, stable_hash(f"{name}/{key}", _LANES))

    def step(self, now: float) -> float:
        """Note that no messages are lost any more."""
        del now
        self._lost.passed()
        return _PAUSE

    def close(self) -> None:
        """Deliver what waits, but not for long."""
        if self._delivery is not None:
            self._delivery.close()

    def _tell_undefined(self, name: str, key: str) -> None:
        if name not in self._undefined and len(self._undefined) < _MOST_NAMES:
            self._undefined.add(name)
            text = "%s: names the ping %s, which is not in pings; so nobody is told of its runs"
            _log.warning(text, key, name)

    def _body(self, message: Mapping[str, Any]) -> bytes:
        if message["what"] == "start":
            return b""
        text: bytes = message["text"].encode(errors="replace")
        if self._secrets.all:
            text = self._secrets.pattern.sub(self._secrets.shown, text)
        tail: bytes = message["data"] if "tail" in message else b""
        between = b"\n" if tail and not tail.endswith(b"\n") else b""
        # The server keeps a body only if it is UTF-8. The output can begin with half a character.
        whole = (tail + between + text + b"\n").decode(errors="replace")
        return self._redaction.text(whole).encode()


def url_of(url: str, message: Mapping[str, Any]) -> str:
    """The URL of a ping: that of its check, what has happened, and the id of the run."""
    parts = urlsplit(url)
    path = parts.path
    if path.endswith(f"/{KEY}"):
        path = path.removesuffix(KEY) + slug_of(message["key"])
    if message["exit"] is not None:
        path += f"/{message['exit']}"
    elif message["what"] != "success":
        path += f"/{message['what']}"
    query = f"{parts.query}&" if parts.query else ""
    return parts._replace(path=path, query=f"{query}rid={message['run']}").geturl()


def slug_of(key: str) -> str:
    """The slug of a schedule's check: lower-case letters, digits, - and _, at most 100.

    Other characters become hyphens. A slug that says less than its key ends with digits that depend
    on the key, because two schedules must not have the same check.
    """
    slug = re.sub("[^a-z0-9_-]+", "-", key.lower()).strip("-")
    if slug == key.lower() and len(slug) <= _LONGEST_SLUG:
        return slug
    digits = f"{stable_hash(key, 16**_DIGITS):0{_DIGITS}x}"
    return f"{slug[: _LONGEST_SLUG - _DIGITS - 1]}-{digits}".lstrip("-")

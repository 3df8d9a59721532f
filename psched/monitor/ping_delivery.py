"""Delivers pings to ping servers, in threads.

However slow a server is, nothing waits for it but other pings to it, and of these not more than a
fixed number.
"""

import logging
import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from psched.base.clock import Clock
from psched.base.fault_log import FaultLog
from psched.base.texts import counted
from psched.monitor.pinging import Ping
from psched.notify.http_client import Answer, HttpClient, HttpError

_log = logging.getLogger("psched.monitor")

_MOST_WAITING = 1000
"""The most pings that wait for one thread. If more come, the oldest ones are dropped."""

_MOST_BYTES = 2**20  # the most bytes of the bodies that wait for one thread
_TIMEOUT = 10.0  # the seconds of one try
WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)  # the seconds before each further try

_LONGEST_AGE = 300.0
"""A ping that was not delivered for so many seconds is not tried again, so that after an outage of
the server old pings do not delay new ones."""

_LAST_SECONDS = 2.0
"""For so long, a monitor that ends still delivers pings. It must be shorter than the shortest
``child_heartbeat_limit``, because the monitor gives no sign of life meanwhile."""

_BODY_LIMIT = 100_000  # the bytes of a body that a server keeps, unless it tells another number

_LEAST_BODY = 1000
"""A smaller number is ignored, because it leaves no place for the reason of a failure."""

_MEANINGS: Mapping[int, str] = {
    HTTPStatus.NOT_FOUND: "it knows no such check",
    HTTPStatus.CONFLICT: "it knows several checks with this slug",
}


class PingDelivery:
    """Delivers pings, tried again after ``waits`` seconds. The methods are called by one thread."""

    def __init__(self, client: HttpClient, clock: Clock, waits: Sequence[float] = WAITS) -> None:
        self._client = client
        self._clock = clock
        self._waits = waits
        self._faults = _Faults(clock)
        self._lanes: dict[tuple[str, int], _Lane] = {}

    def add(self, ping: Ping, server: str, number: int) -> None:
        """Have a ping sent, after those with the same server and number."""
        lane = self._lanes.get((server, number))
        if lane is None:
            lane = _Lane(self._client, self._clock, self._waits, self._faults)
            self._lanes[server, number] = lane
        lane.add(ping)

    def close(self) -> None:
        """Deliver what waits, but not for long."""
        until = self._clock.monotonic() + _LAST_SECONDS
        for lane in self._lanes.values():
            lane.hurry(until)
        if left := sum(lane.wait(until) for lane in self._lanes.values()):
            _log.warning("the monitor ends, and %s could not be delivered", counted(left, "ping"))


class _Faults:
    """Logs which pings are not delivered; several threads use it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logs: dict[str, FaultLog] = {}

    def note(self, ping: Ping, problem: str | None) -> None:
        """Note what has become of a ping: why it was not delivered, or None."""
        with self._lock:
            if (log := self._logs.get(ping.name)) is None:
                what = f"the ping {ping.name} is not delivered"
                log = self._logs[ping.name] = FaultLog(what, _log, self._clock)
            if problem is None:
                log.passed()
            else:
                log.failed(problem)


class _Lane:
    """The pings that one thread sends, one after the other."""

    def __init__(
        self, client: HttpClient, clock: Clock, waits: Sequence[float], faults: _Faults
    ) -> None:
        self._client = client
        self._clock = clock
        self._waits = waits
        self._faults = faults
        self._changed = threading.Condition()
        # The first one is being sent.
        self._waiting: deque[Ping] = deque()
        self._size = 0
        self._limit = _BODY_LIMIT
        self._ends: float | None = None
        self._failed_at_end = 0
        self._thread: threading.Thread | None = None

    def add(self, ping: Ping) -> None:
        """Have a ping sent."""
        with self._changed:
            self._waiting.append(ping)
            self._size += len(ping.body)
            while len(self._waiting) > 1 and (
                len(self._waiting) > _MOST_WAITING or self._size > _MOST_BYTES
            ):
                dropped = self._waiting[1]
                del self._waiting[1]
                self._size -= len(dropped.body)
                self._faults.note(dropped, "too many pings wait for a slow server")
            self._changed.notify_all()
            if self._thread is None:
                # If it cannot be started, the next ping tries again.
                thread = threading.Thread(target=self._run, name="psched-ping", daemon=True)
                thread.start()
                self._thread = thread

    def hurry(self, until: float) -> None:
        """From now on send without pauses, and nothing after a time of the monotonic clock."""
        with self._changed:
            self._ends = until
            self._changed.notify_all()

    def wait(self, until: float) -> int:
        """Wait until no ping waits, or a time has come; return how many were not delivered.

        Those that have failed since `hurry` are counted, too: at the end of the time, either this
        thread or the lane's may be first.
        """
        with self._changed:
            while self._waiting and (left := until - self._clock.monotonic()) > 0:
                self._changed.wait(left)
            return len(self._waiting) + self._failed_at_end

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                ping = self._waiting[0]
            try:
                problem = self._deliver(ping)
            except Exception as error:  # noqa: BLE001  # the next ping must be sent nevertheless
                problem = f"a fault in psched: {type(error).__name__}"
            self._faults.note(ping, problem)
            with self._changed:
                self._waiting.popleft()
                self._size -= len(ping.body)
                self._failed_at_end += problem is not None and self._ends is not None
                self._changed.notify_all()

    def _deliver(self, ping: Ping) -> str | None:
        """Send a ping, several times if needed; return why it was not delivered, or None."""
        problem: str | None = "it has waited for too long"
        for pause in (0.0, *self._waits):
            if not self._pause(ping, pause):
                return problem
            problem, is_final = self._try(ping)
            if problem is None or is_final:
                return problem
        return problem

    def _pause(self, ping: Ping, seconds: float) -> bool:
        """Wait before a try; return whether it is still worth while."""
        with self._changed:
            ends = self._clock.monotonic() + seconds
            while self._ends is None and (left := ends - self._clock.monotonic()) > 0:
                self._changed.wait(left)
            return self._clock.monotonic() < (self._ends or ping.since + _LONGEST_AGE)

    def _try(self, ping: Ping) -> tuple[str | None, bool]:
        """Why a ping was not delivered, None if it was; and whether further tries are of no use."""
        seconds = _TIMEOUT
        if self._ends is not None:
            seconds = min(seconds, max(0.1, self._ends - self._clock.monotonic()))
        headers = {"Content-Type": "text/plain; charset=utf-8"}
        body = _end_of(ping.body, self._limit)
        try:
            answer = self._client.send(
                "POST", ping.url, headers=headers, body=body, seconds=seconds
            )
        except HttpError as error:
            return str(error), not error.retry
        told = answer.headers.get("ping-body-limit", "")
        if re.fullmatch(r"[0-9]{1,9}", told):
            self._limit = max(_LEAST_BODY, int(told))
        return _problem(answer)


def _problem(answer: Answer) -> tuple[str | None, bool]:
    """Why a server has not accepted a ping, None if it has; and whether this is final.

    Nothing of the answer is shown, because it can contain the URL.
    """
    if not answer.ok:
        meaning = _MEANINGS.get(answer.status)
        why = f"the server has answered {answer.status}" + (f": {meaning}" if meaning else "")
        return why, not answer.retry
    # For the sake of old clients, servers answer 200 in these cases, too.
    if b"(not found)" in answer.body:
        return "the server knows no such check", True
    if b"(rate limited)" in answer.body:
        return "the server says that it gets too many pings", False
    return None, False


def _end_of(body: bytes, limit: int) -> bytes:
    """The last bytes of a UTF-8 text, without half a character at the beginning."""
    if len(body) <= limit:
        return body
    return body[-limit:].decode(errors="ignore").encode()

"""Passes the output of running tasks from the workers to clients of the status socket.

::

    runner ── pipe ──▶ collector ──▶ worker ──▶ master ──▶ psched logs -f

A client asks for the output of a key. The master asks all workers, because it does not know which
worker runs the key. A client that reads slowly is disconnected, so that the master holds little for
it. Without a client, this costs nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from psched.base.clock import Clock
from psched.master.reports.status_socket import StatusReader
from psched.master.worker_child import WorkerChild
from psched.process.link import packed

MOST_READERS = 16  # the most clients that read output at a time

MOST_WAITING = 2**18
"""The most bytes that wait until a client reads them. A client that reads too slowly is cut off."""

_PATIENCE = 10.0  # seconds after which a client is told that no worker has answered

_LAST_WORDS = 60.0
"""Seconds for which a client can still read what waits for it, after its task has ended or it was
cut off."""

_KINDS = ("follows", "output", "nothing", "ended", "absent")


@dataclass(slots=True)
class _Request:
    """What a client has asked for."""

    reader: StatusReader  # the connection to the client
    # The pids of the workers that may still answer that they run the task.
    asked: set[int] = field(default_factory=set)
    # When the client is told that nobody has answered, seconds of the monotonic clock.
    until: float = 0.0
    worker: int | None = None  # the pid of the worker that runs the task; None if it is not known
    cut: bool = False  # whether the client was told that it is too slow


class OutputRelay:
    """Passes the output of running tasks to the clients that have asked for it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._requests: dict[int, _Request] = {}
        self._last = 0

    def begin(self, readers: Iterable[StatusReader], workers: Iterable[WorkerChild]) -> None:
        """Ask the workers for the output that new clients want."""
        for reader in readers:
            asking, reader.asks_for = reader.asks_for, None
            if len(self._requests) >= MOST_READERS:
                self._over(reader, "too many")
                continue
            self._last += 1
            request = _Request(reader, until=self._clock.monotonic() + _PATIENCE)
            self._requests[self._last] = request
            for worker in workers:
                if worker.ready:
                    request.asked.add(worker.pid)
                    worker.tell(follow=asking, reader=self._last)

    def take(self, message: Mapping[str, Any], pid: int) -> None:
        """Pass on a worker's message about output, if it is one."""
        kind = next((each for each in _KINDS if each in message), "")
        number = message.get(kind)
        request = self._requests.get(number) if isinstance(number, int) else None
        if request is None:
            return
        request.asked.discard(pid)
        if kind == "follows" and request.worker is None:
            request.worker = pid
        if kind == "absent" or request.worker != pid or request.cut:
            return
        if kind == "ended":
            self._finish(message["ended"], "ended")
        elif request.reader.waiting_bytes > MOST_WAITING:
            # `look` tells the worker.
            request.cut = True
            self._over(request.reader, "too slow")
        else:
            fields = {name: value for name, value in message.items() if name != "data"}
            request.reader.write(packed(fields, message.get("data", b"")))

    def look(self, workers: Iterable[WorkerChild]) -> float:
        """Note which clients and workers have ended; return when to call again: monotonic clock."""
        if not self._requests:
            return float("inf")
        alive = {worker.pid: worker for worker in workers}
        now = self._clock.monotonic()
        wakes = float("inf")
        for number, request in [*self._requests.items()]:
            request.asked &= alive.keys()
            if request.reader.closed or request.cut:
                del self._requests[number]
                self._stop(number, alive.values())
            elif request.worker is not None:
                if request.worker not in alive:
                    self._finish(number, "worker ended")
            elif not request.asked:
                self._finish(number, "absent")
            elif now >= request.until:
                self._finish(number, "no answer")
                self._stop(number, alive.values())
            else:
                wakes = min(wakes, request.until)
        return wakes

    def _finish(self, number: int, why: str) -> None:
        """Forget a request, and tell its client why nothing follows."""
        self._over(self._requests.pop(number).reader, why)

    def _over(self, reader: StatusReader, why: str) -> None:
        reader.write(packed({"over": why}))
        reader.finish(self._clock.monotonic() + _LAST_WORDS)

    @staticmethod
    def _stop(number: int, workers: Iterable[WorkerChild]) -> None:
        for worker in workers:
            if worker.ready:
                worker.tell(unfollow=number)

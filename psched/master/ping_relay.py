"""Passes what workers tell about runs on to the monitor, which pings.

The master does not judge a message. It only remembers which runs of a worker have begun and not
ended, because a worker that dies cannot tell how they end.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from psched.master.worker_child import WorkerChild
from psched.process.link import Link, packed

_MOST_BYTES = 2 * 2**20
"""The most bytes that wait for a monitor. If more come, the oldest messages are dropped, and
counted: people want to know how the last runs have ended."""

_MOST_OPEN = 10_000
"""The most runs that are remembered, because the worker may die."""

_KEPT = ("ping", "key", "run", "what", "exit", "text")
"""The fields that are passed on, besides the output."""


class PingRelay:
    """Keeps a few messages for the monitor: it may be slow, hang, or be replaced.

    Attributes:
        wanted: whether there is, or will soon be, a monitor. If not, messages are dropped.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._lost = 0
        # The runs that have begun and not ended, by the nonce of their worker.
        self._open: dict[str, dict[str, Mapping[str, Any]]] = {}
        self._open_count = 0

    def note(self, worker: WorkerChild, message: Mapping[str, Any]) -> None:
        """Keep what a worker's message says about a run, if it says something."""
        if not self.wanted:
            return
        self._lost += message.get("lost_pings", 0)
        if "ping" not in message:
            return
        kept = {name: message[name] for name in _KEPT}
        runs = self._open.setdefault(worker.identity.nonce, {})
        if kept["what"] != "start":
            self._open_count -= runs.pop(kept["run"], None) is not None
        elif self._open_count < _MOST_OPEN and kept["run"] not in runs:
            runs[kept["run"]] = {**kept, "text": ""}  # which can be long, and is not needed
            self._open_count += 1
        if "tail" in message:
            self._keep(packed({**kept, "tail": True}, message["data"]))
        else:
            self._keep(packed(kept))

    def ended(self, worker: WorkerChild) -> None:
        """Note that a worker has ended; if it has died, its runs have failed."""
        runs = self._open.pop(worker.identity.nonce, {})
        self._open_count -= len(runs)
        if worker.may_hold_leases and self.wanted:
            for run in runs.values():
                text = f"{run['key']}: lost, because its worker has died"
                self._keep(packed({**run, "what": "fail", "text": text}))

    def pass_on(self, link: Link, *, everything: bool = False) -> None:
        """Send the monitor what it accepts now."""
        while self._waiting and (everything or not link.unsent):
            message = self._waiting.popleft()
            self._size -= len(message)
            link.send(message)
        if self._lost and (everything or not link.unsent):
            link.send({"lost_pings": self._lost})
            self._lost = 0

    def _keep(self, message: bytes) -> None:
        self._waiting.append(message)
        self._size += len(message)
        while self._size > _MOST_BYTES:
            self._size -= len(self._waiting.popleft())
            self._lost += 1

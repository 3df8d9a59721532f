"""Listens to what other hosts announce, and hints to the master that rows may be due.

The hint takes the way of any program of this host (`psched.master.waking`), so the master limits
how often its workers look.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from psched.base.clock import Clock
from psched.base.errors import PschedError
from psched.base.fault_log import FaultLog
from psched.core.store_protocol import Store

_log = logging.getLogger("psched.monitor")

_PAUSES = (1.0, 30.0)
"""The seconds after which a connection that broke is opened again: at first, and at most. Workers
poll meanwhile."""

_LOOK = 60.0  # seconds between two steps of the duty, whose thread does all the work

_LONGEST_END = 3.0
"""Seconds for which the end of the monitor waits for the thread, which looks every second whether
it is over."""


class Listening:
    """Listens in a thread of its own, with stores that it alone uses; a duty of the monitor."""

    name = "listening to other hosts"

    def __init__(
        self, open_store: Callable[[], Store], hint: Callable[[], object], clock: Clock
    ) -> None:
        self._open_store = open_store
        self._hint = hint
        self._faults = FaultLog("what other hosts announce is not heard", _log, clock)
        self._over = threading.Event()
        self._pause = 0.0
        self._thread: threading.Thread | None = None

    def step(self, _now: float) -> float:
        """Start the thread, if it does not run."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="listening", daemon=True)
            self._thread.start()
        return _LOOK

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(_LONGEST_END)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._listen()
            except PschedError as error:
                self._faults.failed(error)
            shortest, longest = _PAUSES
            self._pause = min(longest, max(shortest, 2 * self._pause))
            self._over.wait(self._pause)

    def _listen(self) -> None:
        store = self._open_store()
        try:
            if store.announcements is not None:
                store.announcements.listen(self._heard, self._is_over)
        finally:
            with suppress(PschedError):
                store.disconnect()

    def _heard(self) -> None:
        self._pause = 0.0
        self._hint()

    def _is_over(self) -> bool:
        self._faults.passed()
        return self._over.is_set()

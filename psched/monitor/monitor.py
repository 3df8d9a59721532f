"""The loop of a monitor process: does its duties when they are due, and obeys its master.

The monitor runs no user code and holds no lease. It has a connection to the store only while one of
its duties needs it. If the master dies, or tells it to end, it exits. `Observed` keeps what the
master tells: totals of counts, and what is true now of the workers.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from psched.base.clock import Clock
from psched.base.fault_log import FaultLog
from psched.base.log import Log
from psched.master.messages import LONGEST_PIECE, TO_MONITOR
from psched.master.totals import Host
from psched.process.link import Link
from psched.process.signals import SignalInbox

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is known at one moment."""

    # How often each thing has happened, by name and two labels; see `psched.core.history.counts`.
    totals: Mapping[Key, int] = field(default_factory=dict)
    # What is true of the workers of this host; None if the master has not said it yet.
    host: Host | None = None
    # For how many seconds the master has said nothing; 0 if it has never said anything.
    silent: float = 0.0

    def labelled(self, name: str) -> Mapping[tuple[str, str], int]:
        """The totals of one name, by their two labels."""
        return {
            (one, other): count for (of, one, other), count in self.totals.items() if of == name
        }


class Observed:
    """Keeps what the master has told; several threads can read it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._totals: dict[Key, int] = {}
        self._host: Host | None = None
        self._heard = 0.0

    def note(self, message: Mapping[str, Any]) -> None:
        """Note a message of the master of the kind ``totals``."""
        totals: Sequence[tuple[str, str, str, int]] = message["totals"]
        with self._lock:
            self._totals.update({(name, one, other): n for name, one, other, n in totals})
            self._heard = self._clock.monotonic()
            self._host = Host(**{name: message["host"][name] for name in Host._fields})

    @property
    def now(self) -> Observation:
        """What is known now."""
        with self._lock:
            silent = 0.0 if self._host is None else self._clock.monotonic() - self._heard
            return Observation(totals=dict(self._totals), host=self._host, silent=silent)


_log = logging.getLogger("psched.monitor")

_PAUSES = (1.0, 60.0)
"""Two times in seconds: the pause of a duty after its first fault, and the longest pause. Each
further fault in a row doubles the pause."""


class Duty(Protocol):
    """Something that the monitor does again and again.

    All duties share one thread, so a step must end soon: a monitor whose steps take longer than
    ``child_heartbeat_limit`` is taken for one that hangs, and is replaced. A duty that waits for
    others, for example for a slow receiver, does that in a thread of its own.
    """

    @property
    def name(self) -> str:
        """What the duty does, for the log."""
        ...

    def step(self, now: float) -> float:
        """Do what is due at a time of the monotonic clock; return the seconds until the next step.

        Whatever it raises is logged, and stops only this duty, for a while.
        """
        ...

    def close(self) -> None:
        """Stop, because the monitor ends; called once."""
        ...


class _Watched:
    """A duty, and when it is due."""

    def __init__(self, duty: Duty, clock: Clock) -> None:
        self.duty = duty
        self.due = clock.monotonic()
        self._pause = 0.0
        self._faults = FaultLog(f"a fault in {duty.name}", _log, clock, traceback=True)

    def step(self, now: float) -> None:
        """Let the duty do what is due; after a fault, not for a while."""
        shortest, longest = _PAUSES
        try:
            self.due = now + max(0.0, self.duty.step(now))
        except Exception as error:  # noqa: BLE001  # no duty may stop the others
            self._pause = min(longest, max(shortest, 2 * self._pause))
            self.due = now + self._pause
            self._faults.failed(error)
        else:
            self._pause = 0.0
            self._faults.passed()


class Monitor:
    """The main loop of a monitor process."""

    def __init__(
        self,
        link: Link,
        duties: Sequence[Duty],
        *,
        observed: Observed,
        inbox: SignalInbox,
        log: Log,
        clock: Clock,
        beat: float,  # seconds between two signs of life to the master
        # Is called with each message about a run; it must return soon. None if nobody wants to
        # know.
        on_run: Callable[[Mapping[str, Any]], object] | None = None,
    ) -> None:
        self._link = link
        link.expects = TO_MONITOR
        link.data_limit = LONGEST_PIECE
        self._on_run = on_run
        self._faults = FaultLog("a fault about a run", _log, clock, traceback=True)
        self._duties = [_Watched(duty, clock) for duty in duties]
        self._observed = observed
        self._inbox = inbox
        self._log = log
        self._clock = clock
        self._beat = beat
        self._next_beat = clock.monotonic()
        self.is_over = False

    def run(self) -> int:
        """Work until the master says that it is enough, or has died; return the exit status."""
        while True:
            timeout = self.tick()
            if self.is_over:
                break
            # Signals only end the sleep: the master's orders come over the link, because a terminal
            # or systemd can send a signal to all processes of psched, and the monitor must still
            # see what the workers do at last.
            self._inbox.wait(timeout, [self._link])
        for each in self._duties:
            with suppress(Exception):
                each.duty.close()
        return 0

    def tick(self) -> float:
        """Obey the master, and do what is due; return seconds until the next tick."""
        self._receive()
        for each in self._duties:
            now = self._clock.monotonic()
            if now >= each.due and not self.is_over:
                each.step(now)
        now = self._clock.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + self._beat
            self._link.send({"beat": True})
        wakes = min([self._next_beat, *(each.due for each in self._duties)])
        return max(0.0, wakes - now)

    def _receive(self) -> None:
        self._link.flush()
        for message in self._link.receive():
            if "totals" in message:
                self._observed.note(message)
            if not {"ping", "lost_pings"}.isdisjoint(message):
                self._pass_on(message)
            if "reopen" in message:
                self._log.reopen()
            if "stop" in message:
                self.is_over = True
        if self._link.closed:
            self.is_over = True

    def _pass_on(self, message: Mapping[str, Any]) -> None:
        if self._on_run is None:
            return
        try:
            self._on_run(message)
        except Exception as error:  # noqa: BLE001  # it must not stop the duties
            self._faults.failed(error)
        else:
            self._faults.passed()

"""A worker process as its master sees it.

::

    fork ─▶ starting ── "ready" ─▶ admitted ── drain, shut_down ─▶ draining ── exit ─▶ reaped
               │ not ready in time    │ silent, invalid message        │ too slow
               └──────────────────────┴──▶ ABRT, then KILL ◀───────────┘ (KILL only)
"""

import logging
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from typing_extensions import override

from psched.master.generation_spec import DRAINED, GenerationSpec, WorkerIdentity
from psched.master.messages import FROM_WORKER
from psched.process.child import Child
from psched.process.kill_ladder import KillLadder
from psched.process.link import Link
from psched.process.spawner import Spawner

_log = logging.getLogger("psched.master")

CLEAN_UP_LIMIT = 20.0
"""Seconds for which a shutdown waits until the leases of dead workers are released."""

_ABORT_GRACE = 2.0
"""Seconds between ABRT, which makes a silent worker log its stack, and KILL."""

_KILL_INTERVAL = 1.0
"""Seconds between two KILLs."""


class WorkerChild(Child):
    """The master's record of a worker or a cleaner.

    Any code may read the attributes, but only the methods write them. Each method is named after an
    event in the worker's life, or after an order to the worker.

    Args:
        pid: the worker's pid.
        link: the master's end of the link.
        now: seconds of the monotonic clock.
        identity: the worker's number, generation and resources.
        spec: the parameters of the worker's generation.
        spawner: sends signals to the worker.

    Attributes:
        draining: the worker has been told to claim nothing more and to exit.
        recovering: nonces of dead workers whose leases this worker has been told to release.
        tasks: how many tasks the worker runs.
        store_fault: why the worker's store does not answer; None: the store answers.
        report: the worker's last answer to a request for a report; empty: there was none.
        reported: when that answer arrived, in seconds of the monotonic clock; 0: never.
        killed_at: when a draining worker with a time limit is killed if it has not exited, in
            seconds of the monotonic clock.
        aborted: the worker is being killed, because it was silent, was not ready in time, or has
            sent an invalid message.
    """

    def __init__(
        self,
        pid: int,
        link: Link,
        now: float,
        *,
        identity: WorkerIdentity,
        spec: GenerationSpec,
        spawner: Spawner,
    ) -> None:
        super().__init__(pid, link, now)
        link.expects = FROM_WORKER
        self.identity = identity
        self.spec = spec
        self.draining = False
        self.recovering: list[str] = []
        self.tasks = 0
        self.store_fault: str | None = None
        self.report: Mapping[str, Any] = {}
        self.reported = 0.0
        self.killed_at = now
        self.aborted = False
        self._spawner = spawner

    @override
    def send(self, number: signal.Signals) -> None:
        if self.exit is None:
            self._spawner.send(self.pid, number)

    def tell(self, **message: object) -> None:
        """Send the worker a message."""
        self.link.send(message)

    # --- its start -------------------------------------------------------------------

    def became_ready(self) -> None:
        """Note that the worker has loaded its handlers, and waits for `admit` or `refuse`."""
        self.ready = True

    def admit(self) -> None:
        """Let the worker begin to claim."""
        self.tell(go=True)

    def refuse(self) -> None:
        """Tell the worker to exit before it claims anything."""
        self.draining = True
        self.tell(go=False)

    def belongs_to(self, spec: GenerationSpec) -> None:
        """Replace the generation's parameters by those that follow from this worker's report."""
        self.spec = spec

    # --- what it says ----------------------------------------------------------------

    def heard_from(self, message: Mapping[str, Any], now: float) -> None:
        """Note that the worker is alive, and note what it reports about itself.

        Args:
            message: the worker's message.
            now: seconds of the monotonic clock.
        """
        self.heard = now
        if "tasks" in message:
            self.tasks, self.store_fault = message["tasks"], message["away"]
        if "report" in message:
            self.report, self.reported = message["report"], now

    # --- what dead workers held ------------------------------------------------------

    def recover(self, nonces: Sequence[str]) -> None:
        """Tell the worker to release the leases of the dead workers with these nonces."""
        self.tell(recover=nonces)
        self.recovering += nonces

    def recovered(self, nonces: Collection[str]) -> set[str]:
        """Note the worker's report that leases of dead workers are released.

        Returns:
            The reported nonces, without any that the worker had not been told to recover.
        """
        done = {*nonces}.intersection(self.recovering)
        self.recovering = [nonce for nonce in self.recovering if nonce not in done]
        return done

    def has_only_to_clean_up(self, nonces: Sequence[str]) -> None:
        """Mark this process as a cleaner, which is killed if it takes too long.

        Args:
            nonces: the dead workers whose leases the cleaner releases.
        """
        self.draining, self.recovering = True, [*nonces]
        self._kill_at(self.started, self.started + CLEAN_UP_LIMIT)

    # --- its end ---------------------------------------------------------------------

    def drain(self, timeout: float | None, now: float, *, hurry: bool = False) -> None:
        """Tell the worker to claim nothing more, and to exit when its tasks are done.

        Args:
            timeout: seconds until the worker stops its tasks; None: it waits until they are done.
            now: seconds of the monotonic clock.
            hurry: the worker's tasks get no time to clean up when they are stopped.
        """
        self.draining = True
        if timeout is not None:
            # The worker enforces these limits itself. The master enforces a later one, in case the
            # worker fails to.
            self._kill_at(now, now + timeout + self.spec.kill_limit + CLEAN_UP_LIMIT)
        self.tell(stop=timeout, hurry=hurry)

    def shut_down(self, timeout: float, now: float, *, hurry: bool = False) -> None:
        """End the worker because the master stops: `drain` it, or kill it if it is not ready.

        Args:
            timeout: see `drain`.
            now: see `drain`.
            hurry: see `drain`.
        """
        if self.ready:
            self.drain(timeout, now, hurry=hurry)
        else:
            # Kill a worker that is not ready: it holds no lease, and an import may keep it from
            # exiting for a long time.
            self.draining = True
            self.send(signal.SIGKILL)

    def stood_still(self, seconds: float, now: float) -> None:
        """Extend the worker's time limits by a time in which the master could not listen.

        Args:
            seconds: that time, plus the time that the worker may need for its next message.
            now: seconds of the monotonic clock.
        """
        self.started = min(now, self.started + seconds)
        self.heard = min(now, self.heard + seconds)

    def watch(self, now: float) -> None:
        """Send the worker the signal that is due, if it hangs, is invalid or drains too slowly.

        A worker is invalid once it has sent an invalid message.

        Args:
            now: seconds of the monotonic clock.
        """
        if self.link.fault is not None and not self.cut_off:
            self.cut_off = self.aborted = True
            _log.error("%s, pid %d, has sent %s: killed", self.identity, self.pid, self.link.fault)
            self.send(signal.SIGKILL)
        if not self.aborted and now > self.expected:
            self.aborted = True
            what = "silent" if self.ready else "not ready"
            text = "%s, pid %d, %s for %.0f s: killed"
            _log.error(text, self.identity, self.pid, what, self.limit)
            # On ABRT, Python's faulthandler logs the worker's stack, which shows where it hangs.
            self.send(signal.SIGABRT)
            self.ladder = KillLadder(now + _ABORT_GRACE, _KILL_INTERVAL, 0)
        if self.ladder is not None and (number := self.ladder.due(now)) is not None:
            self.send(number)

    @property
    def wakes(self) -> float:
        """When `watch` is to be called again, seconds of the monotonic clock."""
        silent = float("inf") if self.aborted else self.expected
        return silent if self.ladder is None else min(silent, self.ladder.wakes)

    @property
    def limit(self) -> float:
        """The most seconds between two messages of a ready worker, or until a worker is ready."""
        return self.spec.heartbeat_limit if self.ready else self.spec.start_timeout

    @property
    def expected(self) -> float:
        """When the worker must have sent its next message, or must be ready, at the latest.

        In seconds of the monotonic clock.
        """
        return (self.heard if self.ready else self.started) + self.limit

    # --- after its exit ---------------------------------------------------------------

    @property
    def failed(self) -> bool:
        """Whether the worker has exited with an error, or before it was ready or told to exit."""
        if self.exit is None:
            return False
        return self.exit.status != DRAINED or not (self.ready or self.draining)

    @property
    def may_hold_leases(self) -> bool:
        """Whether the worker has exited and possibly still holds leases."""
        return self.ready and self.exit is not None and self.exit.status != DRAINED

    def describe_exit(self, now: float) -> str:
        """How the worker ended, for a log line.

        Args:
            now: the time right after the worker's end, in seconds of the boot-time clock.
        """
        killed = self.exit is not None and self.exit.signal == signal.SIGKILL
        deadline = self.identity.deadline
        # Do not blame the lease timer if the worker is on the kill ladder, because the master may
        # have sent the KILL.
        if killed and self.ladder is None and deadline is not None and deadline.has_passed(now):
            return "was killed by its lease timer: it could not extend a lease in time"
        return str(self.exit)

    def _kill_at(self, now: float, at: float) -> None:
        self.killed_at = at
        if self.ladder is None:
            self.ladder = KillLadder(at, _KILL_INTERVAL, 0)
        else:
            self.ladder.hasten(now, at - now)

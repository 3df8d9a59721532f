"""The master's record of one worker process, and the states of a worker.

The states are::

    fork ─▶ starting ── "ready" ─▶ admitted ── drain, shut_down ─▶ draining ── exit ─▶ reaped
               │ not ready in time    │ silent, invalid message        │ too slow
               └──────────────────────┴──▶ ABRT, then KILL ◀───────────┘ (KILL only)
"""

import logging
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from typing_extensions import override

from psched.master.generation_spec import DRAINED, FATAL, GenerationSpec, WorkerIdentity
from psched.master.messages import FROM_WORKER, LONGEST_PIECE
from psched.master.reports.health import Load, WorkerFacts
from psched.process.child import Child, KillLadder, Spawner
from psched.process.link import Link

_log = logging.getLogger("psched.master")

CLEAN_UP_LIMIT = 20.0
"""Seconds. A shutdown waits at most this long for the processes that a dead worker has left, and
then at most this long for the process that releases the leases of dead workers."""

_ABORT_GRACE = 2.0
"""Seconds between two signals to a silent worker: ABRT, on which it logs its stack, and KILL."""

_KILL_INTERVAL = 1.0  # seconds between two KILLs to a worker that is still alive


class WorkerChild(Child):
    """The master's record of a worker or a cleaner.

    Other classes read the attributes, but only the methods write them. A method either records an
    event, for example `became_ready`, or sends the worker an order, for example `drain`.
    """

    def __init__(
        self,
        pid: int,
        link: Link,
        now: float,  # seconds of the monotonic clock
        *,
        identity: WorkerIdentity,
        spec: GenerationSpec,
        spawner: Spawner,
    ) -> None:
        super().__init__(pid, link, now)
        link.expects = FROM_WORKER
        link.data_limit = LONGEST_PIECE
        self.identity = identity
        self.spec = spec
        self.draining = False  # the worker has been told to claim no more tasks and to exit
        # Nonces of dead workers. This worker has been told to release their leases, and has not yet
        # reported that it has done so.
        self.recovering: list[str] = []
        self.tasks = 0  # how many tasks the worker runs, according to its last message
        # Why the worker's store does not answer. None if the store answers.
        self.store_fault: str | None = None
        # Why the worker could not start, according to its last message or a time limit. None if
        # that is not known.
        self.failure: str | None = None
        # How busy the worker is, according to its last message. Without slots if it has sent none.
        self.load = Load()
        # When the store has last answered a claim of the worker, in seconds of the monotonic clock;
        # -inf if it has answered none. None if the worker has not told that: it has sent no message
        # yet, or it is of an older version.
        self.claimed: float | None = None
        # The seconds for which the oldest due row has waited for a slot of the worker; None if the
        # worker has not told that.
        self.waited: float | None = None
        # Why the worker can fork no process for a task. None if it can, or does not know.
        self.no_fork: str | None = None
        # The last report that the worker has sent. Empty if it has sent no report.
        self.report: Mapping[str, Any] = {}
        # When ``report`` arrived, in seconds of the monotonic clock. 0 if none has arrived.
        self.reported = 0.0
        # The time at which the master kills the draining worker if it has not exited, in seconds of
        # the monotonic clock. As long as no such time is set, the time of the fork.
        self.killed_at = now
        # The worker is being killed, because it was silent, was not ready in time, or has sent an
        # invalid message.
        self.aborted = False
        self._spawner = spawner

    @override
    def send(self, number: signal.Signals) -> None:
        if self.exit is None:
            self._spawner.send(self.pid, number)

    def tell(self, **message: object) -> None:
        """Send the worker a message that consists of these fields."""
        self.link.send(message)

    # --- the start of the worker -----------------------------------------------------

    def became_ready(self) -> None:
        """Note that the worker has loaded its handlers and waits for `admit` or `refuse`."""
        self.ready = True

    def admit(self) -> None:
        """Tell the worker that it is allowed to claim tasks from now on."""
        self.tell(go=True)

    def refuse(self) -> None:
        """Tell the worker to exit without having claimed a task."""
        self.draining = True
        self.tell(go=False)

    def belongs_to(self, spec: GenerationSpec) -> None:
        """Replace ``self.spec``, because the worker has reported the settings of its generation."""
        self.spec = spec

    # --- messages of the worker ------------------------------------------------------

    def heard_from(self, message: Mapping[str, Any], now: float) -> None:
        """Note that the worker is alive, and what its message says of its tasks and store."""
        self.heard = now
        if "tasks" in message:
            self.tasks, self.store_fault = message["tasks"], message["away"]
            self.load = Load(*(message[name] for name in Load._fields))
            self.waited, self.no_fork = message.get("waited"), message.get("no_fork")
        if "claim_age" in message:
            age = message["claim_age"]
            self.claimed = float("-inf") if age is None else now - age
        if "failed" in message:
            self.failure = message["failed"]
        if "report" in message:
            self.report, self.reported = message["report"], now

    def facts(self, now: float) -> WorkerFacts:
        """What is known about whether the worker could claim rows lately."""
        return WorkerFacts(
            claims=self.ready and not self.draining,
            silent_for=now - self.heard,
            store_away=self.store_fault,
            is_full=self.load.is_full,
            waited=self.waited or 0.0,
            no_fork=self.no_fork,
            claim_age=self.claim_age(now),
        )

    def claim_age(self, now: float) -> float | None:
        """Seconds since the store has last answered a claim of the worker; None if it has not."""
        if self.claimed is None or self.claimed == float("-inf"):
            return None
        return now - self.claimed

    # --- leases of dead workers ------------------------------------------------------

    def recover(self, nonces: Sequence[str]) -> None:
        """Tell the worker to release the leases of the dead workers with these nonces."""
        self.tell(recover=nonces)
        self.recovering += nonces

    def recovered(self, nonces: Collection[str]) -> set[str]:
        """Note which leases of dead workers it has released; return those that it was told to."""
        done = {*nonces}.intersection(self.recovering)
        self.recovering = [nonce for nonce in self.recovering if nonce not in done]
        return done

    def has_only_to_clean_up(self, nonces: Sequence[str]) -> None:
        """Mark this process as a cleaner, which is killed `CLEAN_UP_LIMIT` s after its fork."""
        self.draining, self.recovering = True, [*nonces]
        self._kill_at(self.started, self.started + CLEAN_UP_LIMIT)

    # --- the end of the worker -------------------------------------------------------

    def drain(self, timeout: float | None, now: float, *, hurry: bool = False) -> None:
        """Tell the worker to claim no more tasks, and to exit when its tasks have ended.

        They are stopped after ``timeout`` seconds, None: never; in a hurry, they are killed soon.
        """
        self.draining = True
        if timeout is not None:
            # The worker itself stops its tasks in time. In case that fails, the master kills the
            # worker at a later time.
            self._kill_at(now, now + timeout + self.spec.kill_limit + CLEAN_UP_LIMIT)
        self.tell(stop=timeout, hurry=hurry)

    def shut_down(self, timeout: float, now: float, *, hurry: bool = False) -> None:
        """End the worker because the master stops: `drain` a ready one, kill any other."""
        if self.ready:
            self.drain(timeout, now, hurry=hurry)
        else:
            # A worker that is not ready holds no lease. Kill it, because an import could keep it
            # from exiting for a long time.
            self.draining = True
            self.send(signal.SIGKILL)

    def stood_still(self, seconds: float, now: float) -> None:
        """Extend the worker's time limits by a time in which the master could not read messages."""
        self.started = min(now, self.started + seconds)
        self.heard = min(now, self.heard + seconds)

    def watch(self, now: float) -> None:
        """Kill the worker if it hangs, has sent an invalid message or has passed a time limit.

        This takes several calls: a worker that hangs receives ABRT before KILL, and KILL is sent
        repeatedly until the worker has exited.
        """
        if self.link.fault is not None and not self.cut_off:
            self.cut_off = self.aborted = True
            _log.error("%s, pid %d, has sent %s: killed", self.identity, self.pid, self.link.fault)
            self.send(signal.SIGKILL)
        if not self.aborted and now > self.expected:
            self.aborted = True
            what = "silent" if self.ready else "not ready"
            if not self.ready:
                self.failure = (
                    f"it was not ready within {self.limit:.0f} s (start_timeout); the log shows"
                    " what it was doing"
                )
            text = "%s, pid %d, %s for %.0f s: killed"
            _log.error(text, self.identity, self.pid, what, self.limit)
            # On ABRT, Python's faulthandler logs the worker's stack, which shows where it hangs.
            self.send(signal.SIGABRT)
            self.ladder = KillLadder(now + _ABORT_GRACE, _KILL_INTERVAL, 0)
        if self.ready and not self.aborted and self.is_stopped(now, self.limit, self._spawner):
            self.aborted = True
            _log.error("%s, pid %d, is stopped by a signal: killed", self.identity, self.pid)
            self.ladder = KillLadder(now, _KILL_INTERVAL, 0)
        if self.ladder is not None and (number := self.ladder.due(now)) is not None:
            self.send(number)

    @property
    def wakes(self) -> float:
        """When `watch` must be called again, in seconds of the monotonic clock."""
        silent = float("inf") if self.aborted else self.expected
        if self.ready and not self.aborted:
            silent = min(silent, self.next_look(self.limit))
        return silent if self.ladder is None else min(silent, self.ladder.wakes)

    @property
    def limit(self) -> float:
        """The most seconds between two messages of a ready worker, or until it must be ready."""
        return self.spec.heartbeat_limit if self.ready else self.spec.start_timeout

    @property
    def expected(self) -> float:
        """When, by the monotonic clock, its next message must be here, or it must be ready."""
        return (self.heard if self.ready else self.started) + self.limit

    # --- after the exit of the worker -------------------------------------------------

    @property
    def failed(self) -> bool:
        """Whether it has exited with another status than `DRAINED`, or untold while it started."""
        if self.exit is None:
            return False
        return self.exit.status != DRAINED or not (self.ready or self.draining)

    @property
    def may_hold_leases(self) -> bool:
        """Whether the worker has exited and might still hold leases, which must be released."""
        return self.ready and self.exit is not None and self.exit.status != DRAINED

    @property
    def why_not_started(self) -> tuple[str, int | None]:
        """Why its generation has not started, and the exit status; None if a try can succeed."""
        status = None if self.exit is None else self.exit.status
        meaning = None if status is None else FATAL.get(status)
        why = f"its first worker {self.exit}" + (f": {meaning}" if meaning else "")
        why += f": {self.failure}" if self.failure else ""
        return why, status if meaning else None

    def describe_exit(self, now: float) -> str:
        """How the worker ended, for a log line; ``now`` is of the boot-time clock."""
        killed = self.exit is not None and self.exit.signal == signal.SIGKILL
        deadline = self.identity.deadline
        # If the master was stopping the worker (it has a ladder), do not blame the lease timer,
        # because the master might have sent the KILL.
        if killed and self.ladder is None and deadline is not None and deadline.has_passed(now):
            return "was killed by its lease timer: it could not extend a lease in time"
        return str(self.exit)

    def _kill_at(self, now: float, at: float) -> None:
        self.killed_at = at
        if self.ladder is None:
            self.ladder = KillLadder(at, _KILL_INTERVAL, 0)
        else:
            self.ladder.hasten(now, at - now)

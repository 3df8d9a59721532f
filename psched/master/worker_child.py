"""One of the master's children."""

import signal
from collections.abc import Mapping
from typing import Any

from psched.master.generation_spec import DRAINED, GenerationSpec, Place
from psched.master.messages import FROM_WORKER
from psched.process.child import Child
from psched.process.kill_ladder import KillLadder
from psched.process.link import Link

CLEAN_UP_LIMIT = 20.0
"""Seconds that a shutdown spends on the leases of dead workers."""


class WorkerChild(Child):
    """A worker as the master sees it.

    Attributes:
        place: where it stands.
        blueprint: what it was made of.
        leaving: it has been told to go.
        recovering: nonces of dead workers whose leases it is releasing.
        tasks: how many it runs.
        away: why its store does not answer, if that is so.
        report: what it told of itself when it was last asked.
        reported: when that was, seconds of the monotonic clock.
        overdue: when it is killed that has been told to go, seconds of the monotonic clock.
        aborted: it was not ready in time or silent, and is being killed for that.
    """

    def __init__(
        self, pid: int, link: Link, now: float, place: Place, blueprint: GenerationSpec
    ) -> None:
        super().__init__(pid, link, now)
        link.expects = FROM_WORKER
        self.place = place
        self.blueprint = blueprint
        self.leaving = False
        self.recovering: list[str] = []
        self.tasks = 0
        self.away: str | None = None
        self.report: Mapping[str, Any] = {}
        self.reported = 0.0
        self.overdue = now
        self.aborted = False

    def hear(self, message: Mapping[str, Any], now: float) -> None:
        """Take down what it says of itself."""
        self.heard = now
        if "tasks" in message:
            self.tasks, self.away = message["tasks"], message["away"]
        if "report" in message:
            self.report, self.reported = message["report"], now

    @property
    def limit(self) -> float:
        """Seconds that it may be silent, or not ready."""
        return self.blueprint.heartbeat_limit if self.ready else self.blueprint.start_timeout

    @property
    def expected(self) -> float:
        """When it must have been heard, or be ready, at the latest."""
        return (self.heard if self.ready else self.started) + self.limit

    @property
    def failed(self) -> bool:
        """It has ended, and nobody had asked it to."""
        if self.exit is None:
            return False
        return self.exit.status != DRAINED or not (self.ready or self.leaving)

    def ending(self, now: float) -> str:
        """How it has ended, for people.

        Args:
            now: seconds of the boot-time clock, right after its end.
        """
        killed = self.exit is not None and self.exit.signal == signal.SIGKILL
        deadline = self.place.deadline
        # With a ladder it may have been us.
        if killed and self.ladder is None and deadline is not None and deadline.has_passed(now):
            return "was killed by its lease timer: it could not extend a lease in time"
        return str(self.exit)

    def tell(self, **message: object) -> None:
        """Send it a message."""
        self.link.send(message)

    def leave(self, timeout: float | None, now: float, *, hurry: bool = False) -> None:
        """Tell it to claim no more and to exit when its tasks are done.

        Args:
            timeout: seconds until it takes its tasks down; None: it waits for them.
            now: seconds of the monotonic clock.
            hurry: its tasks are not to be given their time to clean up.
        """
        self.leaving = True
        self.tell(stop=timeout, hurry=hurry)
        if timeout is not None:
            # It works down the same limits itself; this is for one that does not.
            limit = timeout + self.blueprint.kill_limit + CLEAN_UP_LIMIT
            self.overdue = now + limit
            if self.ladder is None:
                self.ladder = KillLadder(now + limit, 1.0, 0)
            else:
                self.ladder.hasten(now, limit)

    def dismiss(self, timeout: float, now: float, *, hurry: bool = False) -> None:
        """Have it go, at a shutdown; see `leave`."""
        if self.ready:
            self.leave(timeout, now, hurry=hurry)
        else:
            # It holds nothing yet, and may be deep in an import.
            self.leaving = True
            self.send(signal.SIGKILL)

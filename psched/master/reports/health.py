"""How busy the workers of a master are, and whether it is ready: whether they could claim lately.

A process that exists can still be of no use: its database is away, or it hangs. So the judgement
needs a proof: the store has answered a claim lately. An empty answer is a proof, too; so a master
without due rows is ready, and one all of whose rows are paused by rules.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from math import floor
from typing import Any, NamedTuple, Self

from psched.base.quantities import format_duration

MOST_DUE = 100  # a worker counts at most this many due rows, so that the count is cheap


class Load(NamedTuple):
    """How busy a worker is, or all workers of a master together."""

    slots: int = 0  # the number of tasks that can run at the same time
    # How many more tasks can be started now; 0 if no more tasks are claimed, or if no process can
    # be forked.
    free: int = 0
    # The number of due rows that wait because no slot is free. `MOST_DUE` means this number or
    # more.
    due: int = 0
    late: float = 0.0  # the seconds by which the oldest of these rows is late; 0 if no row waits

    @property
    def is_full(self) -> bool:
        """Whether no task can be started because all slots are busy."""
        return self.slots > 0 and self.free == 0

    @property
    def capacity(self) -> str:
        """The free slots, as text."""
        return f"{self.free} of {self.slots} slots free"

    @property
    def waiting(self) -> str:
        """The due rows that wait, as text; empty if there are none."""
        if not self.due:
            return ""
        more = " or more" if self.due >= MOST_DUE else ""
        return f"{self.due}{more} due, oldest {floor(self.late)} s late"


def load_in(fields: Mapping[str, Any]) -> Load | None:
    """The load among the fields of a message or document; None if an older version has sent it."""
    if not all(name in fields for name in Load._fields):
        return None
    return Load(*(fields[name] for name in Load._fields))


def total(loads: Iterable[Load]) -> Load:
    """The load of several workers: their slots together, but the same rows wait for all."""
    found = [Load(), *loads]
    return Load(
        slots=sum(load.slots for load in found),
        free=sum(load.free for load in found),
        due=max(load.due for load in found),
        late=max(load.late for load in found),
    )


class MasterState(Enum):
    """What a master is doing."""

    STARTING = "starting"
    """No worker has read due rows yet, because handlers are being loaded or the database is
    unavailable."""
    SERVING = "serving"
    RELOADING = "reloading"
    PAUSED = "paused"
    STOPPING = "stopping"


_NOT_CLAIMING: Mapping[str, str] = {
    MasterState.STARTING.value: "the master is starting: no worker has searched for due tasks yet",
    MasterState.PAUSED.value: (
        "the master is paused by the signal WINCH: it starts no task until its next restart"
    ),
    MasterState.STOPPING.value: "the master is stopping",
}
"""The values of `MasterState` in which no rows are claimed."""


class Limits(NamedTuple):
    """What is still ready."""

    # The longest time since the last answered claim, in seconds. It must be longer than the setting
    # ``poll_interval``. If workers are not asked for a report, it must also be longer than the time
    # between two of their heartbeats, which is about ten seconds.
    claims_within: float = 30.0
    # The longest time for which a due row may wait for a free slot, in seconds.
    late_within: float = 300.0

    @classmethod
    def for_polls(cls, poll_interval: float) -> Self:
        """The default limits for a ``poll_interval``, in seconds."""
        return cls(claims_within=max(30.0, 2 * poll_interval))


class WorkerFacts(NamedTuple):
    """What a master knows about one of its workers."""

    claims: bool  # whether the worker may claim rows: it neither starts, nor leaves
    silent_for: float  # seconds since its last message
    store_away: str | None  # why its store does not answer; None if it answers
    is_full: bool  # whether it sends no claims because it has no free slot
    # The seconds for which the oldest due row has waited for a slot of the worker, at its last
    # count; 0 if no row waits, or the worker has a free slot.
    waited: float
    # Seconds since the store has last answered a claim of the worker; None if it has answered none.
    claim_age: float | None
    # Why it can fork no process for a task; None if it can, or does not know.
    no_fork: str | None = None


class Facts(NamedTuple):
    """What a master knows about itself; see `facts_in`."""

    phase: str  # the value of its `MasterState`
    workers: Sequence[WorkerFacts]


def facts_in(status: Mapping[str, Any]) -> Facts:
    """The facts in a master's status document."""
    return Facts(phase=status["phase"], workers=[*map(_worker_facts, status["workers"])])


def _worker_facts(worker: Mapping[str, Any]) -> WorkerFacts:
    load = load_in(worker) or Load()
    # Older versions tell neither how long rows have waited, nor when a claim was answered. But the
    # loop that sends the messages also sends the claims, and reports a store that does not answer.
    return WorkerFacts(
        claims=worker["state"] == "ready",
        silent_for=worker["silent_for"],
        store_away=worker["store_away"],
        is_full=load.is_full,
        waited=worker.get("waited", load.late),
        claim_age=worker.get("claim_age", worker["silent_for"]),
        no_fork=worker.get("no_fork"),
    )


def why_not_ready(facts: Facts, limits: Limits) -> str | None:
    """Why a master is not ready, in one line; None if it is ready.

    It is ready if at least one of its workers could claim lately, and no due row has waited too
    long for a free slot. While all slots are busy, no claims are sent; then it is enough that the
    store answers the other requests of the worker.
    """
    if (reason := _NOT_CLAIMING.get(facts.phase)) is not None:
        starting = facts.phase == MasterState.STARTING.value
        unable = [each.store_away or _without_fork(each) for each in facts.workers if starting]
        return "; ".join([reason, *filter(None, unable)][:2])
    claiming = [worker for worker in facts.workers if worker.claims]
    if not claiming:
        return "no worker is ready to claim tasks"
    judged = [(worker, _why_useless(worker, limits)) for worker in claiming]
    useful = [worker for worker, reason in judged if reason is None]
    if not useful:
        return judged[0][1]
    # No row has waited longer than the worker that has last had a free slot. A worker that hangs
    # does not count: others may have claimed the rows that it has seen.
    waited = min(worker.waited for worker in useful)
    if waited > limits.late_within:
        return f"a due task has waited for a free slot for {format_duration(waited)}"
    return None


def _without_fork(worker: WorkerFacts) -> str | None:
    return None if worker.no_fork is None else f"no process can be forked: {worker.no_fork}"


def _why_useless(worker: WorkerFacts, limits: Limits) -> str | None:
    """Why a worker could not claim lately; None if it could."""
    if worker.store_away is not None:
        return f"the database cannot be used: {worker.store_away}"
    if worker.silent_for > limits.claims_within:
        return f"the workers have been silent for {format_duration(worker.silent_for)}"
    if (reason := _without_fork(worker)) or worker.is_full:
        return reason
    if worker.claim_age is None:
        return "no search for due tasks was answered yet"
    if worker.claim_age > limits.claims_within:
        return f"no search for due tasks was answered for {format_duration(worker.claim_age)}"
    return None

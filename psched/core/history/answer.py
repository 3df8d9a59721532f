"""The answer to the question what became of an occurrence: a code, and a sentence for people."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import replace as changed
from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """What became of an occurrence, or will. Programs can rely on these texts."""

    RAN = "ran"
    RAN_FAILED = "ran_failed"
    """Its attempts have failed, and it is not tried again."""
    RUNNING = "running"
    WILL_RUN = "will_run"
    RETRYING = "retrying"
    GAVE_UP = "gave_up"
    CANCELLED = "cancelled"
    STOPPED = "stopped"
    """Somebody has stopped its run (``psched stop``)."""
    EXPIRED = "expired"
    QUARANTINED = "quarantined"
    SKIPPED_CATCHUP = "skipped_catchup"
    SKIPPED_OVERLAP = "skipped_overlap"
    COALESCED = "coalesced"
    SKIPPED = "skipped"
    """Somebody has left it out (``psched skip``)."""
    SKIPPED_PAUSED = "skipped_paused"
    SKIPPED_CALENDAR = "skipped_calendar"
    SKIPPED_CLOCK_CHANGE = "skipped_clock_change"
    MARKED_FINISHED = "marked_finished"
    """A person or a program has marked it as finished, and its task was stopped or never ran."""
    FINISHED = "finished"
    """It is finished, but no record says when it ran."""
    ENDED = "ended"
    """The schedule had ended before."""
    NO_INSTANT = "no_instant"
    NO_SUCH_LOCAL_TIME = "no_such_local_time"
    BEFORE_CREATION = "before_creation"
    BEFORE_TRIGGER_CHANGE = "before_trigger_change"
    BEFORE_START = "before_start"
    """It is before the next occurrence of the schedule, and later than now."""
    MOVED = "moved"
    """A person or a program has set the schedule's next time to a later one."""
    NO_WORKER = "no_worker"
    ALL_SLOTS_BUSY = "all_slots_busy"
    NO_WORKER_TAKES_TYPE = "no_worker_takes_type"
    NO_HOST = "no_host"
    """Only some hosts may run it, and none of them is alive."""
    EACH_HOST = "each_host"
    """The schedule has ``each_host``: it never runs itself, but each host has a row that does."""
    WAITING = "waiting"
    PAUSED = "paused"
    MIGRATING = "migrating"
    HISTORY_PURGED = "history_purged"
    HISTORY_OFF = "history_off"
    UNKNOWN = "unknown"
    NO_SUCH_SCHEDULE = "no_such_schedule"


class State(StrEnum):
    """The answer in two words."""

    RAN = "ran"
    """It has succeeded, or is running now."""
    WILL_RUN = "will run"
    NO_INSTANT = "no instant"
    """The schedule has no occurrence at this time, so nothing was to run."""
    DID_NOT_RUN = "did not run"
    """It did not succeed, or a worker could have started it more than a minute ago."""
    UNKNOWN = "unknown"


GOOD = frozenset({State.RAN, State.WILL_RUN, State.NO_INSTANT})
"""The states for which the exit status of `psched why` is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of an occurrence, or will.

    Attributes:
        key: the key of the schedule.
        time: the scheduled time of the occurrence in Unix seconds; None if there is none.
        code: what became of it.
        state: whether it ran, in two words.
        sentence: the answer for people, in one sentence.
        details: what the answer is based on; its values are JSON, and its times are Unix seconds.
    """

    key: str
    time: int | None
    code: Code
    state: State
    sentence: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The answer as a JSON object."""
        return {
            "key": self.key,
            "time": self.time,
            "code": self.code.value,
            "state": self.state.value,
            "sentence": self.sentence,
            "details": dict(self.details),
        }

    def saying(self, sentence: str, **details: object) -> "Answer":
        """The same answer with another sentence, and with further details."""
        return changed(self, sentence=sentence, details={**self.details, **details})

    def adding(self, clause: str, **details: object) -> "Answer":
        """This answer with one more clause in its sentence, and with more details."""
        return self.saying(f"{self.sentence.rstrip('.')}; {clause}.", **details)

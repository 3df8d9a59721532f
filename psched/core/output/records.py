"""The output of attempts, as a store keeps it."""

from dataclasses import dataclass

KEPT = frozenset({"both", "history"})
"""The values of the setting ``output`` with which the store keeps what tasks print."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAttempt:
    """An attempt that runs, whose output somebody may ask for.

    Attributes:
        key: the key of the schedule.
        scheduled_time: the scheduled time of the occurrence, in Unix seconds.
        owner: the owner of the lease, see `psched.core.model.Token`.
        attempt: the number of the attempt, from 1.
    """

    key: str
    scheduled_time: int
    owner: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRecord:
    """What one attempt has printed; its fields are the columns of ``<table>_output``.

    Key, ``scheduled_time`` and ``owner`` identify the attempt, as in the run history.

    Attributes:
        key: the key of the schedule.
        scheduled_time: the scheduled time of the occurrence, in Unix seconds.
        owner: the owner of the lease, see `psched.core.model.Token`.
        attempt: the number of the attempt, from 1.
        ended: when the attempt ended, in milliseconds of the store's clock. For the output so far
            of a running attempt: when it was written.
        output: the last bytes of standard output and standard error, in their order.
        dropped: the number of bytes before these; None if output was lost.
        is_live: whether the attempt was running when this was written.
        id: the number that the store gave the record; later records have larger numbers. None
            before it is stored.
    """

    key: str
    scheduled_time: int
    owner: str
    attempt: int
    ended: int
    output: bytes
    dropped: int | None = 0
    is_live: bool = False
    id: int | None = None

"""Attempts: how long to wait before one, and when to give up.

An attempt that fails is repeated after ``retry_wait``. With ``retry_backoff: exponential`` the wait
doubles with each attempt. A jitter shortens each of these waits, so that tasks that failed together
are not retried together. After ``max_attempts`` attempts the occurrence is given up. A one-shot
that has not succeeded expires ``expire`` seconds after the time at which it was first due.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any

from psched.base.stable_hash import stable_hash
from psched.base.texts import counted
from psched.core.definition import Definition
from psched.core.model import EXPIRED, FAILED, PAUSED, ReasonCode, Row
from psched.triggers.trigger import Trigger, first

WORKER_DIED = "its worker died"
"""The reason of a row whose lease was released because its worker has died."""

_MOST_WAITS = 12
"""The longest wait after the death of a worker, as a multiple of ``retry_wait``. The script
``recover.lua`` of the Redis store repeats it."""

_MOST_DOUBLINGS = 32
"""The largest number of doublings. After so many doublings, a wait of a second is longer than every
possible ``retry_wait_limit``."""


def first_time(row: Row, trigger: Trigger | None, now: float) -> int | None:
    """The first occurrence of a row without a ``next_time``; None if there is none.

    If its last occurrence was decided on a host that could not load its trigger, the row says until
    when its occurrences are decided. So none of those that follow is left out.
    """
    now = ceil(now)
    if trigger is None:
        return now
    return first(trigger, now if row.decided_until is None else row.decided_until + 1)


def before_claim(row: Row) -> int:
    """The ``attempt`` of a row before it was claimed, if the claim does not count as an attempt."""
    return max(row.attempt - 1, 0)


def retry_delay(row: Row, definition: Definition) -> float:
    """Seconds from the failure of an attempt to the next attempt."""
    settings = definition.settings
    if settings.retry_backoff == "fixed":
        return settings.retry_wait
    doubled = settings.retry_wait * 2.0 ** min(max(row.attempt - 1, 0), _MOST_DOUBLINGS)
    # The jitter is computed from the occurrence and the attempt, so that this function needs no
    # source of randomness.
    jitter = stable_hash(f"{row.key}.{row.next_time}.{row.attempt}", 2**32) / 2**32
    return min(doubled, max(settings.retry_wait_limit, settings.retry_wait)) * (1 - jitter / 2)


def wait_after_death(attempt: int, retry_wait: float) -> float:
    """Seconds from the death of an attempt's worker or fork server to the next attempt.

    If the first attempt died, there is no wait, because the death can have any cause. Otherwise the
    occurrence itself might kill the worker or fork server, and with it the tasks of others. So the
    wait is ``retry_wait`` longer with each attempt, up to `_MOST_WAITS` times: the earlier attempts
    can have failed for another reason.
    """
    return retry_wait * min(max(attempt - 1, 0), _MOST_WAITS)


def told_of_death(row: Row) -> Mapping[str, Any]:
    """The reason of a row whose worker has died; what a client has written meanwhile remains."""
    if row.next_time is None or not row.is_tried or row.status == PAUSED:
        return {"reason": row.reason, "reason_code": row.reason_code}
    return {"reason": WORKER_DIED, "reason_code": ReasonCode.WORKER_DIED}


def is_exhausted(row: Row, definition: Definition) -> bool:
    """Whether the current attempt is the last one."""
    return 0 < definition.settings.max_attempts <= row.attempt


def _was_settled(row: Row) -> bool:
    """Whether the last lease of a claimed row was settled by its own worker."""
    settled = (row.settled_by or "").rpartition("#")[2]
    return settled == str(row.fence - 1) and row.reason_code != ReasonCode.WORKER_DIED


def give_up_reason(row: Row, definition: Definition, now: float) -> tuple[str, str] | None:
    """Whether to give up the occurrence of a row that has just been claimed; None: it is tried.

    Otherwise the new status, if the row is a one-shot, and the reason.
    """
    if row.next_time is None or row.moved_at is not None:
        return None  # the number is not that of this occurrence
    most, expire = definition.settings.max_attempts, definition.settings.expire
    if 0 < most < row.attempt:
        # The last allowed attempt was made already. At its end the occurrence would have been given
        # up, so its worker has died, or more attempts were allowed then, or on that host.
        if not _was_settled(row):
            return FAILED, f"gave up: its worker died in the last of {most} attempts"
        why = f": {row.reason}" if row.reason else ""
        made = counted(row.attempt - 1, "attempt")
        return FAILED, f"gave up after {made}, because max_attempts is {most}{why}"
    if definition.trigger is not None or not expire:
        return None
    created = row.created_at or 0
    # A row that was inserted by plain SQL has no created_at before the end of its first lease. It
    # does not expire until then.
    if created > 0 and now >= max(created, row.next_time + definition.delay) + expire:
        return EXPIRED, f"expired: it has not succeeded within {expire} s"
    return None

"""How often an occurrence is tried, after which waits, and when it is given up.

An attempt that fails is repeated after ``retry_wait``; with ``retry_backoff: exponential`` after
twice as long each time, less a jitter, so that what failed together is not tried together again.
After ``max_attempts`` it is given up. What runs only once and has not succeeded ``expire``
seconds after it was to run first has expired.
"""

from psched.base.stable_hash import stable_hash
from psched.core.definition import Definition
from psched.core.model import EXPIRED, FAILED, Row

_MOST_DOUBLINGS = 32
"""Of a wait; more seconds than any."""


def retry_delay(row: Row, definition: Definition) -> float:
    """Seconds from the failure of an attempt to the next one."""
    settings = definition.settings
    if settings.retry_backoff == "fixed":
        return settings.retry_wait
    doubled = settings.retry_wait * 2.0 ** min(max(row.attempt - 1, 0), _MOST_DOUBLINGS)
    # Of the occurrence and the attempt, so that nobody has to draw it.
    drawn = stable_hash(f"{row.key}.{row.next_time}.{row.attempt}", 2**32) / 2**32
    return min(doubled, max(settings.retry_wait_limit, settings.retry_wait)) * (1 - drawn / 2)


def wait_after_death(attempt: int, retry_wait: float) -> float:
    """Seconds from the death of the worker or fork server of an attempt to the next attempt.

    The first death may be anybody's fault. At the second one the occurrence itself may be what
    kills them.
    """
    return retry_wait if attempt > 1 else 0


def is_exhausted(row: Row, definition: Definition) -> bool:
    """Whether the attempt that the row counts was the last one."""
    return 0 < definition.settings.max_attempts <= row.attempt


def give_up_reason(row: Row, definition: Definition, now: float) -> tuple[str, str] | None:
    """Why a row that has just been claimed is not to be tried any more.

    Returns:
        The status of a task that runs only once, and the reason; None: it is to be tried.
    """
    most, expire = definition.settings.max_attempts, definition.settings.expire
    if 0 < most < row.attempt:
        # It did not come to its end, or this would have been seen there.
        return FAILED, f"gave up: its worker died in the last of {most} attempts"
    if definition.trigger is not None or not expire or row.next_time is None:
        return None
    created = row.created_at or 0
    # Inserted by plain SQL, it is as old as its first lease's end.
    if created > 0 and now >= max(created, row.next_time + definition.delay) + expire:
        return EXPIRED, f"expired: it has not succeeded within {expire} s"
    return None

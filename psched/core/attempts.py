"""Retries: how long to wait before an attempt, and when to give up.

An attempt that fails is repeated after ``retry_wait``. With ``retry_backoff: exponential`` the wait
doubles with each attempt. A jitter shortens each of these waits, so that tasks that failed together
are not retried together. After ``max_attempts`` attempts the occurrence is given up. A one-shot
that has not succeeded expires ``expire`` seconds after the time at which it was first due.
"""

from psched.base.stable_hash import stable_hash
from psched.core.definition import Definition
from psched.core.model import EXPIRED, FAILED, Row

_MOST_DOUBLINGS = 32
"""The largest number of doublings. After so many doublings, a wait of a second is longer than every
possible ``retry_wait_limit``."""


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
    wait is ``retry_wait``, because the occurrence itself might kill the worker or fork server.
    """
    return retry_wait if attempt > 1 else 0


def is_exhausted(row: Row, definition: Definition) -> bool:
    """Whether the current attempt is the last one."""
    return 0 < definition.settings.max_attempts <= row.attempt


def give_up_reason(row: Row, definition: Definition, now: float) -> tuple[str, str] | None:
    """Decide whether to give up the occurrence of a row that has just been claimed.

    Returns:
        The new status if the row is a one-shot, and the reason. None means that the occurrence is
        not given up, but tried.
    """
    most, expire = definition.settings.max_attempts, definition.settings.expire
    if 0 < most < row.attempt:
        # The last allowed attempt was made already. Its worker must have died, because otherwise
        # the occurrence would have been given up at the end of that attempt.
        return FAILED, f"gave up: its worker died in the last of {most} attempts"
    if definition.trigger is not None or not expire or row.next_time is None:
        return None
    created = row.created_at or 0
    # A row that was inserted by plain SQL has no created_at before the end of its first lease. It
    # does not expire until then.
    if created > 0 and now >= max(created, row.next_time + definition.delay) + expire:
        return EXPIRED, f"expired: it has not succeeded within {expire} s"
    return None

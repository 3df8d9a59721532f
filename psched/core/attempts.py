"""Attempts: how long to wait before one, when to give up, and what a negative number of them means.

An attempt that fails is repeated after ``retry_wait``. With ``retry_backoff: exponential`` the wait
doubles with each attempt. A jitter shortens each of these waits, so that tasks that failed together
are not retried together. After ``max_attempts`` attempts the occurrence is given up. A one-shot
that has not succeeded expires ``expire`` seconds after the time at which it was first due.

**Negative numbers.** A row whose next time is not known has had no attempt at it. If its last
occurrence was decided on a host that could not load its trigger, ``next_time`` is NULL, and
``attempt`` contains until when its occurrences are decided (`after`). So the host that computes the
next time leaves out no occurrence. A client that sets ``next_time`` during a lease writes -1, see
`psched.core.declare`. While the worker of an extra run holds the lease of a row that is not due,
``attempt`` contains the time and the number to which the row returns (`borrowed`).
"""

from dataclasses import replace as changed
from math import ceil

from psched.base.stable_hash import stable_hash
from psched.base.texts import counted
from psched.core.columns import LATEST_TIME
from psched.core.definition import Definition
from psched.core.model import EXPIRED, FAILED, Row
from psched.triggers.trigger import Trigger, first

WORKER_DIED = "its worker died"
"""The reason of a row whose lease was released because its worker has died."""

_MOST_WAITS = 12
"""The longest wait after the death of a worker, as a multiple of ``retry_wait``. The script
``recover.lua`` of the Redis store repeats it."""

_MOST_DOUBLINGS = 32
"""The largest number of doublings. After so many doublings, a wait of a second is longer than every
possible ``retry_wait_limit``."""

_CLAIMS = 1000
"""How many claims without a settlement a number of `after` survives: each of them adds 1 to it."""


def after(instant: int) -> int:
    """The ``attempt`` of a row without a ``next_time`` that continues after an instant."""
    return -(instant * _CLAIMS + _CLAIMS - 1)


def decided_until(row: Row) -> int | None:
    """The instant until which the occurrences of a row without a ``next_time`` are decided.

    Returns:
        The instant; None if the row has a ``next_time``, or if the instant is not known.
    """
    if row.next_time is not None:
        return None
    return -row.attempt // _CLAIMS or None if row.attempt < 0 else None


def borrowed(next_run_time: int | None, attempt: int) -> int:
    """The ``attempt`` of a row that an extra run's worker has leased, whether it was due or not.

    If the worker dies, the number tells the next worker that claims the row what to restore. A
    worker of an older version computes the time of the next run anew, because the number is
    negative.
    """
    # 0 stands for None, so a time before 1 becomes 1; such a row stays due. A later time than
    # LATEST_TIME becomes LATEST_TIME, because the product must fit into eight bytes. 1 is added to
    # the number of attempts, so that `returned` can tell each note from -1, which
    # `psched.core.declare` writes.
    time = 0 if next_run_time is None else min(max(next_run_time, 1), LATEST_TIME)
    return after(time * _CLAIMS + min(max(attempt, 0), _CLAIMS - 2) + 1)


def returned(row: Row) -> tuple[int | None, int] | None:
    """What to restore in a row that an extra run's worker had leased, see `borrowed`.

    Returns:
        ``next_run_time`` and ``attempt``; None if the row's ``attempt`` does not contain them.
    """
    if row.next_time is None or row.attempt > -_CLAIMS:
        return None
    next_run_time, attempt = divmod(-row.attempt // _CLAIMS, _CLAIMS)
    if next_run_time > LATEST_TIME or attempt < 1:
        return None  # another client has written the number
    return next_run_time or None, attempt - 1


def given_back(row: Row, owner: str | None = None) -> Row:
    """A row as it is when the worker of an extra run has given its lease back."""
    restored = returned(row)
    if restored is None:
        return row
    next_run_time, attempt = restored
    return changed(row, owner=owner, next_run_time=next_run_time, attempt=attempt)


def as_it_waits(row: Row, now: float) -> Row:
    """A row as it is known to be now: given back if the worker of an extra run has let it go.

    No worker has claimed the row since that lease has ended. The row need not be due.
    """
    has_ended = row.next_run_time is not None and row.next_run_time <= now
    return given_back(row) if has_ended else row


def while_borrowed(row: Row) -> int | None:
    """The ``attempt`` of a free row while an extra run's worker holds its lease.

    Returns:
        The number, which is the same as before if it already says what to restore, or if the row
        has no time to restore; None if the row must not be leased. Its last lease was that of a
        regular run then, whose attempt was lost. A regular claim has to record that first.
    """
    if row.owner is not None:
        # ``next_run_time`` is the end of the last lease, so no note can be made of it.
        return None if returned(row) is None else row.attempt
    if row.attempt < 0 or row.next_time is None:
        return row.attempt
    return borrowed(row.next_run_time, row.attempt)


def first_time(row: Row, trigger: Trigger | None, now: float) -> int | None:
    """The first occurrence of a row without a ``next_time``; None if there is none."""
    now = ceil(now)
    if trigger is None:
        return now
    decided = decided_until(row)
    return first(trigger, now if decided is None else decided + 1)


def before_claim(row: Row) -> int:
    """The ``attempt`` of a row before it was claimed, if the claim does not count as an attempt."""
    before = row.attempt - 1
    return before if row.next_time is None else max(before, 0)


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


def is_exhausted(row: Row, definition: Definition) -> bool:
    """Whether the current attempt is the last one."""
    return 0 < definition.settings.max_attempts <= row.attempt


def _was_settled(row: Row) -> bool:
    """Whether the last lease of a claimed row was settled by its own worker."""
    settled = (row.settled_by or "").rpartition("#")[2]
    return settled == str(row.fence - 1) and row.reason != WORKER_DIED


def give_up_reason(row: Row, definition: Definition, now: float) -> tuple[str, str] | None:
    """Decide whether to give up the occurrence of a row that has just been claimed.

    Returns:
        The new status if the row is a one-shot, and the reason. None means that the occurrence is
        not given up, but tried.
    """
    most, expire = definition.settings.max_attempts, definition.settings.expire
    if 0 < most < row.attempt:
        # The last allowed attempt was made already. At its end the occurrence would have been given
        # up, so its worker has died, or more attempts were allowed then, or on that host.
        if not _was_settled(row):
            return FAILED, f"gave up: its worker died in the last of {most} attempts"
        why = f": {row.reason}" if row.reason else ""
        made = counted(row.attempt - 1, "attempt")
        return FAILED, f"gave up after {made}, because max_attempts is {most}{why}"
    if definition.trigger is not None or not expire or row.next_time is None:
        return None
    created = row.created_at or 0
    # A row that was inserted by plain SQL has no created_at before the end of its first lease. It
    # does not expire until then.
    if created > 0 and now >= max(created, row.next_time + definition.delay) + expire:
        return EXPIRED, f"expired: it has not succeeded within {expire} s"
    return None

"""Waiting for the end of a schedule that runs only once."""

from collections.abc import Callable
from math import isnan

from psched.base.errors import InvalidError, NotFoundError, TransientStoreError
from psched.base.quantities import DURATIONS, Duration, as_seconds
from psched.base.texts import brief
from psched.client.access import Access, read_row
from psched.core.model import ENDED, QUARANTINED, Row

# The pauses between two reads; each pause is twice as long as the last.
_FIRST_PAUSE = 0.05
"""The first pause, in seconds."""
_LONGEST_PAUSE = 1.0
"""The longest pause, in seconds."""


def longest_wait(timeout: Duration | None) -> float | None:
    """The argument ``timeout`` of `Schedule.wait` in seconds."""
    seconds = as_seconds(timeout)
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or isnan(seconds):
        raise InvalidError(
            "timeout",
            f"must be a number of seconds, or a duration such as {DURATIONS}, not"
            f" {brief(repr(timeout))}",
        )
    return seconds


def wait_for_end(
    access: Access,
    key: str,
    timeout: float | None,
    look: Callable[[Row], object] | None = None,
) -> Row:
    """Wait until a schedule that runs only once has ended; see `Schedule.wait`."""
    give_up_at = None if timeout is None else access.clock.monotonic() + timeout
    pause = _FIRST_PAUSE
    row = access.read(key)
    while True:
        # A row with an owner has not ended, whatever its status: its task is still running, and
        # somebody has set the status by plain SQL.
        if row.status in {*ENDED, QUARANTINED} and row.owner is None:
            return row
        if row.cron is not None:
            raise InvalidError(
                "key", f"{key!r} has a trigger, so it never ends and cannot be waited for"
            )
        if look is not None:
            look(row)
        if give_up_at is not None:
            left = give_up_at - access.clock.monotonic()
            if left <= 0:
                raise TimeoutError(f"{key!r} is still {row.state}")
            pause = min(pause, left)
        access.clock.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        try:
            row = read_row(access.store, key)
        except TransientStoreError:
            continue  # the wait goes on, because the task can end while the store is down
        except NotFoundError:
            raise NotFoundError(
                f"{key!r} is gone: it was deleted, or it has ended and its retention_time is 0"
            ) from None

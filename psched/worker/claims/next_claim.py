"""Decides when a worker sends its next claim."""

import random

from psched.core.store_protocol import Claimed

_LOST_RACE_PAUSE = (0.002, 0.02)
"""The shortest and the longest pause before the next claim, in seconds, if other workers have
claimed all due rows first. The pause is random."""

_AHEAD = 0.006
"""Seconds by which an early claim precedes the time at which a row is due; see `_before`."""

_AHEAD_SHARE = 1 / 200
"""The early claim precedes the time at which a row is due by this fraction of a long sleep, because
in a niced process a sleep can end late by this fraction of its length; see `_before`."""


def pause_after(claimed: Claimed, poll_interval: float, rng: random.Random) -> float:
    """Seconds from the answer to a claim until the next claim."""
    if claimed.more:
        # If rows are due, but the store has returned none, other workers have claimed them at the
        # same time. After a short random pause, the next claims hardly collide again.
        return 0.0 if claimed.rows else rng.uniform(*_LOST_RACE_PAUSE)
    # The pause is random, so that hosts do not poll at the same times. It never exceeds
    # ``poll_interval``.
    pause = poll_interval * rng.uniform(0.9, 1.0)
    if claimed.next_due is None or claimed.now is None:
        return pause
    return min(pause, _before(max(claimed.next_due - claimed.now, 0.0)))


def _before(due: float) -> float:
    """Seconds until the next claim, given the seconds until a row is due.

    One claim is sent a little before the row is due, and a second claim when the row is due. The
    early claim makes the second claim fast, because it wakes this process, the connection and the
    server, and fills their caches. It also makes the second claim punctual, because its answer
    contains a new reading of the store's clock, and only a short sleep remains until the row is
    due. A short sleep does not end late.
    """
    return due if due <= 2 * _AHEAD else due - max(_AHEAD, _AHEAD_SHARE * due)

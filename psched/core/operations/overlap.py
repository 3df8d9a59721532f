"""What becomes of an extra run that does not get its schedule, and when it is tried again."""

from dataclasses import dataclass
from math import ceil

from psched.base.texts import brief
from psched.config import Config
from psched.core import attempts
from psched.core.columns import plain_reason
from psched.core.history.records import Fate
from psched.core.model import CANCELLED, ENDED, ENDING, ReasonCode, Row, Settlement
from psched.core.operations.extra_runs import PARALLEL, QUEUE, SKIP
from psched.core.policy import postpone

_SHARE = 60
"""While one run is going on, its schedule is tried again after this part of the time so far."""

LONGEST = 10
"""The most seconds between two tries of one extra run, if no others wait."""

ROUND = 120
"""The most seconds between two tries of one extra run, however many wait."""

_UNSEEN = 30
"""After so many seconds without a try, those that were postponed may have started or be gone."""

_MOST = 1000
"""The most schedules that are remembered."""


@dataclass(slots=True)
class _Queue:
    """What is known about the extra runs that wait for one schedule, by the store's clock."""

    holder: str | None  # what identifies the lease or the hold of the schedule, if it is known
    since: float  # when this lease was in the way for the first time
    seen: float  # when an extra run was postponed for the last time
    last: float  # the latest time to which one was postponed


class Turns:
    """Gives the extra runs of a schedule, each of which waits for another run, their turns.

    If all of them were due again at once, workers would claim them again and again, and nothing
    else. So they become due one after the other, one in a second: some of them are always due soon,
    and one starts soon after the other run has ended. If more of them wait than a `ROUND` has
    seconds, the next round begins, so that several are due in a second. If only few wait, and the
    other run takes long, they are tried less often.

    Each worker gives turns to what it has postponed itself, and knows nothing of other workers.
    """

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}

    def wait(self, key: str, holder: str | None, now: float) -> int:
        """The seconds until an extra run is tried again, which has not got its schedule's lease."""
        queue = self._queues.get(key)
        if queue is None:
            if len(self._queues) >= _MOST:
                self._queues.clear()
            queue = self._queues[key] = _Queue(holder, now, now, now)
        if queue.holder != holder:
            # The next one has started, so another one may start soon.
            queue.holder, queue.since, queue.last = holder, now, now
        pause = min(max(1, (now - queue.since) / _SHARE), LONGEST)
        turn = max(now + pause, queue.last + 1)
        if turn > now + ROUND or not 0 <= now - queue.seen <= _UNSEEN:
            turn = now + pause
        queue.seen, queue.last = now, turn
        return ceil(turn - now)


def without_hold(
    row: Row,
    own: Config,
    needed: tuple[str, str],
    schedule: Row | None,
    *,
    now: float,
    turns: Turns,
) -> Settlement:
    """The settlement of an extra run for which the store has not held its schedule."""
    key, overlap = needed
    if schedule is None:
        return _cancelled(row, own, Fate.CANCELLED, f"its schedule {key} was deleted")
    if schedule.status in ENDING:
        what = "has ended" if schedule.status in ENDED else "is about to end"
        why = f"its schedule {key} {what}: it is {schedule.status}"
        return _cancelled(row, own, Fate.CANCELLED, why)
    is_running = schedule.owner is not None and now < (schedule.next_run_time or 0)
    is_held = schedule.is_held(now)
    # If no run is going on, the schedule was held only for a moment, so the next claim succeeds.
    needed = key, overlap if is_running or is_held else QUEUE
    holder = schedule.held_by if is_held else str(schedule.token)
    return beside_another_run(row, own, needed, holder, now=now, turns=turns)


def beside_another_run(
    row: Row,
    own: Config,
    needed: tuple[str, str],
    holder: str | None,
    *,
    now: float,
    turns: Turns,
) -> Settlement:
    """The settlement of an extra run while another run of its schedule is going on."""
    key, overlap = needed
    if overlap == SKIP:
        reason = f"another run of {key} was going on, and overlap is {SKIP}"
        return _cancelled(row, own, Fate.SKIPPED_OVERLAP, reason)
    return postpone(row, turns.wait(key, holder, now))


def unsupported(key: str) -> str:
    """Why a row is quarantined if the store cannot hold the schedule with this key."""
    return (
        f"overlap: this store cannot hold {brief(key)}, which an extra run needs that"
        f" must not overlap with other runs; use overlap {PARALLEL}"
    )


def _cancelled(row: Row, own: Config, fate: Fate, reason: str) -> Settlement:
    return Settlement.of(
        row,
        rest=True,
        remove=own.retention_time == 0,
        retain=own.retention_time,
        attempt=attempts.before_claim(row),
        status=CANCELLED,
        reason=plain_reason(reason),
        reason_code=ReasonCode.OVERLAP,
        fate=fate,
    )

"""What becomes of an extra run that does not get its schedule."""

from psched.base.texts import brief
from psched.config import Config
from psched.core import attempts
from psched.core.columns import plain_reason
from psched.core.history.records import Fate
from psched.core.model import CANCELLED, ENDED, ENDING, ReasonCode, Row, Settlement
from psched.core.operations.extra.turns import Turns
from psched.core.operations.extra_runs import PARALLEL, QUEUE, SKIP
from psched.core.policy import postpone


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

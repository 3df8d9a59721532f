"""What becomes of an extra run that does not get the lease of its schedule."""

from psched.base.texts import brief
from psched.config import Config
from psched.core import attempts
from psched.core.columns import plain_reason
from psched.core.history.records import Fate
from psched.core.model import CANCELLED, CANCELLING, DELETING, FINISHING, MARKS, Row, Settlement
from psched.core.operations.extra_runs import PARALLEL, SKIP
from psched.core.policy import postpone

_BEING_ENDED = {
    DELETING: "is being deleted",
    CANCELLING: "is being cancelled",
    FINISHING: "is being finished",
}


def without_schedule(row: Row, own: Config, key: str, status: str | None) -> Settlement | None:
    """The settlement of an extra run whose schedule was deleted or has ended.

    Args:
        row: the row of the extra run, which has just been claimed.
        own: the settings of its definition.
        key: the key of its schedule.
        status: the status of the schedule; None if it does not exist.

    Returns:
        The settlement; None if the schedule is in service.
    """
    if status is None:
        return _cancelled(row, own, Fate.CANCELLED, f"its schedule {key} was deleted")
    if status not in MARKS:
        return None
    what = _BEING_ENDED.get(status, f"has ended: it is {status}")
    return _cancelled(row, own, Fate.CANCELLED, f"its schedule {key} {what}")


def beside_another_run(
    row: Row, own: Config, key: str, overlap: str, *, waiting: int
) -> Settlement:
    """The settlement of an extra run while another run of its schedule is going on.

    Args:
        row: the row of the extra run, which has just been claimed.
        own: the settings of its definition.
        key: the key of its schedule.
        overlap: ``queue`` or ``skip``.
        waiting: how many extra runs of the schedule already wait.
    """
    if overlap == SKIP:
        reason = f"another run of {key} was going on, and overlap is {SKIP}"
        return _cancelled(row, own, Fate.SKIPPED_OVERLAP, reason)
    # Those that wait become due one after the other, because only one of them can start.
    return postpone(row, 1 + waiting)


def unsupported(key: str) -> str:
    """Why a row is quarantined if the store cannot lease the schedule with this key."""
    return (
        f"overlap: this store cannot lease {brief(key)} by its key, which an extra run needs that"
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
        fate=fate,
    )

"""The status of a schedule as people see it."""

from psched.core.model import WAITING, Row

DUE = "due"
"""The shown status of a waiting row that a worker can start now."""


def shown_status(row: Row, now: float) -> str:
    """The status of a row: ``due``, ``running``, or what the row holds.

    Args:
        row: the row.
        now: the time of the store's clock, in Unix seconds.
    """
    # A running task is not due before the end of its lease, which is its row's next_run_time.
    if row.status == WAITING and row.next_run_time is not None and row.next_run_time <= now:
        return DUE
    return row.state

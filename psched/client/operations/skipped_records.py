"""The records of occurrences that a client leaves out."""

from collections.abc import Iterable, Sequence

from psched.config import Config
from psched.core.definition import history_setting
from psched.core.history.protocol import KeepsHistory
from psched.core.history.records import RunRecord, Skipped
from psched.core.model import Row
from psched.core.operations.pausing import record_of
from psched.core.store_protocol import Store


def records_of(
    store: Store,
    settings: Config,
    row: Row,
    spans: Iterable[Skipped],
    *,
    owner: str,
    host: str,
    now: float,
) -> Sequence[RunRecord]:
    """Create the records of skipped occurrences; none if the run history does not keep them.

    Args:
        store: the store that contains the schedule.
        settings: the installation's settings.
        row: the row of the schedule.
        spans: what was skipped.
        owner: a unique text in place of the owner of a lease.
        host: the name of the client's host.
        now: the time of the store's clock.
    """
    able: object = store
    if history_setting(row, settings) == "none" or not isinstance(able, KeepsHistory):
        return ()
    if able.history_problem() is not None:
        return ()
    return [record_of(row, each, owner=owner, host=host, now=now) for each in spans]

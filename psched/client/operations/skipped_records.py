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
    """Create the records of skipped occurrences; none if the run history does not keep them."""
    able: object = store
    if history_setting(row, settings) == "none" or not isinstance(able, KeepsHistory):
        return ()
    if able.history_problem() is not None:
        return ()
    return [record_of(row, each, owner=owner, host=host, now=now) for each in spans]

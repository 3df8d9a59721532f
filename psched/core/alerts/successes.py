"""When schedules have last succeeded, as the run history says."""

from collections.abc import Mapping, Sequence

from psched.config import Config
from psched.core.history.protocol import FindsLastRuns, KeepsHistory, RunSelection
from psched.core.history.records import Fate, Outcome, RunRecord


def last_successes(history: KeepsHistory, keys: Sequence[str]) -> Mapping[str, int]:
    """When each schedule has last succeeded, in milliseconds; keys without a success are left out.

    One request tells it of all schedules whose last run has succeeded. Each other one costs a
    request of its own.
    """
    found = dict[str, int]()
    last = history.last_runs(keys) if isinstance(history, FindsLastRuns) and keys else {}
    for key in keys:
        record = last.get(key)
        if record is None and isinstance(history, FindsLastRuns):
            continue  # nothing has run
        if record is None or not _is_success(record):
            record = _newest(history, key, Fate.FINISHED)
        if record is not None:
            found[key] = record.ended
    return found


def covered_since(history: KeepsHistory, key: str, settings: Config, now: float) -> int:
    """Since when no record of a schedule was deleted, in milliseconds; 0 if none ever was.

    Workers delete records that are older than ``history_keep``, and the oldest ones of a key that
    has more than ``history_keep_per_key``. It costs a request for each 200 records of the schedule.
    """
    keep, most = settings.history_keep, settings.history_keep_per_key
    since = max(0, round(1000 * (now - keep))) if keep else 0
    if not most:
        return since
    number, oldest = 0, 0
    for record in history.runs(RunSelection(key=key, limit=most)):
        if record.ended < since:
            return since
        number, oldest = number + 1, record.ended
    return max(since, oldest) if number >= most else since


def last_resumption(history: KeepsHistory, key: str) -> int | None:
    """When a pause of a schedule has last ended that has skipped an occurrence, in milliseconds."""
    record = _newest(history, key, Fate.SKIPPED_PAUSED)
    return None if record is None else record.ended


def _is_success(record: RunRecord) -> bool:
    return record.fate == Fate.FINISHED and record.outcome in {None, Outcome.FINISHED}


def _newest(history: KeepsHistory, key: str, fate: Fate) -> RunRecord | None:
    selection = RunSelection(key=key, fates=frozenset({fate}), limit=1)
    return next(iter(history.runs(selection)), None)

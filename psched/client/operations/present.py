"""The methods of a collection of schedules that say what runs now, and how busy the workers are."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from psched.client.arguments import keeping_history
from psched.client.collection_changes import CollectionChanges
from psched.core.history.protocol import RunSelection
from psched.core.history.records import FAILED_FATES, FAILURES, GONE_AFTER, RunRecord, WorkerRecord
from psched.core.history.run import Run
from psched.core.operations.overview import (
    DURATIONS,
    Overview,
    SummarizesRuns,
    durations_of,
    overview_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class CollectionOfPresent(CollectionChanges):
    """The part of `psched.ScheduleCollection` that says what runs now, and what is next."""

    def overview(self, limit: int = 100) -> Overview:
        """Read what runs, what is late and what is next.

        The cost does not grow with the number of schedules.

        Args:
            limit: the largest number of rows of each kind.
        """
        return self._send(lambda: overview_of(self._store, limit))

    def durations(self, keys: Sequence[str], most: int = DURATIONS) -> Mapping[str, Sequence[int]]:
        """Find how long the newest runs of each key took, in milliseconds, the newest run first.

        Runs that finished, failed or were stopped at their time limit count. Keys without such a
        run are left out.

        Args:
            keys: the keys of schedules.
            most: the largest number of runs of each key.

        Raises:
            NotSupportedError: the store keeps no run history.
            SchemaError: the tables of the run history do not exist.
        """
        history = keeping_history(self._store)
        return self._send(lambda: durations_of(history, keys, most))

    def failures(self, since: int, *, among: int = 10_000, limit: int = 100) -> Sequence[Run]:
        """Read the newest failures, the newest first; `psched history --failed` shows the same.

        Args:
            since: the earliest end of the runs, in Unix seconds.
            among: among how many of the newest records of all schedules they are searched.
            limit: the largest number of failures.

        Raises:
            NotSupportedError: the store keeps no run history.
            SchemaError: the tables of the run history do not exist.
        """
        history = keeping_history(self._store)
        earliest = 1000 * since
        if isinstance(history, SummarizesRuns):
            found = self._send(lambda: history.failures(since=earliest, among=among, limit=limit))
            return [Run(record, self._zone) for record in found]
        newest = self._send(lambda: history.runs(RunSelection(since=earliest, limit=among)))
        return [Run(record, self._zone) for record in islice(filter(_has_failed, newest), limit)]

    def live_workers(self) -> Sequence[WorkerRecord]:
        """The workers that are alive, as far as their records tell; each writes one a minute.

        Raises:
            NotSupportedError: the store keeps no records of workers.
            SchemaError: the tables of the run history do not exist.
        """
        return [worker for worker in self.workers_seen(GONE_AFTER) if worker.ended is None]

    def workers_seen(self, seconds: int) -> Sequence[WorkerRecord]:
        """The workers that were alive at some time in these last seconds; see `live_workers`."""
        history = keeping_history(self._store)
        since = int(self._send(self._store.now)) - seconds
        return self._send(lambda: history.workers(since))


def _has_failed(record: RunRecord) -> bool:
    return record.outcome in FAILURES or record.fate in FAILED_FATES

"""The methods of a collection of schedules that read alerts, and close them by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psched.base.errors import InvalidError, NotSupportedError
from psched.base.retry import read_each
from psched.client.arguments import chosen_key
from psched.core.selection import check_limit, chosen_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from psched.core.alerts.alert import Alert
    from psched.core.alerts.protocol import KeepsAlerts
    from psched.core.schedule import Since

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


class CollectionOfAlerts(CollectionOfPresent):
    """The part of `psched.ScheduleCollection` that reads and closes alerts."""

    def alerts(
        self,
        key: str | None = None,
        *,
        rule: str | Iterable[str] | None = None,
        only_open: bool = True,
        since: Since | None = None,
        limit: int | None = None,
    ) -> Iterator[Alert]:
        """Read alerts, those that were raised last first.

        Args:
            key: the key of a schedule, also of a deleted one; None means every schedule and host.
            rule: only alerts of this rule, or of these; None means every rule.
            only_open: whether alerts that are over are left out.
            since: the earliest ``raised``, as in `runs`; None means the oldest that is kept.
            limit: the largest number of alerts; None means no limit.

        Raises:
            InvalidError: a value is invalid; the error's ``field`` is the name of the argument.
            NotSupportedError: the store keeps no alerts now; the text names the fix.
        """
        # Imported here, as in `CollectionChanges`.
        from psched.core.alerts.alert import Rule  # noqa: PLC0415
        from psched.core.alerts.protocol import AlertSelection  # noqa: PLC0415

        rules = chosen_texts("rule", rule)
        if unknown := rules - {*Rule}:
            raise InvalidError(
                "rule", f"{min(unknown)!r} is unknown; choose from {', '.join(Rule)}"
            )
        check_limit(limit)
        store = self._keeping_alerts()
        selection = AlertSelection(
            key=chosen_key(key),
            rules=rules,
            only_open=only_open,
            since=None if since is None else self._earliest(since),
            limit=limit,
        )
        return read_each(self._send, self._send(lambda: store.alerts(selection)))

    def close_alerts(self, alerts: Sequence[Alert], text: str) -> Sequence[Alert]:
        """Close open alerts by hand. The same incident is not told of again.

        Args:
            alerts: the alerts.
            text: why, and who says so.

        Returns:
            The alerts that this call has closed.

        Raises:
            NotSupportedError: the store keeps no alerts now; the text names the fix.
        """
        store = self._keeping_alerts()
        return self._send(lambda: store.close_alerts(alerts, text))

    def _keeping_alerts(self) -> KeepsAlerts:
        from psched.core.alerts.protocol import KeepsAlerts  # noqa: PLC0415

        store = self._store
        if not isinstance(store, KeepsAlerts):
            raise NotSupportedError(
                "this store keeps no alerts; psched's own table does, and so does a store of your"
                " own that has the methods of KeepsAlerts"
            )
        if (problem := self._send(store.alerts_problem)) is not None:
            raise NotSupportedError(f"there are no alerts: {problem}")
        return store

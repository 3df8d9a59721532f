"""The methods of a collection of schedules that say what ran, why, and who changed what."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

from psched.base.clock import Clock
from psched.base.retry import Send
from psched.client.auditor import Auditor
from psched.client.author import Author
from psched.client.explain import explain_from_store
from psched.client.history import HistoryReader
from psched.config import Config
from psched.core.declare import When
from psched.core.history.records import AuditRecord
from psched.core.history.run import Run
from psched.core.history.why.answer import Answer
from psched.core.schedule import Since
from psched.core.store_protocol import Store


class CollectionHistory:
    """The part of `psched.ScheduleCollection` that reads the run history and the audit trail.

    Args:
        store: the store that contains the schedules.
        settings: the installation's settings.
        clock: measures the time between two warnings.
        author: returns who makes the changes of this collection, for the audit trail.
        send: sends a request to the store, again and again while the store is unavailable.

    Attributes:
        auditor: writes and reads the audit trail.
    """

    def __init__(
        self,
        store: Store,
        settings: Config,
        *,
        clock: Clock,
        author: Callable[[], Author],
        send: Send,
    ) -> None:
        self.auditor = Auditor(store, author=author, clock=clock, send=send)
        self._history = HistoryReader(store, send=send)
        self._explain = partial(explain_from_store, store, settings, send)

    def why(self, key: str, time: When | str | None = None, zone: str | None = None) -> Answer:
        """Explain what became of an occurrence, or what will; see `Schedule.why`."""
        return self._explain(key, time=time, zone=zone)

    def runs(
        self,
        key: str | None = None,
        *,
        type: str | Iterable[str] | None = None,  # noqa: A002  # the table's word
        since: Since | None = None,
        failed: bool = False,
        outcome: str | Iterable[str] | None = None,
        fate: str | Iterable[str] | None = None,
        limit: int | None = None,
    ) -> Iterator[Run]:
        """Read the records of the run history that fulfil all conditions, the newest first.

        Args:
            key: the key of one schedule, which may have been deleted; None means every key.
            type: one or several types; None means every type.
            since: the earliest end of the runs: an age (``"1d"``, a `timedelta`, or a number of
                seconds below 1e9), an aware datetime, or Unix seconds.
            failed: True for only what failed: attempts that neither finished nor were released, and
                occurrences that were given up, cancelled, expired or quarantined.
            outcome: one or several values of `Run.outcome`; None means every record.
            fate: one or several values of `Run.fate`; None means every record.
            limit: the largest number of records; None means no limit.

        Raises:
            InvalidError: a value is invalid; the error's ``field`` is the name of the argument.
            NotSupportedError: the store keeps no run history; the text names the fix.
        """
        return self._history.runs(
            key, type=type, since=since, failed=failed, outcome=outcome, fate=fate, limit=limit
        )

    def last_runs(self, keys: Sequence[str]) -> Mapping[str, Run]:
        """Find the last attempt that has ended of each of these keys, in a few round trips.

        Keys that have never run are left out. ``error`` and ``result`` of the runs are None,
        because they can be large; `runs` reads them.

        Raises:
            NotSupportedError: the store keeps no run history, or cannot find these runs.
        """
        return self._history.last_runs(keys)

    def audited(self, note: str | None) -> AbstractContextManager[None]:
        """Note in the audit trail why the changes in the ``with`` block are made."""
        return self.auditor.noting(note)

    def audit(
        self, key: str | None = None, since: When | None = None, limit: int | None = None
    ) -> Iterator[AuditRecord]:
        """Read who has changed which schedule, the newest change first.

        Args:
            key: the schedule's key, also of a deleted one; None means every key.
            since: the earliest change; None means the oldest that is kept.
            limit: the largest number of changes; None means no limit.

        Raises:
            NotSupportedError: a store of this kind keeps no audit trail.
            SchemaError: the table of the audit trail does not exist.
        """
        return self.auditor.records(key, since, limit)

"""The methods of a collection of schedules that say what ran, why, and who changed what."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from psched.base.errors import InvalidError, NotSupportedError, StoreError, TransientStoreError
from psched.base.retry import Send, read_each
from psched.client.arguments import (
    chosen_key,
    earliest,
    keeping_history,
    keeping_output,
    stored_key,
)
from psched.client.auditor import Auditor
from psched.core.columns import check_number
from psched.core.history.protocol import (
    AuditSelection,
    FindsLastRuns,
    KeepsHistory,
    RunSelection,
)
from psched.core.history.records import FAILED_FATES, FAILURES, AuditRecord, Fate, Outcome
from psched.core.history.run import Run
from psched.core.output.output import Output
from psched.core.output.protocol import OutputSelection
from psched.core.selection import LARGEST_LIMIT, check_limit, chosen_texts
from psched.core.shorthands import instant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from psched.base.clock import Clock
    from psched.client.author import Author
    from psched.config import Config
    from psched.core.declare import When
    from psched.core.history.why.answer import Answer
    from psched.core.model import Row
    from psched.core.schedule import Since
    from psched.core.store_protocol import Store
    from psched.triggers.zone import Zone

_NEWEST = 10
"""Among so many of the newest attempts at a task that has ended is its last one, unless other
attempts were recorded late, for example as preempted."""


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
        self._store = store
        self._settings = settings
        self._send = send
        self._zone = settings.timezone

    def why(
        self, key: str, time: When | str | None = None, zone: str | Zone | None = None
    ) -> Answer:
        """Explain what became of an occurrence, or what will; see `Schedule.why`."""
        # Imported here, as in `CollectionChanges`.
        from psched.core.history.why.explain import explain_from_store  # noqa: PLC0415

        return explain_from_store(
            self._store, self._settings, self._send, stored_key(key), time=time, zone=zone
        )

    def _last_attempt(self, row: Row) -> Run | None:
        """The last attempt at a row that has ended; None if the run history does not contain it."""
        try:
            newest = self.runs(row.key, outcome=[*Outcome], limit=_NEWEST, extra_runs=False)
            # Older records can be those of a deleted schedule with the same key. So an attempt is
            # recognized by its lease.
            records = (run.record for run in newest)
            zone = row.timezone or self._zone
            return next((Run(each, zone) for each in records if each.lease == row.settled_by), None)
        except TransientStoreError:
            raise
        except (NotSupportedError, StoreError):
            # The end of the task is known nevertheless. For example, the table of the history is
            # missing, or the user may not read it.
            return None

    def runs(
        self,
        key: str | None = None,
        *,
        type: str | Iterable[str] | None = None,  # noqa: A002  # the table's word
        since: Since | None = None,
        failed: bool = False,
        outcome: str | Iterable[str] | None = None,
        fate: str | Iterable[str] | None = None,
        time: When | None = None,
        limit: int | None = None,
        extra_runs: bool = True,
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
            time: the scheduled time of an occurrence of the schedule with this ``key``: its
                attempts, or the record that says why it did not run. Records of extra runs are not
                among them. None means every occurrence.
            limit: the largest number of records; None means no limit.
            extra_runs: whether the records of the extra runs of the schedule with this ``key`` are
                among the records, see `Schedule.trigger`. Each of these has a key of its own.

        Raises:
            InvalidError: a value is invalid; the error's ``field`` is the name of the argument.
            NotSupportedError: the store keeps no run history; the text names the fix.
        """
        check_limit(limit)
        if time is not None and key is None:
            raise InvalidError("time", "the scheduled time of which schedule? name its key")
        outcomes, fates = _known("outcome", outcome, Outcome), _known("fate", fate, Fate)
        if failed:
            if outcomes or fates:
                other = "outcome" if outcomes else "fate"
                raise InvalidError("failed", f"and {other} both select records; leave one out")
            outcomes, fates = FAILURES, FAILED_FATES
        types = chosen_texts("type", type)
        # A selection with both returns records that have one of either.
        both = bool(outcomes and fates) and not failed
        history = self._history()
        selection = RunSelection(
            key=chosen_key(key),
            with_extra_runs=key is not None and extra_runs and time is None,
            types=types,
            outcomes=frozenset() if both else outcomes,
            fates=fates,
            since=None if since is None else self._earliest(since),
            covering=None if time is None else instant("time", time),
            limit=None if both else limit,
        )
        records = read_each(self._send, self._send(lambda: history.runs(selection)))
        if both:
            records = (each for each in records if each.outcome in outcomes)
        return (Run(each, self._zone) for each in islice(records, limit))

    def last_runs(self, keys: Sequence[str]) -> Mapping[str, Run]:
        """Find the last run of each of these keys, in a few round trips.

        That is the newest record of an attempt, or of an occurrence that was given up, cancelled,
        expired, quarantined or marked as finished, even if nothing ran. What was skipped does not
        count. Keys without such a record are left out. ``error`` and ``result`` of the runs are
        None, because they can be large; `runs` reads them.

        Raises:
            NotSupportedError: the store keeps no run history, or cannot find these runs.
        """
        history = self._history()
        if not isinstance(history, FindsLastRuns):
            raise NotSupportedError("this store cannot find the last runs of many keys")
        found = self._send(lambda: history.last_runs(keys))
        return {key: Run(record, self._zone) for key, record in found.items()}

    def outputs(
        self,
        key: str,
        *,
        time: When | None = None,
        attempt: int | None = None,
        limit: int | None = None,
    ) -> Iterator[Output]:
        """Read what the attempts of a schedule have printed, the newest first.

        Attempts that have printed nothing are left out, and so are those whose output is not kept
        (see the setting ``output``) or was deleted.

        Args:
            key: the key of the schedule, which may have been deleted.
            time: the scheduled time of an occurrence; None means every occurrence.
            attempt: the number of an attempt; None means every attempt.
            limit: the largest number of attempts; None means no limit.

        Raises:
            InvalidError: a value is invalid; the error's ``field`` is the name of the argument.
            NotSupportedError: the store keeps no output; the text names the fix.
        """
        for name, number in (("attempt", attempt), ("limit", limit)):
            if number is not None:
                check_number(name, number, LARGEST_LIMIT)
        selection = OutputSelection(
            key=stored_key(key),
            scheduled_time=None if time is None else instant("time", time),
            attempt=attempt,
            limit=limit,
        )
        store = keeping_output(self._store)
        if (problem := self._send(store.output_problem)) is not None:
            raise NotSupportedError(f"no output is kept: {problem}")
        records = read_each(self._send, self._send(lambda: store.outputs(selection)))
        return (Output(each, self._zone) for each in islice(records, limit))

    def audited(self, note: str | None) -> AbstractContextManager[None]:
        """Note in the audit trail why the changes in the ``with`` block are made."""
        return self.auditor.noting(note)

    def audit(
        self, key: str | None = None, since: Since | None = None, limit: int | None = None
    ) -> Iterator[AuditRecord]:
        """Read who has changed which schedule, the newest change first.

        Args:
            key: the schedule's key, also of a deleted one; None means every key.
            since: the earliest change, as in `runs`; None means the oldest that is kept.
            limit: the largest number of changes; None means no limit.

        Raises:
            InvalidError: a value is invalid; the error's ``field`` is the name of the argument.
            NotSupportedError: a store of this kind keeps no audit trail.
            SchemaError: the table of the audit trail does not exist.
        """
        check_limit(limit)
        history = keeping_history(self._store)
        selection = AuditSelection(
            key=chosen_key(key),
            since=None if since is None else self._earliest(since),
            limit=limit,
        )
        return read_each(self._send, self._send(lambda: history.audits(selection)))

    def _earliest(self, since: Since) -> int:
        return earliest(since, lambda: self._send(self._store.now))

    def _history(self) -> KeepsHistory:
        """The store, if it keeps a history now."""
        history = keeping_history(self._store)
        if (problem := self._send(history.history_problem)) is not None:
            raise NotSupportedError(f"there is no run history: {problem}")
        return history


def _known(
    field: str, values: str | Iterable[str] | None, known: type[Outcome | Fate]
) -> frozenset[str]:
    chosen = chosen_texts(field, values)
    if unknown := chosen - {*known}:
        raise InvalidError(field, f"{min(unknown)!r} is unknown; choose from {', '.join(known)}")
    return chosen

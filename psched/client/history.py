"""Reads the run history of a store."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from psched.base.errors import InvalidError, NotSupportedError
from psched.base.quantities import DURATIONS, as_seconds
from psched.base.retry import Send, read_each
from psched.core.columns import LATEST_TIME, check_number
from psched.core.history.protocol import FindsLastRuns, KeepsHistory, RunSelection
from psched.core.history.records import FAILED_FATES, FAILURES, Fate, Outcome
from psched.core.history.run import Run
from psched.core.schedule import Since
from psched.core.selection import LARGEST_LIMIT, chosen_texts
from psched.core.store_protocol import Store

_LONGEST_AGE = 10**9
"""A number from here on is a time in Unix seconds; a smaller one is an age of up to 31 years."""

_NO_HISTORY = (
    "this store keeps no run history; psched's own table keeps one, and so does a store of your own"
    " that has the methods of KeepsHistory"
)


class HistoryReader:
    """Reads the records of the run history.

    Args:
        store: the store that contains the schedules.
        send: sends a request to the store, again and again while the store is unavailable.
    """

    def __init__(self, store: Store, *, send: Send) -> None:
        self._store = store
        self._send = send

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
        """Read the records that fulfil all conditions; see `ScheduleCollection.runs`."""
        if key is not None and not isinstance(key, str):
            raise InvalidError("key", f"must be a text, not {key!r}")
        if limit is not None:
            check_number("limit", limit, LARGEST_LIMIT)
        outcomes, fates = _known("outcome", outcome, Outcome), _known("fate", fate, Fate)
        if failed:
            if outcomes or fates:
                other = "outcome" if outcomes else "fate"
                raise InvalidError("failed", f"and {other} both select records; leave one out")
            outcomes, fates = FAILURES, FAILED_FATES
        types = chosen_texts("type", type)
        # A selection with both returns records that have one of either.
        both = bool(outcomes and fates) and not failed
        store = self._history()
        return self._read(
            store,
            RunSelection(
                key=key,
                types=types,
                outcomes=frozenset() if both else outcomes,
                fates=fates,
                since=None if since is None else self._earliest(since),
                limit=None if both else limit,
            ),
            outcomes if both else None,
            limit,
        )

    def last_runs(self, keys: Sequence[str]) -> Mapping[str, Run]:
        """Find the last run of each key; see `ScheduleCollection.last_runs`."""
        store = self._history()
        if not isinstance(store, FindsLastRuns):
            raise NotSupportedError("this store cannot find the last runs of many keys")
        found = self._send(lambda: store.last_runs(keys))
        return {key: Run(record) for key, record in found.items()}

    def _read(
        self,
        store: KeepsHistory,
        selection: RunSelection,
        outcomes: frozenset[str] | None,
        limit: int | None,
    ) -> Iterator[Run]:
        records = read_each(self._send, self._send(lambda: store.runs(selection)))
        if outcomes is not None:
            records = (each for each in records if each.outcome in outcomes)
        return map(Run, islice(records, limit))

    def _earliest(self, since: Since) -> int:
        return earliest(since, lambda: self._send(self._store.now))

    def _history(self) -> KeepsHistory:
        """The store.

        Raises:
            NotSupportedError: it keeps no history; the text names the fix.
        """
        store = self._store
        if not isinstance(store, KeepsHistory):
            raise NotSupportedError(_NO_HISTORY)
        if (problem := self._send(store.history_problem)) is not None:
            raise NotSupportedError(f"there is no run history: {problem}")
        return store


def earliest(since: Since, now: Callable[[], float]) -> int:
    """The earliest time that is meant by an argument ``since``, in Unix milliseconds.

    Args:
        since: an age, an aware datetime or Unix seconds.
        now: returns the present time of the store's clock, from which an age is counted.

    Raises:
        InvalidError: the value is none of these.
    """
    if isinstance(since, datetime):
        if since.tzinfo is None:
            raise InvalidError(
                "since",
                "is a datetime without a zone; give it one: tzinfo=ZoneInfo('Europe/Paris')",
            )
        return round(since.timestamp() * 1000)
    seconds: Any = as_seconds(since)
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 <= seconds <= LATEST_TIME:
        raise InvalidError(
            "since",
            f"must be an age ({DURATIONS}, a timedelta, or a number of seconds), a datetime or"
            f" Unix seconds, not {since!r}",
        )
    if isinstance(since, str | timedelta) or seconds < _LONGEST_AGE:
        seconds = now() - seconds
    return int(seconds * 1000)


def _known(
    field: str, values: str | Iterable[str] | None, known: type[Outcome] | type[Fate]
) -> frozenset[str]:
    chosen = chosen_texts(field, values)
    if unknown := chosen - {*known}:
        raise InvalidError(field, f"{min(unknown)!r} is unknown; choose from {', '.join(known)}")
    return chosen

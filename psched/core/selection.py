"""Which rows a listing returns, and in which order."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any, Self

from typing_extensions import override

from psched.base.errors import InvalidError
from psched.core.columns import check_number
from psched.core.model import RUNNING, STATUSES, WAITING, Row
from psched.core.schedule import ListOrder, Schedules

STATES = STATUSES | {RUNNING}
"""Every value of `psched.core.model.Row.state` of a valid row."""

LARGEST_LIMIT = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The rows that `psched.core.store_protocol.Store.rows` returns: those that fulfil everything.

    Attributes:
        statuses: the values of `Row.state`, such as ``running``; empty means every status.
        types: the types; empty means every type.
        labels: the labels, see `psched.files`; empty means every row, with or without a label.
        prefix: the beginning of the key; empty means every key.
        due: whether the rows must be due: their status is ``waiting``, and their ``next_run_time``
            is not later than the present time of the store's clock.
        lanes: the lane is at least the first of these texts, and less than the second; see
            `psched.core.hosts`. None means every row, with or without a lane.
        template: the row is that of a host for the template of this key, see `of_hosts`; empty
            means every row.
        limit: the largest number of rows; None means no limit.
        by_key: whether the rows are sorted by key; see `sorted_by_key`.
    """

    statuses: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()
    prefix: str = ""
    due: bool = False
    lanes: tuple[str, str] | None = None
    template: str = ""
    limit: int | None = None
    by_key: bool = False

    @classmethod
    def of_hosts(cls, template: str) -> Self:
        """The rows of the hosts for a template, sorted by key. Their keys begin with its key."""
        return cls(template=template, prefix=f"{template}@", by_key=True)

    @property
    def sorted_by_key(self) -> bool:
        """Whether the rows are sorted by key.

        Otherwise they are sorted by ``next_run_time`` and then by key, and the rows without a
        ``next_run_time`` are last. If no row of the selection waits or runs, the times mean
        nothing, and hardly any row has one. So the rows are sorted by key, which is faster.
        """
        return self.by_key or bool(self.statuses and not self.statuses & {WAITING, RUNNING})

    @property
    def selects_all(self) -> bool:
        """Whether every row fulfils all conditions; ``limit`` is no condition."""
        has_texts = self.statuses or self.types or self.labels or self.prefix or self.lanes
        return not (has_texts or self.due)

    def matches(self, row: Row, now: float | None = None) -> bool:
        """Whether a row fulfils all conditions."""
        return (
            (not self.statuses or row.state in self.statuses)
            and (not self.types or row.type in self.types)
            and row.key.startswith(self.prefix)
            and (not self.labels or row.label in self.labels)
            and (not self.due or _is_due(row, now))
            and (not self.template or row.template == self.template)
            and (self.lanes is None or self.lanes[0] <= (row.lane or "") < self.lanes[1])
        )


EVERY_ROW = Selection()
"""The selection of all rows, sorted by ``next_run_time``."""


def selection_of(
    status: str | Iterable[str] | None = None,
    type: str | Iterable[str] | None = None,  # noqa: A002  # the table's word
    label: str | Iterable[str] | None = None,
    *,
    prefix: str | None = None,
    due: bool = False,
    limit: int | None = None,
    order: str = "next",
) -> Selection:
    """Check the arguments of `ScheduleCollection.list`, and return the selection."""
    statuses = chosen_texts("status", status)
    if unknown := statuses - STATES:
        raise InvalidError(
            "status", f"{min(unknown)!r} is unknown; choose from {', '.join(sorted(STATES))}"
        )
    if prefix is not None and not isinstance(prefix, str):
        raise InvalidError("prefix", f"must be a text, not {prefix!r}")
    check_limit(limit)
    if order not in {"next", "key"}:
        raise InvalidError("order", f"must be next or key, not {order!r}")
    return Selection(
        statuses=statuses,
        types=chosen_texts("type", type),
        labels=chosen_texts("label", label),
        prefix=prefix or "",
        due=bool(due),
        limit=limit,
        by_key=order == "key",
    )


class SelectedRows(Iterator[Row]):
    """Takes the rows of a selection from an iterator, which must be in the selection's order.

    This class is not a generator, because an exception ends a generator. If the iterator raises an
    exception, the next call of ``next`` continues with the same row.

    Args:
        rows: the iterator.
        selection: tells which rows are taken, and how many.
        now: see `Selection.matches`.
    """

    def __init__(self, rows: Iterator[Row], selection: Selection, now: float | None = None) -> None:
        self._rows = rows
        self._selection = selection
        self._now = now
        self._left = selection.limit

    @override
    def __iter__(self) -> Self:
        return self

    @override
    def __next__(self) -> Row:
        if self._left == 0:
            raise StopIteration
        for row in self._rows:
            if self._is_too_late(row):
                break
            if self._selection.matches(row, self._now):
                if self._left is not None:
                    self._left -= 1
                return row
        raise StopIteration

    def _is_too_late(self, row: Row) -> bool:
        """Whether only due rows are wanted, and neither this row nor any later one is due."""
        selection, now = self._selection, self._now
        if not selection.due or selection.sorted_by_key or now is None:
            return False
        return row.next_run_time is None or row.next_run_time > now


def check_limit(limit: int | None) -> None:
    """Check the argument ``limit`` of a method that reads; None means no limit."""
    if limit is not None:
        check_number("limit", limit, LARGEST_LIMIT)


def chosen_texts(field: str, values: str | Iterable[str] | None) -> frozenset[str]:
    """Check a condition that is one text or several; None gives an empty set."""
    if values is None:
        return frozenset()
    listed = [values] if isinstance(values, str) or not isinstance(values, Iterable) else [*values]
    if not listed:
        # An empty selection means every value, which is hardly what the caller wants.
        raise InvalidError(field, "must name at least one; leave it out for all")
    for value in listed:
        if not isinstance(value, str):
            raise InvalidError(field, f"must be a text or several, not {value!r}")
    return frozenset(listed)


def _is_due(row: Row, now: float | None) -> bool:
    # A running task is not due before the end of its lease, which is its row's next_run_time.
    if row.status != WAITING or row.next_run_time is None:
        return False
    return now is None or row.next_run_time <= now


# --- keys, and patterns of keys ------------------------------------------------------------

_WILDCARDS = "*?"


def is_pattern(text: str) -> bool:
    """Whether a text contains a wildcard: ``*`` for any characters, or ``?`` for one."""
    return any(wildcard in text for wildcard in _WILDCARDS)


def matches(text: str, pattern: str) -> bool:
    """Whether a text matches a pattern as a whole."""
    if len(pattern) - pattern.count("*") > len(text):
        return False  # and a long pattern, which may come from a request, is not even compiled
    return fnmatchcase(text, pattern.replace("[", "[[]"))  # a bracket is no wildcard


def find(
    schedules: Schedules,
    patterns: Sequence[str],
    conditions: Mapping[str, Any],
    order: ListOrder = "next",
    watch: Callable[[Iterator[Row]], Iterator[Row]] = iter,
) -> Iterator[Row]:
    """Read the rows that fulfil the conditions, and whose keys match one of the patterns, if any.

    Rows are read by the beginnings of the patterns, which the database finds through an index.
    """
    beginnings = {_before_wildcard(pattern) for pattern in patterns or ("",)}
    # A beginning is dropped if it is longer than another one that its keys have as well.
    prefixes = [p for p in beginnings if not any(p != q and p.startswith(q) for q in beginnings)]
    found = [
        map(attrgetter("row"), schedules.list(**conditions, prefix=prefix, order=order))
        for prefix in prefixes
    ]
    by_key = selection_of(status=conditions["status"], order=order).sorted_by_key
    rows = watch(heapq.merge(*found, key=attrgetter("key") if by_key else _time_of))
    return (row for row in rows if not patterns or any(matches(row.key, each) for each in patterns))


def _before_wildcard(pattern: str) -> str:
    ends = (pattern.find(wildcard) for wildcard in _WILDCARDS if wildcard in pattern)
    return pattern[: min(ends, default=len(pattern))]


def _time_of(row: Row) -> tuple[bool, int, str]:
    return row.next_run_time is None, row.next_run_time or 0, row.key

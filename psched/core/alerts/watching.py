"""Reads the rows that the judge looks at, without their data.

The judge needs the options of rows, which contain what is expected of them. It does not need their
data, which can be large.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from itertools import islice
from typing import Protocol

from psched.core.model import RUNNING, Row
from psched.core.operations.overview import Overview
from psched.core.selection import Selection
from psched.core.store_protocol import Store

MOST_LEASED = 5000
"""The most leased rows that are read at once."""

Place = tuple[int, str]
"""The place of a row among those that are due: its ``next_run_time`` and its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRows:
    """The rows that run or are due at one moment; their ``data`` is None.

    Attributes:
        now: the time of the store's clock, in Unix seconds.
        leased: the rows that have an owner, also those whose lease has ended; at most
            `MOST_LEASED`, in any order.
        due: rows whose ``next_run_time`` has come, whatever their status is, the oldest first.
    """

    now: float
    leased: Sequence[Row] = ()
    due: Sequence[Row] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPage:
    """A part of all rows; the ``data`` of its rows is None.

    Attributes:
        rows: the rows.
        following: where the next page begins, in a form that only the store understands; None if
            this is the last page.
    """

    rows: Sequence[Row] = ()
    following: object = None


class ReadsLightly(Protocol):
    """The attribute ``light_reads`` of a `Store`: it cheaply reads rows without their data.

    Without it, `psched.core.operations.overview.overview_of`, `active_rows`, `row_page` and
    `light_rows` read listings, which can take longer.
    """

    def overview(self, limit: int) -> Overview:
        """What runs, what is late and what is next: at most ``limit`` rows of each kind.

        The cost must not grow with the number of rows, except of leased ones.
        """
        ...

    def active_rows(self, after: Place | None, limit: int) -> ActiveRows:
        """The rows that run, and at most ``limit`` that are due; without ``after``, the first ones.

        The cost must not grow with the number of other rows.
        """
        ...

    def row_page(self, begin: object, limit: int, mentioning: str | None) -> RowPage:
        """A page of all rows. A row that exists while all pages are read is on one of them.

        Args:
            begin: where the page begins, see `RowPage.following`; None means the first page.
            limit: about how many rows the page covers.
            mentioning: a text of letters; only rows whose ``options`` contain it are returned. None
                means all rows.
        """
        ...

    def light_rows(self, keys: Sequence[str]) -> Mapping[str, Row]:
        """The rows with these keys, by key; keys that have no row are missing in the result."""
        ...


def active_rows(store: Store, after: Place | None, limit: int) -> ActiveRows:
    """The rows that run or are due; see `ReadsLightly.active_rows`."""
    if store.light_reads is not None:
        return store.light_reads.active_rows(after, limit)
    now = store.now()
    leased = store.rows(Selection(statuses=frozenset({RUNNING}), limit=MOST_LEASED))
    overdue = (row for row in store.rows() if (row.next_run_time or 0) <= now)
    due = (row for row in overdue if row.next_run_time is not None and _is_after(row, after))
    return ActiveRows(
        now=now,
        leased=[*map(_light, leased)],
        due=[*map(_light, islice(due, limit))],
    )


def row_page(store: Store, begin: object, limit: int, mentioning: str | None) -> RowPage:
    """A page of all rows; see `ReadsLightly.row_page`."""
    if store.light_reads is not None:
        return store.light_reads.row_page(begin, limit, mentioning)
    last = begin if isinstance(begin, str) else ""
    rows = (row for row in store.rows(Selection(by_key=True)) if row.key > last)
    page = [*islice(rows, limit)]
    return RowPage(
        rows=[_light(row) for row in page if _mentions(row, mentioning)],
        following=page[-1].key if len(page) == limit else None,
    )


def light_rows(store: Store, keys: Sequence[str]) -> Mapping[str, Row]:
    """The rows with these keys; see `ReadsLightly.light_rows`."""
    if not keys:
        return {}
    if store.light_reads is not None:
        return store.light_reads.light_rows(keys)
    return {key: _light(row) for key, row in store.look(keys).items()}


def _is_after(row: Row, place: Place | None) -> bool:
    return place is None or (row.next_run_time or 0, row.key) > place


def _mentions(row: Row, text: str | None) -> bool:
    options = row.options or ""
    if text is None:
        return True
    return (text.encode() in options) if isinstance(options, bytes) else (text in options)


def _light(row: Row) -> Row:
    return changed(row, data=None)

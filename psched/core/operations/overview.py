"""What runs, what is late and what is next: the answer to one question to the store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from itertools import islice
from math import floor

from psched.core.model import PAUSED, QUARANTINED, RUNNING, Row
from psched.core.selection import Selection
from psched.core.store_protocol import Store

MOST_COUNTED = 1000
"""Rows are counted up to this number, so that the count is cheap."""

COUNTED = (PAUSED, QUARANTINED)
"""The statuses whose rows are counted."""

DUE = "due"
"""The name of the number of due rows in `Overview.counts`; it is no status."""

DURATIONS = 20
"""The most runs of a schedule from which its usual duration is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What a store contains at one moment; ``data`` and ``options`` of its rows are None.

    Attributes:
        now: the time of the store's clock, in Unix seconds.
        running: rows that are leased, the oldest claim first.
        late: rows that are due but not leased, or whose lease has ended without a settle; the
            oldest first.
        following: rows that fall due later and are not leased, the earliest first.
        paused: rows whose status is ``paused``, by key.
        counts: the number of rows by status, for each of `COUNTED`; of running rows
            (`psched.core.model.RUNNING`), and of due rows (`DUE`). `MOST_COUNTED` means this number
            or more.
    """

    now: float
    running: Sequence[Row] = ()
    late: Sequence[Row] = ()
    following: Sequence[Row] = ()
    paused: Sequence[Row] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


def overview_of(store: Store, limit: int) -> Overview:
    """What a store contains now; see `psched.core.alerts.watching.ReadsLightly.overview`."""
    if store.light_reads is not None:
        return store.light_reads.overview(limit)
    now = store.now()

    def read(**conditions: object) -> list[Row]:
        rows = store.rows(Selection(**conditions))  # type: ignore[arg-type]  # its fields
        return [*map(_without_payloads, rows)]

    leased = read(statuses=frozenset({RUNNING}), limit=MOST_COUNTED)
    due = read(due=True, limit=MOST_COUNTED)
    at_rest = {status: read(statuses=frozenset({status}), limit=MOST_COUNTED) for status in COUNTED}
    waiting = (_without_payloads(row) for row in store.rows() if _is_following(row, now))
    counts = {status: len(rows) for status, rows in at_rest.items()}
    return made_of(
        now,
        leased=leased,
        due=due,
        following=[*islice(waiting, limit)],
        paused=at_rest[PAUSED],
        counts={**counts, RUNNING: len(leased), DUE: len(due)},
        limit=limit,
    )


def made_of(
    now: float,
    *,
    leased: Sequence[Row],
    due: Sequence[Row],
    following: Sequence[Row],
    paused: Sequence[Row],
    counts: Mapping[str, int],
    limit: int,
) -> Overview:
    """Make an overview of rows that were read at nearly the same time.

    A row whose lease the worker of an extra run holds beside its own is neither shown nor counted
    as running, because the row of the extra run is. Nor is it late if that lease has ended, unless
    the row was late before.
    """
    ended = [row for row in due if row.next_run_time is None or row.next_run_time <= floor(now)]
    lost = {row.key for row in ended}
    late = [row for row in ended if not row.is_held(now)]
    running = [row for row in leased if row.key not in lost and (row.next_run_time or 0) > now]
    over = len(leased) - len(running)
    running.sort(key=lambda row: (row.claimed_at or now, row.key))
    return Overview(
        now=now,
        running=running[:limit],
        late=late[:limit],
        following=[row for row in following if not row.each_host][:limit],
        paused=paused[:limit],
        counts={
            **counts,
            RUNNING: counts[RUNNING] - over,
            DUE: counts[DUE] - (len(ended) - len(late)),
        },
    )


def _is_following(row: Row, now: float) -> bool:
    return row.owner is None and row.next_run_time is not None and row.next_run_time > now


def _without_payloads(row: Row) -> Row:
    return changed(row, data=None, options=None)

"""Why no worker has started an occurrence that was due: by the records of the workers."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from psched.base.quantities import format_duration
from psched.core.history.answer import Code
from psched.core.history.records import BEAT_INTERVAL, GONE_AFTER, RunRecord, WorkerRecord, nonce_of
from psched.core.hosts import hosts_of
from psched.core.model import Row
from psched.reports.why.facts import Case, Facts

Interval = tuple[float, float]
"""The start and the end of an interval; the end does not belong to it."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The instants that are in any of the intervals, which may overlap."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif start < end:
            found.append((start, end))
    return found


def within(intervals: Iterable[Interval], start: float, end: float) -> list[Interval]:
    """The part of the intervals from ``start`` to ``end``."""
    return union((max(a, start), min(b, end)) for a, b in intervals)


def without(intervals: Iterable[Interval], removed: Iterable[Interval]) -> list[Interval]:
    """The instants that are in ``intervals``, but not in ``removed``."""
    kept = union(intervals)
    for start, end in removed:
        kept = union(
            part
            for a, b in kept
            for part in ((a, min(b, start)), (max(a, end), b))
            if part[0] < part[1]
        )
    return kept


def length(intervals: Iterable[Interval]) -> float:
    """The sum of the lengths of the intervals."""
    return sum(end - start for start, end in intervals)


def crowded(intervals: Iterable[Interval], limit: int) -> list[Interval]:
    """The instants that are in at least ``limit`` of the intervals."""
    if limit <= 0:
        return [(-inf, inf)]
    changes = [change for start, end in intervals for change in ((start, 1), (end, -1))]
    found, number, since = list[Interval](), 0, 0.0
    # At one instant, ends come before starts, because an end does not belong to its interval.
    for instant, step in sorted(changes):
        if number < limit <= number + step:
            since = instant
        elif number + step < limit <= number:
            found.append((since, instant))
        number += step
    return union(found)


_BEFORE = 86_400
"""Workers that ended this many seconds before a wait are read, too: they tell since when no worker
was alive."""

_MOST_NAMED = 5
"""The largest number of types that a sentence lists."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why no worker has started an occurrence for some time; its text can follow ``because``."""

    code: Code
    text: str


def find_cause(case: Case, type_: str, since: float, until: float) -> Cause | None:
    """Find out why no worker has started an occurrence between two times in Unix seconds.

    If the wait is over, it is the cause that explains at least half of it, else the cause that
    applies now. None if the records of the workers show no such cause.
    """
    facts = case.facts
    if facts.no_history is not None or until <= since:
        return None
    workers = facts.workers_since(int(since) - _BEFORE)
    alive = _lives(workers, facts)
    lane = None if facts.row is None else facts.row.lane
    workers = [each for each in workers if each.may_run(lane)]
    takers = [each for each in workers if _takes(each, type_)]
    anybody = union(alive[each.nonce] for each in workers)
    window = [(since, until)]
    gap = without(window, anybody)
    wrong = without(without(window, union(alive[each.nonce] for each in takers)), gap)
    waits = until >= facts.now
    if _explains(gap, window, waits=waits):
        main = _main(gap, waits=waits)
        return _no_worker(case, anybody, main) if lane is None else _no_host(case, lane, main)
    if _explains(wrong, window, gap, waits=waits):
        start, end = _main(wrong, waits=waits)
        others = [each for each in workers if within([alive[each.nonce]], start, end)]
        return _no_taker(others, type_, "" if waits else f"between {case.span(start, end)}")
    busy = _busy(facts, takers, alive, since, until)
    # Between two tasks a slot is free for a moment, so the present moment alone does not tell.
    last = [(max(since, until - BEAT_INTERVAL), until)] if waits else window
    if not _explains(within(busy, *last[0]), last, waits=False):
        return None
    start, end = _main(busy, waits=waits)
    slots = sum(each.slots for each in takers if within([alive[each.nonce]], start, end))
    which = f"all slots ({slots}) of the workers that take its type"
    if waits:
        return Cause(Code.ALL_SLOTS_BUSY, f"{which} are busy")
    return Cause(Code.ALL_SLOTS_BUSY, f"{which} were busy between {case.span(start, end)}")


def newest_record(facts: Facts, type_: str) -> int | None:
    """When a worker that takes a type, has a free slot and seems to be alive wrote its record.

    The newest of these times, in Unix seconds; None if there is no such worker.
    """
    workers = facts.workers_since(int(facts.now) - GONE_AFTER)
    alive = _lives(workers, facts)
    seen = (
        each.seen
        for each in workers
        if alive[each.nonce][1] > facts.now and each.busy < each.slots and _takes(each, type_)
        if facts.row is None or each.may_run(facts.row.lane)
    )
    return max(seen, default=None)


def _explains(
    parts: Sequence[Interval],
    window: Sequence[Interval],
    others: Sequence[Interval] = (),
    *,
    waits: bool,
) -> bool:
    """Whether a cause that applied in parts of a window explains the wait."""
    if not parts:
        return False
    if waits:
        return parts[-1][1] >= window[-1][1]
    return length(parts) + length(others) >= length(window) / 2


def _main(parts: Sequence[Interval], *, waits: bool) -> Interval:
    """The last part if the wait goes on, else the longest one."""
    return parts[-1] if waits else max(parts, key=lambda part: part[1] - part[0])


def _lives(workers: Sequence[WorkerRecord], facts: Facts) -> dict[str, Interval]:
    """When each worker was alive, by its nonce.

    A worker that has let a lease end without a word was alive until then: it extends its leases, or
    gives them back.
    """
    lives = {each.nonce: _alive(each, facts.now) for each in workers}
    for row in facts.leased:
        end, nonce = row.next_run_time, nonce_of(row.owner or "")
        if end is not None and end <= facts.now and nonce in lives:
            start, until = lives[nonce]
            lives[nonce] = start, max(start, min(until, end))
    return lives


def _alive(worker: WorkerRecord, now: float) -> Interval:
    """When a worker was alive; a worker that was killed, until it wrote its last record."""
    if worker.ended is not None:
        return worker.started, worker.ended
    return worker.started, now + 1 if worker.seen >= now - GONE_AFTER else worker.seen


def _takes(worker: WorkerRecord, type_: str) -> bool:
    types = worker.taken_types
    return types is None or type_ in types


def _no_worker(case: Case, anybody: Sequence[Interval], gap: Interval) -> Cause:
    # The gap in the wait is a part of a longer time without workers.
    start = max((b for _, b in anybody if b <= gap[0]), default=-inf)
    after = min((a for a, _ in anybody if a >= gap[1]), default=inf)
    if start == -inf:
        text = "no worker is recorded as alive"
        if after != inf:
            text = f"no worker was alive before {case.time(after)}"
    elif after == inf:
        text = f"no worker has been alive since {case.time(start)}"
    else:
        text = f"no worker was alive between {case.span(start, after)}"
    return Cause(Code.NO_WORKER, text)


def _no_host(case: Case, lane: str, gap: Interval) -> Cause:
    """The cause that no host which may run the schedule was alive."""
    hosts = " or ".join(hosts_of(lane) or ())
    known = [each for each in case.facts.workers_since(0) if each.may_run(lane)]
    seen = max((_alive(w, case.facts.now)[1] for w in known if w.started <= gap[0]), default=None)
    if seen is None:
        return Cause(Code.NO_HOST, f"only {hosts} may run it, and no such host is known")
    ago = format_duration(max(1, int(case.facts.now - seen)))
    return Cause(Code.NO_HOST, f"only {hosts} may run it, last seen {ago} ago")


def _no_taker(others: Sequence[WorkerRecord], type_: str, when: str) -> Cause:
    """The cause that the workers which were alive do not take the type."""
    taken = sorted({name for each in others for name in each.taken_types or ()})
    more = len(taken) - _MOST_NAMED
    named = ", ".join(taken[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    text = f"no running worker takes the type {type_!r} (they take only {named})"
    if when:
        text = f"no worker that was alive {when} takes the type {type_!r} (they took only {named})"
    return Cause(Code.NO_WORKER_TAKES_TYPE, text)


def _busy(
    facts: Facts,
    takers: Sequence[WorkerRecord],
    alive: dict[str, Interval],
    since: float,
    until: float,
) -> list[Interval]:
    """When all slots of the workers that take the type were busy."""
    ran = facts.ran_between(since, until)
    if ran is None:
        return []
    occupied = defaultdict[str, list[Interval]](list)
    for nonce, interval in _occupied(ran, facts.leased, facts.now):
        occupied[nonce].append(interval)
    living = union(alive[each.nonce] for each in takers)
    free = union(
        part
        for each in takers
        for part in without([alive[each.nonce]], crowded(occupied[each.nonce], each.slots))
    )
    return without(within(living, since, until), free)


def _occupied(
    ran: Iterable[RunRecord], leased: Iterable[Row], now: float
) -> Iterable[tuple[str, Interval]]:
    """The times for which tasks have occupied a slot, with the nonce of the worker."""
    for record in ran:
        if record.started is not None:
            yield record.nonce, (record.started / 1000, record.ended / 1000)
    for row in leased:
        if row.owner is not None:
            # The time of the claim is missing if a worker of an older version has claimed the row.
            since = now - BEAT_INTERVAL if row.claimed_at is None else row.claimed_at
            until = now if row.next_run_time is None else min(row.next_run_time, now)
            yield nonce_of(row.owner), (since, until + 1)

"""The store on a service with conditional writes: `PlainStore`'s rules, written row by row."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from math import ceil, floor
from typing import Any, NamedTuple, TypeVar

from typing_extensions import override

from psched.base.clock import Clock
from psched.base.errors import (
    AlreadyExistsError,
    NotSupportedError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from psched.config import Config
from psched.core.model import Row, Settlement, Token
from psched.core.operations.pauses import PauseRule, PausesTypes, active_rules, rules_of
from psched.core.selection import EVERY_ROW, SelectedRows, Selection
from psched.core.store_protocol import Backlog, Claimed, ClaimUnknownError, Settled
from psched.stores.conditional.items import DUE, ENDED, Item, Table, place_of
from psched.stores.observations import FACT, Observations
from psched.stores.pages import Page, Pages
from psched.stores.plain import PlainStore, Rows, by_key, by_time

_log = logging.getLogger("psched.store")

T = TypeVar("T")

_BATCH = 100
"""The most rows that one claim leases: each needs a request of its own."""

_MOST_ADDED = 10_000
"""The most rows that one `add` accepts: it must have ended before `items.ABANDONED` seconds."""

_MOST_READ = 20_000
"""The most rows that a claim reads to find some that it can lease.

It reads many if rows of paused types are due, or of types that this worker does not claim.
"""

_PAGE = 500
"""The most rows that one request of a listing returns."""

_TRIES = 30
"""How often a row is read again because somebody else has changed it before it was written."""

_PAUSES = " pauses"
"""The name of the rules that pause types. No key begins with a blank."""


class _Change(NamedTuple):
    """A row as it was read, and what a rule has made of it: None if the rule has removed it."""

    seen: Item
    new: Item | None


class ConditionalStore(PlainStore, PausesTypes):
    """Schedules on a service with conditional writes.

    Each rule of `PlainStore` is applied to the rows that were read for it (`all` yields them), and
    what it has changed is written row by row. `now` is this host's clock, so it decides when a row
    is due. It does not decide when a lease ends: see `Observations`.
    """

    def __init__(self, table: Table, settings: Config, *, clock: Clock) -> None:
        self.pauses = self
        self.only = settings.only
        self._table = table
        self._clock = clock
        self._observed = Observations(clock)
        self._most_offset = settings.max_clock_offset
        self._is_off = False
        # What a rule works on: the items that were read, their rows, the pauses, and the time.
        self._items: Mapping[str, Item] = {}
        self._found: Rows = {}
        self._rules: Sequence[PauseRule] = ()
        self._moment: float | None = None

    @override
    def now(self) -> float:
        return self._time() if self._moment is None else self._moment

    @override
    @contextmanager
    def all(self) -> Iterator[Rows]:
        yield self._found

    @property
    def facts(self) -> Sequence[tuple[str, str]]:
        """Facts for `examine` that are the same on each such service, after its first answer."""
        offset = self._table.offset or 0.0
        clock = f"{offset:+.1f} s from this host's"
        if abs(offset) > self._most_offset:
            clock += (
                f", MORE than max_clock_offset ({self._most_offset:g} s): workers claim nothing"
            )
        return [
            ("claims by", "conditional writes"),
            FACT,
            ("clock", clock),
        ]

    # --- reading ---------------------------------------------------------------------------

    @override
    def look(self, keys: Sequence[str]) -> Mapping[str, Row]:
        self._table.begin()
        return {key: item.row for key, item in self._read(keys).items()}

    @override
    def rows(self, selection: Selection = EVERY_ROW) -> Iterator[Row]:
        """The rows of a selection. All rows are read and sorted, because the service cannot."""

        def read(place: object, most: int) -> Page[Row]:
            self._table.begin()
            page = self._table.scan(place, most)
            return Page([item.row for item in page.records if item.adding is None], page.place)

        order = by_key if selection.sorted_by_key else by_time
        return SelectedRows(_Sorted(Pages(read, None, _PAGE), order), selection, self.now())

    @override
    def count(self) -> int:
        return sum(1 for _ in self.rows())

    @override
    def backlog(self, limit: int) -> Backlog:
        self._table.begin()
        found = self._candidates(limit, 0)
        counted, _ = self._apply(found, partial(super().backlog, limit), judged=True)
        return counted

    @override
    def held(self, owner: str, keys: Sequence[str]) -> Sequence[Row]:
        self._table.begin()
        found = self._read(keys) if keys else self._all_of(owner)
        rows, _ = self._apply(found, partial(super().held, owner, keys), judged=True)
        return [found[row.key].row for row in rows]

    # --- clients ---------------------------------------------------------------------------

    @override
    def add(self, rows: Sequence[Row], *, nonce: str) -> None:
        """Insert all rows or none.

        Several rows are first written so that nobody sees them; when all are there, they are shown.
        Whoever repeats the call with the same nonce continues. What a program that died in between
        has left is removed after `items.ABANDONED` seconds.
        """
        if len(rows) > _MOST_ADDED:
            raise NotSupportedError(
                f"{len(rows)} schedules cannot be added all or none; add at most {_MOST_ADDED}"
            )
        self._apply({}, partial(super().add, rows, nonce=nonce))
        adding = nonce if len(self._found) > 1 else None
        new = [Item(row, adding=adding) for row in self._found.values()]
        inserted, hidden, gone, taken = list[Item](), list[Item](), list[Item](), list[str]()
        for item in new:
            self._table.begin()
            if self._table.insert(item):
                inserted.append(item)
                continue
            there = self._table.read([item.row.key]).get(item.row.key)
            if there is not None and there.adding == nonce:
                hidden.append(there)  # by an earlier call
                # It had inserted those before, too: it has shown them, and they were run already.
                gone += inserted
                inserted.clear()
            else:
                taken.append(item.row.key)
        # If an earlier call has written all rows and has shown some, the others are still hidden.
        is_refused = bool(taken) and (bool(inserted) or not hidden)
        for item in (*gone, *inserted, *hidden) if is_refused else gone:
            self._table.begin()
            self._table.remove(item)
        if is_refused:
            raise AlreadyExistsError(f"the key {taken[0]!r} is taken")
        if adding is not None:
            self._show([*inserted, *hidden])

    def _show(self, hidden: Sequence[Item]) -> None:
        for item in hidden:
            self._table.begin()
            try:
                shown = self._table.update(item, replace(item, adding=None))
            except StoreUnavailableError as error:
                raise UnknownOutcomeError(str(error)) from None
            if shown is None:
                raise StoreError(f"{item.row.key!r} was removed before all schedules were added")

    @override
    def replace(self, seen: Row, new: Row) -> bool:
        rule = super().replace
        return self._change([seen.key], lambda keys: dict.fromkeys(keys, rule(seen, new)))[seen.key]

    @override
    def delete(self, key: str) -> bool:
        rule = super().delete

        def delete(keys: Sequence[str]) -> Mapping[str, bool]:
            shown = self._found.get(key)
            is_removed = rule(key)
            marked = self._found.get(key)
            if shown is not None and marked is not None and marked is not shown:
                # An end that this process has only judged, and that nobody has written, stays so.
                stored = self._items[key].row
                is_due_now = marked.next_run_time != shown.next_run_time
                self._found[key] = replace(
                    marked,
                    next_run_time=marked.next_run_time if is_due_now else stored.next_run_time,
                    held_until=stored.held_until,
                )
            return dict.fromkeys(keys, is_removed)

        return self._change([key], delete, judged=True)[key]

    # --- workers ---------------------------------------------------------------------------

    @override
    def claim(
        self, owner: str, *, limit: int, alive_time: int, shortest: int, horizon: float
    ) -> Claimed:
        self._table.begin()
        limit = min(limit, _BATCH)
        found = self._candidates(limit, horizon)
        if self._is_clock_off() or not found:
            return Claimed()
        lease = {"limit": limit, "alive_time": alive_time, "shortest": shortest}
        rule = partial(super().claim, owner, horizon=horizon, **lease)
        claimed, changes = self._apply(found, rule, judged=True, leasing=True)
        by_keys = {change.seen.row.key: change for change in changes}
        leased, is_whole = list[Row](), True
        for row in claimed.rows:
            try:
                item = self._write(by_keys[row.key])
            except UnknownOutcomeError as error:
                unsure = [*(each.key for each in leased), row.key]
                raise ClaimUnknownError(owner, unsure) from error
            except StoreError:
                if not leased:
                    raise
                is_whole = False
                break
            if item is not None:
                leased.append(replace(item.row, next_run_time=row.next_run_time))
        keys = {row.key for row in leased}
        expired = {key: lease for key, lease in claimed.expired.items() if key in keys}
        more = claimed.more or not is_whole
        return replace(claimed, rows=leased, expired=expired, more=more)

    @override
    def extend(
        self, leases: Mapping[str, Token], *, alive_time: int, shortest: int
    ) -> frozenset[str]:
        rule = partial(super().extend, alive_time=alive_time, shortest=shortest)

        def extend(keys: Sequence[str]) -> Mapping[str, bool]:
            held = rule({key: leases[key] for key in keys})
            return {key: key in held for key in keys}

        return _chosen(self._change([*leases], extend, leasing=True))

    @override
    def settle(self, settlements: Sequence[Settlement]) -> Mapping[str, Settled]:
        rule, ends = super().settle, {end.key: end for end in settlements}
        return self._change([*ends], lambda keys: rule([ends[key] for key in keys]))

    @override
    def update_data(self, key: str, token: Token, data: str) -> bool:
        rule = super().update_data
        return self._change([key], lambda keys: dict.fromkeys(keys, rule(key, token, data)))[key]

    @override
    def hold(self, holds: Mapping[str, str], *, alive_time: int, shortest: int) -> frozenset[str]:
        rule = partial(super().hold, alive_time=alive_time, shortest=shortest)

        def hold(keys: Sequence[str]) -> Mapping[str, bool]:
            held = rule({key: holds[key] for key in keys})
            return {key: key in held for key in keys}

        return _chosen(self._change([*holds], hold, judged=True, leasing=True))

    @override
    def release(self, holds: Mapping[str, str]) -> None:
        rule = super().release

        def release(keys: Sequence[str]) -> Mapping[str, None]:
            rule({key: holds[key] for key in keys})
            return dict.fromkeys(keys)

        self._change([*holds], release)

    @override
    def purge(self, limit: int) -> int:
        self._table.begin()
        queue = self._table.queue(ENDED, floor(self.now()), limit)
        found = {item.row.key: item for _, item in islice(queue, limit)}
        for item in found.values():
            if item.adding is not None:
                self._table.remove(item)
        found = {key: item for key, item in found.items() if item.adding is None}
        _, changes = self._apply(found, partial(super().purge, limit), judged=True)
        return sum(self._write(change) is not None for change in changes)

    @override
    def recover(self, nonce: str, *, alive_time: int, retry_wait: float) -> Sequence[str]:
        rule = partial(super().recover, nonce, alive_time=alive_time, retry_wait=retry_wait)

        def recover(keys: Sequence[str]) -> Mapping[str, bool]:
            freed = rule()
            return {key: key in freed for key in keys}

        found = self._all_of(f"{nonce}.")
        return [*_chosen(self._change([*found], recover, judged=True))]

    # --- the rules that pause types --------------------------------------------------------

    @override
    def pause_rules(self) -> Sequence[PauseRule]:
        if self._moment is not None:  # those that were read together with the rows
            return self._rules
        self._table.begin()
        return rules_of(self._table.note(_PAUSES))

    @override
    def change_pause_rules(self, *, drop: Sequence[str], store: Sequence[PauseRule]) -> None:
        replaced = {*drop, *(rule.id for rule in store)}
        is_done = False
        while not is_done:  # the loop is repeated only if somebody else has changed the rules
            self._table.begin()
            seen = self._table.note(_PAUSES)
            kept = [rule for rule in rules_of(seen) if rule.id not in replaced]
            new = json.dumps([rule.to_json() for rule in (*kept, *store)])
            is_done = self._table.replace_note(_PAUSES, seen, new)

    # --- one rule, applied to rows ---------------------------------------------------------

    def _change(
        self,
        keys: Sequence[str],
        rule: Callable[[Sequence[str]], Mapping[str, T]],
        *,
        judged: bool = False,
        leasing: bool = False,
    ) -> dict[str, T]:
        """Read rows, apply a rule to them, and write them; again those that others have changed.

        ``rule`` returns an answer for each key that it gets. See `_apply` for the other arguments.
        """
        answered: dict[str, T] = {}
        left = [*keys]
        self._table.begin()
        for _ in range(_TRIES):
            if not left:
                return answered
            apply = partial(self._apply, judged=judged, leasing=leasing)
            answers, changes = apply(self._read(left), partial(rule, left))
            changed = {change.seen.row.key for change in changes}
            answered |= {key: answers[key] for key in left if key not in changed}
            left = []
            for change in changes:
                key = change.seen.row.key
                try:
                    is_written = self._write(change) is not None
                except StoreUnavailableError as error:
                    raise StoreBusyError(str(error), answered) from None
                if is_written:
                    answered[key] = answers[key]
                else:
                    left.append(key)
        raise StoreBusyError("others change the same rows all the time", answered)

    def _apply(
        self,
        items: Mapping[str, Item],
        rule: Callable[[], T],
        *,
        judged: bool = False,
        leasing: bool = False,
    ) -> tuple[T, Sequence[_Change]]:
        """Apply a rule to rows that were read; return its answer, and the rows that it has changed.

        ``judged`` tells that the rule judges if leases have ended: it then gets a lease that this
        process must still observe with a later end. ``leasing`` tells that the rule writes a lease,
        or a hold, in each row that it changes.
        """
        moment = self._time()
        shown = {key: self._judged(i, moment) if judged else i.row for key, i in items.items()}
        self._items, self._found, self._moment = items, dict(shown), moment
        try:
            answer = rule()
        finally:
            self._moment = None
        changes = list[_Change]()
        for key, row in shown.items():
            new, seen = self._found.get(key), items[key]
            if new is None:
                changes.append(_Change(seen, None))
            elif new is not row:
                item = replace(seen, row=new)
                if leasing:
                    end = (new.next_run_time if new.owner is not None else new.held_until) or 0
                    # The end of a lease is floor(now) + alive_time + 1.
                    item = replace(item, beat=seen.beat + 1, lease=end - floor(moment) - 1)
                changes.append(_Change(seen, item))
        return answer, changes

    def _write(self, change: _Change) -> Item | None:
        """Write a change; None if somebody else has changed the row before."""
        if change.new is None:
            if not self._table.remove(change.seen):
                return None
            self._observed.forget(change.seen.row.key)
            return change.seen
        item = self._table.update(change.seen, change.new)
        if item is not None:
            self._left(item)  # from now on
        return item

    def _left(self, item: Item) -> float:
        """For how many seconds the row's lease, or hold, must still be seen unchanged."""
        row = item.row
        if row.owner is None and row.held_by is None:
            self._observed.forget(row.key)
            return 0.0
        state = row.owner, row.fence, row.held_by, item.beat
        return self._observed.left(row.key, state, item.lease)

    def _judged(self, item: Item, moment: float) -> Row:
        """A row with the end of its lease, or hold, by this process's observation."""
        row, left = item.row, self._left(item)
        if left <= 0:
            return row
        end = ceil(moment + left)
        if row.owner is None:
            return replace(row, held_until=max(row.held_until or 0, end))
        if row.next_run_time is None:
            return row
        return replace(row, next_run_time=max(row.next_run_time, end))

    def _read(self, keys: Sequence[str]) -> Mapping[str, Item]:
        """The rows with these keys, without those that are being added."""
        found = self._table.read(keys)
        return {key: item for key, item in found.items() if item.adding is None}

    def _all_of(self, holder: str) -> Mapping[str, Item]:
        """The rows whose owner, or holder, begins with a text; every row is read."""

        def read(place: object, most: int) -> Page[Item]:
            self._table.begin()
            return self._table.scan(place, most, holder=holder)

        return {item.row.key: item for item in Pages(read, None, _PAGE)}

    def _candidates(self, limit: int, horizon: float) -> Mapping[str, Item]:
        """Rows that may be due, and the next that will be; if there are that many, one too many."""
        now, found, claimable = self.now(), dict[str, Item](), 0
        queue = self._table.queue(DUE, ceil(now + horizon), limit + 1)
        for read, (at, item) in enumerate(queue, 1):
            if read == 1:
                self._rules = rules_of(self._table.note(_PAUSES))
            kind, place = item.row.type, place_of(item)
            is_wanted = not self.only or kind in self.only
            if is_wanted and not active_rules(self._rules, kind, now):
                found[item.row.key] = item  # the others are not observed either
                if at > now:
                    break  # it tells when the next row is due
                # A place that was changed by hand must not hide those behind it.
                if place is not None and place.at <= now and self._judged(item, now) is item.row:
                    claimable += 1
            if claimable > limit or read >= _MOST_READ:
                break
        return found

    def _time(self) -> float:
        """This host's time; that of the service's last answer if this host's is too far off.

        A task can end on a host whose clock has become wrong. Else its next run would wait for that
        clock, and so would the lease of a task whose host then dies.
        """
        offset = self._table.offset or 0.0
        return self._clock.wall() + (offset if abs(offset) > self._most_offset else 0.0)

    def _is_clock_off(self) -> bool:
        """Whether this host's clock differs too much from the service's; a change is logged."""
        offset = self._table.offset or 0.0
        is_off = abs(offset) > self._most_offset
        if is_off and not self._is_off:
            _log.error(
                "this host's clock is %.1f s %s that of the store, and max_clock_offset is %g s:"
                " this worker claims nothing until the clock is right",
                abs(offset),
                "behind" if offset > 0 else "ahead of",
                self._most_offset,
            )
        elif self._is_off and not is_off:
            _log.info("this host's clock is right again")
        self._is_off = is_off
        return is_off


class _Sorted(Iterator[Row]):
    """Rows in an order: at the first ``next``, all are read.

    If they cannot be read, the next call continues where this one has stopped.
    """

    def __init__(self, rows: Iterable[Row], order: Callable[[Row], Any]) -> None:
        self._rows = rows
        self._order = order
        self._read: list[Row] = []
        self._sorted: Iterator[Row] | None = None

    @override
    def __next__(self) -> Row:
        if self._sorted is None:
            for row in self._rows:
                self._read.append(row)  # what was read before an error stays
            self._sorted = iter(sorted(self._read, key=self._order))
        return next(self._sorted)


def _chosen(answers: Mapping[str, bool]) -> frozenset[str]:
    return frozenset(key for key, is_chosen in answers.items() if is_chosen)

"""Keeps claims fast while very many entries of the index of times are of no use to them.

**Old entries.** PostgreSQL, MariaDB and MySQL keep each version of a row that an open transaction
might still read. So while somebody dumps the database, or has forgotten a transaction, the index of
times has entries of all rows that were due meanwhile, and a search from its beginning passes all of
them.

So a worker that has claimed many rows continues each claim where the last one has ended
(`Continuing`). Nearly all rows fall due at the present time, so that nothing is left before that
place but what

- was given an earlier time: a row inserted by plain SQL, a schedule that is resumed,
- is claimable again: a lease or a hold has ended by itself, or a claim was rolled back,
- was committed late, by a transaction that has read the clock long before.

A look at everything finds these rows. It may take a twentieth of the time, so that it takes place
nearly all the time if there are few old entries. If there are so many that it would delay tasks, it
goes over them step by step, from the place back to the beginning.

**Paused types.** A claim passes over the due rows of paused types, because only the row contains
its type. With a million of them, it takes seconds, and a claim that takes longer than
``database_timeout`` claims nothing at all. So once a claim was slow, and rules hold back many due
rows, the claims of this worker have two parts (`PassingOver`):

- Each claim looks for what has fallen due since `_Backlog.passed`, a time that follows the store's
  clock at a distance of `_PASSED_SLACK` seconds.
- A search goes over the rows that fell due before, one slice with each claim. It finds rows that
  were given an earlier time, and rows that were committed late. The first search begins at once;
  when one has ended, the next one begins later.

A worker without such a backlog sends no further query. With one, each claim first reads the rules:
when they have changed, rows that were held back are due, and so all of this begins anew.

None of it is stored; each worker finds it out by itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from math import inf
from typing import Any

from sqlalchemy import TextClause

from psched.base.clock import Clock
from psched.base.errors import StoreError
from psched.core.store_protocol import Claimed
from psched.stores.sql.claims import EVERYWHERE, CompareAndSwap, Place, Range, Strategy, Terms
from psched.stores.sql.connector import Connector
from psched.stores.sql.pauses import HeldBack, held_back_by
from psched.stores.sql.statements import Statements

_MANY = 300
"""A worker that has claimed fewer rows begins each claim at the beginning."""

_SLOW = 0.1
"""A look that took so many seconds says that there are many entries to pass."""

_SLACK = 2
"""Each claim looks for rows until so many seconds after they fell due, because a transaction reads
the clock before it is committed, and the times are whole seconds."""

_PAUSE = 20
"""After a look, no look takes place for so many times as long as it took."""

_LONG = 0.05
"""The seconds that a look should take at most."""

_NEAR = 16
"""The seconds of due times that a step covers at first."""

_GROWTH = 8


@dataclass(slots=True)
class _Search:
    """A look at everything that is made step by step.

    Attributes:
        until: the next step is about rows that fell due until then, in Unix seconds.
        width: for how many seconds before.
        took: how many seconds all steps so far have taken.
    """

    until: int
    width: int = _NEAR
    took: float = 0.0


class Continuing:
    """Claims due rows with another strategy, and continues where the last claim has ended.

    Attributes:
        front: the place where the next claim continues.
    """

    def __init__(
        self, inner: Strategy, connector: Connector, now: Callable[[], float], clock: Clock
    ) -> None:
        self.name = inner.name
        self._inner = inner
        self._now = now
        self._clock = clock
        self.front: Place = EVERYWHERE.after
        # A file has no old entries.
        self._many: float = inf if connector.dialect.is_file else _MANY
        self._claimed = 0
        self._next_look = 0.0
        self._search: _Search | None = None

    @property
    def begin(self) -> Place:
        """Where others begin to search: the place, if a look at everything takes long."""
        return EVERYWHERE.after if self._search is None else self.front

    @property
    def is_quick(self) -> bool:
        """Whether the next claim is one claim of the other strategy, and looks nowhere else."""
        return self._search is None or self._clock.monotonic() < self._next_look

    def claim(self, terms: Terms, within: Range = EVERYWHERE) -> Claimed:
        """Claim rows that are due; see `Strategy.claim`."""
        if self._claimed < self._many:
            return self._look(terms, within)
        if self._clock.monotonic() >= self._next_look:
            if self._search is None:
                return self._look(terms, within)
            # What is sent with a claim must be sent once, and a look back can be several claims.
            if not terms.first and (found := self._look_back(terms, within, self._search)).rows:
                return found
        rest = within._replace(after=max(self.front, within.after))
        claimed = self._inner.claim(terms, rest)
        self._note(claimed)
        return claimed

    def _look(self, terms: Terms, within: Range) -> Claimed:
        """Claim rows wherever they are."""
        begun = self._clock.monotonic()
        try:
            claimed = self._inner.claim(terms, within)
        except StoreError:
            self._looked(begun)
            raise
        self._note(claimed)
        self._looked(begun)
        return claimed

    def _looked(self, begun: float) -> None:
        """Decide when and how to look next, after a look at everything that began then."""
        ended = self._clock.monotonic()
        self._next_look = ended + _PAUSE * (ended - begun)
        if ended - begun >= _SLOW:
            self._claimed += _MANY // 3
        if ended - begun > _LONG and self._claimed >= self._many:
            if self.front == EVERYWHERE.after:  # no claim was answered yet
                self.front = _latest(self._now())
            self._search = _Search(until=self.front[0])

    def _look_back(self, terms: Terms, within: Range, search: _Search) -> Claimed:
        """Claim rows before the place; make steps until one finds some, or they took too long."""
        begun = self._clock.monotonic()
        try:
            # What was committed late is near. It is looked for each time.
            near = max(self.front[0] - _NEAR, within.after[0])
            claimed = self._step(terms, within, near, self.front[0])
            while not claimed.rows:
                claimed = self._next_step(terms, within, search)
                is_over = self._search is not search
                if is_over or self._clock.monotonic() - begun >= _LONG / 2:
                    break
        except StoreError:
            search.width = max(1, search.width // _GROWTH)
            self._next_look = self._clock.monotonic() + 1
            raise
        now = self._clock.monotonic()
        self._next_look = now + _PAUSE * (now - begun)
        return claimed

    def _next_step(self, terms: Terms, within: Range, search: _Search) -> Claimed:
        begun = self._clock.monotonic()
        first = max(search.until - search.width, within.after[0])
        claimed = self._step(terms, within, first, search.until)
        took = self._clock.monotonic() - begun
        search.took += took
        if claimed.rows:
            return claimed  # the next step is the same, because there may be more rows
        if took > _LONG:
            search.width = max(1, search.width // 2)
        elif took < _LONG / _GROWTH:
            search.width *= _GROWTH
        search.until = first
        if first == within.after[0]:  # it has reached the beginning
            self._search = None if search.took < _LONG else _Search(until=self.front[0])
        return claimed

    def _step(self, terms: Terms, within: Range, first: int, until: int) -> Claimed:
        """Claim rows that fell due between two times."""
        claimed = self._inner.claim(terms, Range(max((first, ""), within.after), until))
        if claimed.now is not None:
            self.front = min(self.front, _latest(claimed.now))
        if claimed.more and claimed.rows:
            self._continue_after(claimed)  # there may be many
        return changed(claimed, more=bool(claimed.rows))

    def _note(self, claimed: Claimed) -> None:
        """Remember where the next claim continues, after a claim of all that is due."""
        self._claimed += len(claimed.rows)
        if claimed.now is None:
            return
        if not claimed.more:
            self.front = _latest(claimed.now)
        elif claimed.rows:
            self._continue_after(claimed)
            self.front = min(self.front, _latest(claimed.now))

    def _continue_after(self, claimed: Claimed) -> None:
        last = claimed.rows[-1]
        if last.next_run_time is not None:
            self.front = last.next_run_time, last.key


def _latest(now: float) -> Place:
    """The last place where a claim can continue. It follows the store's clock, also back."""
    return int(now) - _SLACK, ""


_SLOW_CLAIM = 0.03
"""After a claim that took so many seconds, the rules are read."""

_LOOK_INTERVAL = 10.0
"""Seconds that pass at least before they are read again, if claims are slow for another reason."""

_BACKLOG = 2000
"""If so many rows have been due longest, and nearly all of them are paused, they are a backlog."""

_NEARLY_ALL = 0.9

_PASSED_SLACK = 10
"""Rows are looked for by every claim until so many seconds after they fell due, because the
transaction that has added a row may be committed some time after it has read the clock."""

_SMALLEST, _LARGEST = 250, 20_000
"""The least and the most rows of a slice."""

_SLICE_TIME = 0.02
"""Seconds that reading a slice should take."""

_FIRST = 20
"""While the search rests, each claim reads so many rows that have been due longest."""

_REST = 20
"""The search rests for so many times as long as it took."""

_LONGEST_REST = 60.0
"""The most seconds for which the search rests."""


@dataclass(slots=True)
class _Backlog:
    """Many due rows of paused types, and those of other hosts among them.

    Attributes:
        held_back: the rules when the backlog was found.
        passed: the search finds what was due until this time, in Unix seconds of the store's clock.
        until: the search that is going on ends at this time.
        place: time and key of the last row that the search has read; None at its beginning.
        seen: how many rows it has read.
        took: for how many seconds it has read them.
        next_search: when the next one begins, in seconds of the monotonic clock.
        size: the number of rows of the next slice.
    """

    held_back: HeldBack
    passed: int
    until: int
    place: tuple[int, str | bytes] | None = None
    seen: int = 0
    took: float = 0.0
    next_search: float = -inf
    size: int = _SMALLEST


class PassingOver:
    """Claims due rows with another strategy, and quickly passes over those of paused types.

    Args:
        by_key: claims the rows that the search has found.
        held_back: the statement that reads which rules hold.
        only: the types of the rows that are claimed; empty means all types.
        sends_first: whether a claim can send other statements with its own, see `Terms.first`.
    """

    def __init__(
        self,
        inner: Continuing,
        by_key: CompareAndSwap,
        sql: Statements,
        held_back: TextClause,
        *,
        connector: Connector,
        clock: Clock,
        only: Sequence[str],
        sends_first: bool,
    ) -> None:
        self.sends_first = sends_first
        self.name = inner.name
        self._inner = inner
        self._by_key = by_key
        self._sql = sql
        self._held_back = held_back
        self._query = connector.query
        self._clock = clock
        self._only = frozenset(only)
        self._backlog: _Backlog | None = None
        # The first claim of a worker could already take too long.
        self._is_unsure = True
        self._next_look = -inf

    @property
    def after(self) -> Place:
        """Nearly all rows up to this place are paused, or are claimed."""
        return max(self._inner.begin, self._passed.after)

    @property
    def _passed(self) -> Range:
        """The rows that each claim looks for."""
        return EVERYWHERE if self._backlog is None else Range((self._backlog.passed, ""))

    @property
    def is_quick(self) -> bool:
        """Whether `claim_quickly` can be called: no search is needed."""
        return self._backlog is None and self._inner.is_quick and not self._is_to_look

    @property
    def _is_to_look(self) -> bool:
        return self._is_unsure and self._clock.monotonic() >= self._next_look

    def claim_quickly(self, terms: Terms) -> Claimed:
        """Claim as `claim` does, and send nothing but what claims the rows."""
        begun = self._clock.monotonic()
        self._is_unsure = True  # also if an error is raised
        claimed = self._inner.claim(terms)
        self._is_unsure = self._clock.monotonic() - begun >= _SLOW_CLAIM
        return claimed

    def claim(self, terms: Terms) -> Claimed:
        """Claim rows that are due; see `Strategy.claim`."""
        if self._backlog is not None:
            self._check(self._backlog)
        if self._backlog is None and self._is_to_look:
            self._next_look = self._clock.monotonic() + _LOOK_INTERVAL
            self._backlog = self._look()
        if (backlog := self._backlog) is None:
            return self.claim_quickly(terms)
        if backlog.held_back.everything:
            return Claimed()
        is_due = self._clock.monotonic() >= backlog.next_search
        find = self._search if is_due else self._first
        claimed = self._claim_found(find, backlog, terms)
        if claimed.rows:
            return claimed
        claimed = self._inner.claim(terms, self._passed)
        if claimed.more:
            return claimed
        # All that was due, and not paused, has been claimed by somebody.
        backlog.passed = max(backlog.passed, backlog.held_back.now - _PASSED_SLACK)
        return changed(claimed, more=backlog.place is not None)

    def _claim_found(
        self,
        find: Callable[[_Backlog, int], Sequence[str]],
        backlog: _Backlog,
        terms: Terms,
    ) -> Claimed:
        """Claim the rows that the search finds in its next slice, or that are at the beginning."""
        before = changed(backlog)
        keys = find(backlog, terms.limit)
        if not keys:
            return Claimed()
        try:
            return changed(self._by_key.claim_among(keys, terms), more=True)
        except StoreError:
            self._backlog = before  # the slice is read again
            raise

    def _check(self, backlog: _Backlog) -> None:
        """Forget the backlog if the rules have changed, or if the clock was set back."""
        found = held_back_by(self._query(self._held_back, {}))
        if found.names != backlog.held_back.names or found.now < backlog.held_back.now:
            self._backlog, self._is_unsure, self._next_look = None, True, -inf
        else:
            backlog.held_back = found

    def _look(self) -> _Backlog | None:
        """Find out whether rules hold back very many rows."""
        found = held_back_by(self._query(self._held_back, {}))
        if not found.names:
            return None
        values = {"until": found.now, "limit": _BACKLOG}
        rows = self._query(self._sql.first_overdue, values)
        passed_over = sum(
            found.everything or type_ in found.types or not self._serves(lane)
            for *_, type_, lane in rows
        )
        if len(rows) < _BACKLOG or passed_over < _NEARLY_ALL * _BACKLOG:
            return None
        passed = found.now - _PASSED_SLACK
        return _Backlog(held_back=found, passed=passed, until=passed)

    def _search(self, backlog: _Backlog, limit: int) -> Sequence[str]:
        """Read the next slice of the backlog; return the keys of rows that are not paused."""
        begun = self._clock.monotonic()
        values: dict[str, Any] = {"until": backlog.until, "limit": backlog.size}
        statement = self._sql.first_overdue
        if backlog.place is not None:
            statement = self._sql.overdue
            values |= dict(zip(("time", "id"), backlog.place, strict=True))
        rows, keys = self._query(statement, values), list[str]()
        is_last = len(rows) < backlog.size
        for count, (place, time, key, type_, lane) in enumerate(rows, 1):
            backlog.place = time, place
            if self._takes(backlog, type_, lane):
                keys.append(key)
            if len(keys) == limit:
                is_last &= count == len(rows)
                break
        ended = self._clock.monotonic()
        backlog.seen += len(rows)
        backlog.took += ended - begun
        self._choose_size(backlog, ended - begun)
        if is_last:
            self._rest(backlog, ended)
        return keys

    def _first(self, backlog: _Backlog, limit: int) -> Sequence[str]:
        """Return the keys of rows that are not paused, among those that have been due longest.

        Plain SQL inserts rows that have been due for ever: their ``next_run_time`` is 0.
        """
        rows = self._query(self._sql.first_overdue, {"until": backlog.passed, "limit": _FIRST})
        return [key for *_, key, type_, lane in rows if self._takes(backlog, type_, lane)][:limit]

    def _takes(self, backlog: _Backlog, type_: str, lane: str | None) -> bool:
        is_paused = type_ in backlog.held_back.types
        return not is_paused and (not self._only or type_ in self._only) and self._serves(lane)

    def _serves(self, lane: str | None) -> bool:
        return lane is None or lane in self._sql.served[0]

    def _choose_size(self, backlog: _Backlog, took: float) -> None:
        if took > 2 * _SLICE_TIME:
            backlog.size = max(_SMALLEST, backlog.size // 2)
        elif took < _SLICE_TIME / 2:
            backlog.size = min(_LARGEST, backlog.size * 2)

    def _rest(self, backlog: _Backlog, now: float) -> None:
        """Prepare the next search; forget the backlog if only a few rows are left of it."""
        if backlog.seen < _BACKLOG:
            self._backlog = None
        backlog.next_search = now + min(_LONGEST_REST, _REST * backlog.took)
        backlog.until, backlog.place = backlog.passed, None
        backlog.seen, backlog.took = 0, 0.0

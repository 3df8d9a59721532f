"""Keeps claims fast while the database keeps what nobody needs any more.

PostgreSQL, MariaDB and MySQL keep each version of a row that an open transaction might still read.
So while somebody dumps the database, or has forgotten a transaction, the index of times has entries
of all rows that were due meanwhile, and a search from its beginning passes all of them.

So a worker that has claimed many rows continues each claim where the last one has ended. Nearly all
rows fall due at the present time, so that nothing is left before that place but what

- was given an earlier time: a row inserted by plain SQL, a schedule that is resumed,
- is claimable again: a lease or a hold has ended by itself, or a claim was rolled back,
- was committed late, by a transaction that has read the clock long before.

A look at everything finds these rows. It may take a twentieth of the time, so that it takes place
nearly all the time if there are few old entries. If there are so many that it would delay tasks, it
goes over them step by step, from the place back to the beginning.

None of it is stored; each worker finds it out by itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from math import inf

from psched.base.clock import Clock
from psched.base.errors import StoreError
from psched.core.store_protocol import Claimed
from psched.stores.sql.claims import EVERYWHERE, Place, Range, Strategy
from psched.stores.sql.connector import Connector

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

    Args:
        now: reads the time of the store's clock.

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

    def claim(
        self,
        owner: str,
        limit: int,
        lease: Mapping[str, int],
        horizon: float,
        within: Range = EVERYWHERE,
    ) -> Claimed:
        """Claim rows that are due; see `Strategy.claim`."""
        claim = partial(self._inner.claim, owner, limit, lease, horizon)
        if self._claimed < self._many:
            return self._look(claim, within)
        if self._clock.monotonic() >= self._next_look:
            if self._search is None:
                return self._look(claim, within)
            found = self._look_back(claim, within, self._search)
            if found.rows:
                return found
        claimed = claim(within._replace(after=max(self.front, within.after)))
        self._note(claimed)
        return claimed

    def _look(self, claim: Callable[[Range], Claimed], within: Range) -> Claimed:
        """Claim rows wherever they are."""
        begun = self._clock.monotonic()
        try:
            claimed = claim(within)
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

    def _look_back(
        self, claim: Callable[[Range], Claimed], within: Range, search: _Search
    ) -> Claimed:
        """Claim rows before the place; make steps until one finds some, or they took too long."""
        begun = self._clock.monotonic()
        try:
            # What was committed late is near. It is looked for each time.
            near = max(self.front[0] - _NEAR, within.after[0])
            claimed = self._step(claim, within, near, self.front[0])
            while not claimed.rows:
                claimed = self._next_step(claim, within, search)
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

    def _next_step(
        self, claim: Callable[[Range], Claimed], within: Range, search: _Search
    ) -> Claimed:
        begun = self._clock.monotonic()
        first = max(search.until - search.width, within.after[0])
        claimed = self._step(claim, within, first, search.until)
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

    def _step(
        self, claim: Callable[[Range], Claimed], within: Range, first: int, until: int
    ) -> Claimed:
        """Claim rows that fell due between two times."""
        claimed = claim(Range(max((first, ""), within.after), until))
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

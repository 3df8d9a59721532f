"""The moving itself: what the package's docstring promises, page by page."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from psched.base.clock import Clock
from psched.base.errors import (
    AlreadyExistsError,
    ConfigError,
    SchemaError,
    StoreError,
    TransientStoreError,
)
from psched.base.retry import retry_while_unavailable
from psched.config import Config, tls, urls
from psched.contrib.perfectsched.migration.destination import Copy, Destination
from psched.contrib.perfectsched.migration.judging import Judge, Left, Move
from psched.contrib.perfectsched.migration.kinds import Old, is_marked
from psched.contrib.perfectsched.migration.source import Source
from psched.stores.sql.chunks import divided

T = TypeVar("T")

_LOOKS = 10
"""How often the whole old table is looked at without waiting in between."""

_LOOK_AGAIN = 1.0
"""Seconds between two looks at rows that are running."""

_TRIES = 6
"""How often a page is tried while a database is unavailable."""


class Migration:
    """Moves the rows of one table into another.

    Args:
        source: the old table.
        destination: psched's.
        settings: the installation's.
        lease_time: the longest lease of an old worker, seconds.
        clock: measures how long we wait.
        progress: told after every page how many rows were looked at and moved.

    Attributes:
        moved: rows that were moved so far.
        others: copies at rest that came from elsewhere, by their origin.
        idle: whether rows had what psched keeps and does not act upon.
        late: rows that had waited so long that `late_note` concerns them.
        late_note: what becomes of those, for people.
        title: what is moved, for people.
    """

    def __init__(
        self,
        source: Source,
        destination: Destination,
        settings: Config,
        *,
        lease_time: int,
        clock: Clock,
        progress: Callable[[int, int], None],
    ) -> None:
        self._source = source
        self._destination = destination
        self._judge = Judge(source.kind, source.origin, settings, lease_time)
        self._clock = clock
        self._progress = progress
        self.moved = 0
        self.idle = False
        self.late = 0
        self.late_note = source.kind.late
        self.title = f"{source.kind.name}: {source.title}"
        self.others: Counter[str] = Counter()

    def run(self, wait: float) -> Left:
        """Move what can be moved, and look again at what is running for so many seconds.

        Returns:
            What is left in the old table.
        """
        deadline = self._clock.monotonic() + wait
        looks = 0
        while True:
            before, left = self.moved, self.look()
            looks += 1
            # Rows may have been added behind us, or changed under our hands.
            if looks < _LOOKS and (self.moved > before or left.changed):
                continue
            if not left.running + left.changed or self._clock.monotonic() >= deadline:
                return left
            self._clock.sleep(_LOOK_AGAIN)

    def look(self, *, dry: bool = False) -> Left:
        """Go through the whole old table once.

        Args:
            dry: move nothing, only look.
        """
        self._repair(dry=dry)
        total, last = Left(), None
        while True:
            page, left = self._patiently(partial(self._go_through, last, dry=dry))
            if not page:
                return total
            last = page[-1]
            total.add(left)
            self.idle |= left.idle > 0
            self.late += left.late
            self._progress(total.seen, self.moved)

    def _repair(self, *, dry: bool) -> None:
        """Release the copies whose rows were taken, withdraw those whose rows are gone."""
        self.others.clear()
        last = ""
        while copies := self._patiently(partial(self._destination.unreleased, last)):
            last = copies[-1].key
            ours = [copy for copy in copies if copy.origin == self._judge.origin]
            # One that is not at rest is no copy: somebody has set its status by SQL.
            others = (copy for copy in copies if copy.at_rest and copy not in ours)
            self.others.update(copy.origin for copy in others)
            if ours and not dry:
                self._patiently(partial(self._settle, ours))

    def _settle(self, copies: Sequence[Copy]) -> None:
        # Looked at after the copies, or one that has just been made would seem to have no row.
        olds = self._source.look([copy.key for copy in copies])
        self._destination.withdraw([copy for copy in copies if copy.key not in olds])
        self._finish([copy for copy in copies if self._is_taken(olds.get(copy.key))])

    def _go_through(self, after: Old | None, *, dry: bool) -> tuple[Sequence[Old], Left]:
        """Read a page and move what can be moved of it; may be repeated after any failure."""
        page, left = self._source.page(after), Left()
        left.seen = len(page)
        there = self._destination.look([old.key for old in page])
        judged = (self._judge.judge(old, there.get(old.key), left) for old in page)
        moves = [move for move in judged if move is not None]
        left.ready = len(moves)
        if not dry:
            self._finish([move.copy for move in moves if move.taken])
            self._withdraw_stale([move for move in moves if move.stale], left)
            todo = [move for move in moves if not move.taken and not move.stale]
            for batch in divided(todo, _payload):
                self._take(self._insert(batch, left), left)
        return page, left

    def _withdraw_stale(self, moves: Sequence[Move], left: Left) -> None:
        """Withdraw copies of what their rows are no more; the next look copies them anew."""
        # Looked at once more: another `psched migrate` may have read the row later than we did.
        olds = self._source.look([move.old.key for move in moves])
        left.changed += len(moves)
        self._destination.withdraw(
            [
                move.stale
                for move in moves
                if move.stale is not None
                and (old := olds.get(move.old.key)) is not None
                and not self._is_taken(old)
                and old.fingerprint(self._judge.origin) != move.stale.token
            ]
        )

    def _insert(self, moves: Sequence[Move], left: Left) -> Sequence[Move]:
        """Write the copies that are missing; returns those moves whose copies are there."""
        missing = [(move.row, move.copy) for move in moves if move.row is not None]
        try:
            self._destination.insert(missing)
        except (SchemaError, TransientStoreError):
            raise
        except (StoreError, AlreadyExistsError) as error:
            if len(moves) > 1:
                return [done for move in moves for done in self._insert([move], left)]
            if isinstance(error, AlreadyExistsError):
                left.changed += 1
            else:
                left.refuse(moves[0].old.key, str(error))
            return []
        return moves

    def _take(self, moves: Sequence[Move], left: Left) -> None:
        """Mark rows that are as their copies say, and release these; withdraw the others'."""
        taken = moves
        if self._source.mark([move.old for move in moves]) < len(moves):
            olds = self._source.look([move.old.key for move in moves])
            taken = [move for move in moves if self._is_taken(olds.get(move.old.key))]
            lost = [move for move in moves if move not in taken]
            self._destination.withdraw([move.copy for move in lost])
            left.changed += len(lost)
        self._finish([move.copy for move in taken])

    def _finish(self, copies: Sequence[Copy]) -> None:
        """Release copies of rows that are taken, and delete those."""
        # One that is not there any more was released before; somebody has deleted it since.
        self._destination.release([copy for copy in copies if copy.at_rest])
        self.moved += self._source.clear([copy.key for copy in copies])

    def _is_taken(self, old: Old | None) -> bool:
        return old is not None and is_marked(self._judge.kind, old)

    def _patiently(self, work: Callable[[], T]) -> T:
        """Do some work, again and again while a database is unavailable."""
        return retry_while_unavailable(work, clock=self._clock, tries=_TRIES)


@contextmanager
def open_migration(
    settings: Config,
    table: str,
    *,
    url: str | None = None,
    kind: str | None = None,
    lease_time: int = 300,
    clock: Clock,
    rng: random.Random,
    progress: Callable[[int, int], None] = lambda _seen, _moved: None,
) -> Iterator[Migration]:
    """Open a migration into the table that the settings name.

    Args:
        settings: the installation's.
        table: the old one.
        url: its database's; None: the settings'. It brings its own password; and its own
            encryption, if it says anything of that.
        kind: `Kind.name` of its system; None: its columns tell.
        lease_time: the longest lease of an old worker, seconds.
        clock: this host's clocks.
        rng: draws the pauses between tries.
        progress: see `Migration`.

    Raises:
        ConfigError: psched's table is not where rows are kept, or the url cannot be used.
        SchemaError: one of the tables is not there, or is of another kind.
    """
    if settings.type != "rdb":
        raise ConfigError(
            f"type: {settings.type} keeps no table of psched's own; set it to rdb, and table to"
            " the one that `psched init` makes"
        )
    old = settings if url is None else _elsewhere(settings, url)
    source = Source(old, table, kind=kind, clock=clock, rng=rng)
    destination = Destination(settings, clock=clock, rng=rng)
    try:
        destination.check()
        yield Migration(
            source,
            destination,
            settings,
            lease_time=lease_time,
            clock=clock,
            progress=progress,
        )
    finally:
        source.disconnect()
        destination.disconnect()


def _elsewhere(settings: Config, url: str) -> Config:
    """The settings for another database: what is about psched's own alone is left out.

    Where a url says nothing of encryption it is encrypted as psched's: no password goes to a
    server that nobody has checked because somebody forgot an option.

    The url means what it means to PerfectSched and PerfectQueue.
    """
    encryption = {name: getattr(settings, name) for name in tls.SETTINGS}
    alone = settings.with_settings(
        url=urls.from_sequel(url),
        password_file=None,
        claim_strategy="auto",
        **dict.fromkeys(tls.SETTINGS),
    )
    if alone.url.startswith("sqlite") or urls.tls_options(alone.url):
        return alone
    return alone.with_settings(**encryption)


def _payload(move: Move) -> int:
    return len(move.old.values["data"] or "")

"""Moves the rows, page by page, by the four writes that the package's docstring describes.

`Planner` decides for an old row whether and how it is moved.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from psched.app import make_store
from psched.base.clock import Clock
from psched.base.errors import (
    AlreadyExistsError,
    ConfigError,
    InvalidError,
    SchemaError,
    StoreError,
    TransientStoreError,
)
from psched.client.access import retry_while_unavailable
from psched.client.auditor import Auditor, this_process
from psched.config import Config, urls
from psched.contrib.perfectsched.migration.source_systems import (
    NOT_ENFORCED,
    OldRow,
    SourceSystem,
    is_marked,
)
from psched.contrib.perfectsched.migration.tables import Destination, NewRow, Source
from psched.core.model import Row
from psched.core.settling import send_once
from psched.stores.sql.batches import split

_MOST_NAMED = 1000
"""The largest number of rows for which a report contains the reason why they cannot be moved."""


@dataclass(slots=True)
class Report:
    """The result of a pass over the old table, or over one page of it; all numbers count rows."""

    seen: int = 0  # rows that were read
    ready: int = 0  # rows that can be moved
    running: int = 0  # rows that an old worker may be running, so they cannot be moved yet
    # Rows that were not moved, because another client changed them during the pass.
    changed: int = 0
    # By key, why a row cannot be moved; contains the first `_MOST_NAMED` such rows.
    reasons: dict[str, str] = field(default_factory=dict)
    unnamed: int = 0  # rows that cannot be moved and are not in ``reasons``
    not_enforced: int = 0  # rows with a value in one of the columns `NOT_ENFORCED`
    overdue: int = 0  # rows that can be moved and to which `SourceSystem.overdue_note` applies

    @property
    def refused(self) -> int:
        """The number of rows that cannot be moved unless somebody corrects them."""
        return len(self.reasons) + self.unnamed

    @property
    def remaining(self) -> int:
        """The number of rows that stay in the old table after the pass."""
        return self.running + self.changed + self.refused

    def refuse(self, key: str, reason: str) -> None:
        """Record why a row cannot be moved."""
        if len(self.reasons) < _MOST_NAMED:
            self.reasons[key] = reason
        else:
            self.unnamed += 1

    def add(self, page: "Report") -> None:
        """Add the numbers and the reasons of a page's report to this report."""
        self.seen += page.seen
        self.ready += page.ready
        self.running += page.running
        self.changed += page.changed
        self.not_enforced += page.not_enforced
        self.overdue += page.overdue
        self.unnamed += page.unnamed
        for key, reason in page.reasons.items():
            self.refuse(key, reason)


@dataclass(frozen=True, slots=True)
class Move:
    """A row that is to be moved."""

    old: OldRow  # the old row as it was read
    # The staged copy of the old row; if the old row is marked, psched's row with its key.
    copy: NewRow
    # The row that the copy becomes; None if the copy is not to be inserted in this pass.
    row: Row | None = None
    # Whether the old row is marked as moved. If so, only two steps are left: the copy is activated,
    # if it still exists, and the old row is deleted.
    marked: bool = False
    # A copy in psched's table that was made from another state of the old row, and is to be
    # deleted; None if there is no such copy.
    stale: NewRow | None = None


@dataclass(frozen=True, slots=True)
class Planner:
    """Decides for each old row whether it is moved, and which row replaces it."""

    system: SourceSystem
    origin: str  # the old table and its database, as in `NewRow.origin`
    settings: Config  # psched's settings; a row that they forbid is not moved
    lease_time: int  # the length of an old worker's longest lease, seconds

    def plan(self, old: OldRow, existing: NewRow | None, report: Report) -> Move | None:
        """Decide how to move a row; return None if the row must stay in the old table."""
        ours = existing is None or existing.origin == self.origin
        if existing is not None and existing.is_staged and not ours:
            report.refuse(old.key, f"is being moved from elsewhere: {existing.origin}")
        elif is_marked(self.system, old):
            return Move(old, existing or NewRow(old.key), marked=True)
        elif self.is_taken(old, existing):
            report.refuse(old.key, "psched has a schedule with this key already")
        elif self.system.may_be_leased(old, self.lease_time):
            report.running += 1
        else:
            return self._converted(old, existing, report)
        return None

    def is_taken(self, old: OldRow, existing: NewRow | None) -> bool:
        """Whether psched has a schedule with the key of a row that no migration is moving."""
        return existing is not None and not existing.is_staged and not is_marked(self.system, old)

    def _converted(self, old: OldRow, existing: NewRow | None, report: Report) -> Move | None:
        try:
            new = self.system.convert(old, self.settings)
        except InvalidError as error:
            report.refuse(old.key, str(error))
            return None
        report.not_enforced += any(old.values.get(name) is not None for name in NOT_ENFORCED)
        report.overdue += new.overdue
        copy = NewRow.staged(new.row, old.fingerprint(self.origin), self.origin)
        if existing is None:
            return Move(old, copy, new.row)
        if existing.token == copy.token:
            # The copy in the table is used, even if another version of psched has created it.
            return Move(old, existing)
        return Move(old, copy, stale=existing)


T = TypeVar("T")

Meter = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]  # see `Migrator`
_PASSES = 10  # how often the whole old table is read, at most, before the first pause

_PAUSE = 1.0
"""Seconds between two passes over the old table, while old workers may be running its rows."""

_TRIES = 6  # how often a page is tried, at most, if a database is unavailable


class Migrator:
    """Moves the rows of an old table into psched's table."""

    def __init__(
        self,
        source: Source,
        destination: Destination,
        settings: Config,  # psched's settings; a row that they forbid is not moved
        *,
        lease_time: int,  # the length of an old worker's longest lease, seconds
        clock: Clock,
        auditor: Auditor,
        # Begins to show progress, given a name and the number of rows; the function that the
        # context manager returns is called with the number of rows that are done.
        meter: Meter,
    ) -> None:
        self._source = source
        self._destination = destination
        self._planner = Planner(source.system, source.origin, settings, lease_time)
        self._clock = clock
        self._auditor = auditor
        self._meter = meter
        self.moved = 0  # the number of rows that were moved so far
        # Whether any row had a value in one of the columns `NOT_ENFORCED`.
        self.not_enforced = False
        self.overdue = 0  # the number of rows to which `overdue_note` applies
        # A text for messages, which says what happens to overdue rows.
        self.overdue_note = source.system.overdue_note
        # A text that names the old system, its table and the database.
        self.title = f"{source.system.name}: {source.title}"
        # For each other old table, the number of staged copies that its migration has left.
        self.others: Counter[str] = Counter()

    def run(self, wait: float) -> Report:
        """Move all rows that can be moved; wait up to ``wait`` seconds for running ones."""
        deadline = self._clock.monotonic() + wait
        passes = 0
        while True:
            before, report = self.moved, self.run_pass()
            passes += 1
            # The table is read again, because other clients may have changed rows, or added rows to
            # pages that this pass had read before.
            if passes < _PASSES and (self.moved > before or report.changed):
                continue
            if not report.running + report.changed or self._clock.monotonic() >= deadline:
                return report
            self._clock.sleep(_PAUSE)

    def run_pass(self, *, dry: bool = False) -> Report:
        """Read the whole old table once; unless ``dry``, also move the rows that can be moved."""
        self._repair(dry=dry)
        total, last = Report(), None
        rows = self._retry(self._source.count)
        with self._meter("reading" if dry else "moving", rows) as show:
            while True:
                page, report = self._retry(partial(self._move_page, last, dry=dry))
                if not page:
                    return total
                last = page[-1]
                total.add(report)
                self.not_enforced |= report.not_enforced > 0
                self.overdue += report.overdue
                show(min(total.seen, rows))  # clients may have added rows since they were counted

    def _repair(self, *, dry: bool) -> None:
        """Finish the moves that an interrupted migration has left.

        The copy of a marked row is activated; the copy of a row that does not exist is deleted.
        """
        self.others.clear()
        last = ""
        while copies := self._retry(partial(self._destination.staged_after, last)):
            last = copies[-1].key
            ours = [copy for copy in copies if copy.origin == self._planner.origin]
            # A row that is not an intact copy is not counted: somebody has given it the status of a
            # copy by SQL.
            others = (copy for copy in copies if copy.is_staged and copy not in ours)
            self.others.update(copy.origin for copy in others)
            if ours and not dry:
                self._retry(partial(self._repair_page, ours))

    def _repair_page(self, copies: Sequence[NewRow]) -> None:
        # The old rows are read after the copies. So if a copy's old row is missing, it was deleted
        # after it was copied, and the copy can be deleted.
        olds = self._source.read([copy.key for copy in copies])
        self._destination.delete_staged([copy for copy in copies if copy.key not in olds])
        self._activate([copy for copy in copies if self._is_marked(olds.get(copy.key))])

    def _move_page(self, after: OldRow | None, *, dry: bool) -> tuple[Sequence[OldRow], Report]:
        """Read a page and move the rows that can be moved; a call that failed can be repeated."""
        page, report = self._source.page(after), Report()
        report.seen = len(page)
        existing = self._destination.read([old.key for old in page])
        moved = self._moved_meanwhile(page, existing)
        report.changed = len(moved)
        planned = (
            self._planner.plan(old, existing.get(old.key), report)
            for old in page
            if old.key not in moved
        )
        moves = [move for move in planned if move is not None]
        report.ready = len(moves)
        if not dry:
            self._activate([move.copy for move in moves if move.marked])
            self._delete_stale([move for move in moves if move.stale], report)
            unmarked = [move for move in moves if not move.marked and not move.stale]
            for batch in split(unmarked, _payload_size):
                self._mark(self._insert(batch, report), report)
        return page, report

    def _moved_meanwhile(
        self, page: Sequence[OldRow], existing: Mapping[str, NewRow]
    ) -> Collection[str]:
        """The keys of the rows that another migration has moved since this one read the page.

        Without this second look, their copies would be taken for schedules that were there before.
        """
        taken = [old.key for old in page if self._planner.is_taken(old, existing.get(old.key))]
        olds = self._source.read(taken)
        return {key for key in taken if key not in olds or self._is_marked(olds[key])}

    def _delete_stale(self, moves: Sequence[Move], report: Report) -> None:
        """Delete copies whose old rows have changed; the next pass copies these rows again."""
        # The old rows are read again, because another migration may have copied a newer state of a
        # row than this migration has read. Such a copy must not be deleted.
        olds = self._source.read([move.old.key for move in moves])
        report.changed += len(moves)
        self._destination.delete_staged(
            [
                move.stale
                for move in moves
                if move.stale is not None
                and (old := olds.get(move.old.key)) is not None
                and not self._is_marked(old)
                and old.fingerprint(self._planner.origin) != move.stale.token
            ]
        )

    def _insert(self, moves: Sequence[Move], report: Report) -> Sequence[Move]:
        """Insert the copies that do not exist; return the moves whose copies exist afterwards."""
        missing = [(move.row, move.copy) for move in moves if move.row is not None]
        try:
            self._destination.insert(missing)
        except (SchemaError, TransientStoreError):
            raise
        except (StoreError, AlreadyExistsError) as error:
            if len(moves) > 1:
                return [done for move in moves for done in self._insert([move], report)]
            if isinstance(error, AlreadyExistsError):
                report.changed += 1
            else:
                report.refuse(moves[0].old.key, str(error))
            return []
        return moves

    def _mark(self, moves: Sequence[Move], report: Report) -> None:
        """Mark unchanged old rows and activate their copies; delete the copies of changed rows."""
        marked = moves
        if self._source.mark([move.old for move in moves]) < len(moves):
            olds = self._source.read([move.old.key for move in moves])
            marked = [move for move in moves if self._is_marked(olds.get(move.old.key))]
            lost = [move for move in moves if move not in marked]
            self._destination.delete_staged([move.copy for move in lost])
            report.changed += len(lost)
        self._activate([move.copy for move in marked])

    def _activate(self, copies: Sequence[NewRow]) -> None:
        """Activate the copies of marked old rows, and then delete these old rows."""
        # A marked row is deleted even if its copy does not exist any more: the copy has become a
        # schedule before, and somebody has deleted this schedule.
        staged = [copy for copy in copies if copy.is_staged]
        self._destination.activate(staged)
        self._auditor.record_present("migrate", [copy.key for copy in staged])
        self.moved += self._source.delete_marked([copy.key for copy in copies])

    def _is_marked(self, old: OldRow | None) -> bool:
        return old is not None and is_marked(self._planner.system, old)

    def _retry(self, work: Callable[[], T]) -> T:
        return retry_while_unavailable(work, clock=self._clock, tries=_TRIES)


@contextmanager
def open_migrator(
    settings: Config,
    table: str,
    *,
    url: str | None = None,
    system: str | None = None,
    lease_time: int = 300,
    clock: Clock,
    rng: random.Random,
    meter: Meter = lambda _what, _total: nullcontext(lambda _done: None),
) -> Iterator[Migrator]:
    """Open a migration into the table that the settings name."""
    if settings.type != "rdb":
        raise ConfigError(
            f"type: {settings.type} keeps no table of psched's own; set it to rdb, and table to"
            " the one that `psched init` creates"
        )
    old = settings if url is None else _for_old_database(settings, url)
    source = Source(old, table, system=system, clock=clock, rng=rng)
    destination = Destination(settings, clock=clock, rng=rng)
    store = make_store(settings)
    auditor = Auditor(
        store, author=partial(this_process, "psched migrate"), clock=clock, send=send_once
    )
    try:
        destination.check()
        yield Migrator(
            source,
            destination,
            settings,
            lease_time=lease_time,
            clock=clock,
            auditor=auditor,
            meter=meter,
        )
    finally:
        source.disconnect()
        destination.disconnect()
        store.disconnect()


def _for_old_database(settings: Config, url: str) -> Config:
    """The settings for the old database; the url is interpreted as the old system interprets it.

    Settings that apply only to psched's database are left out. If the url has no option about
    encryption, the settings about encryption apply, because otherwise a forgotten option would send
    the password to an unverified server.
    """
    encryption = {name: getattr(settings, name) for name in urls.TLS_SETTINGS}
    plain = settings.with_settings(
        url=urls.from_sequel(url),
        password_file=None,
        claim_strategy="auto",
        **dict.fromkeys(urls.TLS_SETTINGS),
    )
    if plain.url.startswith("sqlite") or urls.tls_options(plain.url):
        return plain
    return plain.with_settings(**encryption)


def _payload_size(move: Move) -> int:
    return len(move.old.values["data"] or "")

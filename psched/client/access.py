"""How the schedules of one collection are read and changed.

Each change is applied once, even if the answer to a write is lost: if the outcome of a write is
unknown, the sender repeats the write. Before that, the sender checks whether the write was applied
already: the sender remembers what it has sent (`LostAnswers`), reads the row, and compares the two
(`were_inserted`, `was_replaced`, `was_requeued`).

After a change was applied, it is recorded in the audit trail, and wakes a worker.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf, isnan
from typing import Generic, NamedTuple, TypeVar

from psched.base.clock import Clock
from psched.base.compression import readable
from psched.base.errors import (
    AlreadyExistsError,
    InvalidError,
    MissingDatabaseError,
    NotFoundError,
    NotSupportedError,
    PschedError,
    ScheduleError,
    StoreError,
    TransientStoreError,
    UnknownOutcomeError,
)
from psched.base.quantities import DURATIONS, Duration, as_seconds
from psched.base.texts import brief, visible
from psched.client.auditor import Auditor, Author
from psched.config import Config
from psched.core.history.protocol import KeepsHistory
from psched.core.history.records import RunRecord
from psched.core.model import ENDED, QUARANTINED, Row
from psched.core.operations.announcing import AnnouncesInTransaction, TellsOfCommit
from psched.core.output import KeepsOutput
from psched.core.store_protocol import CallersTransaction, Send, Store

T = TypeVar("T")
W = TypeVar("W")

_log = logging.getLogger("psched.audit")

_PAUSE = 0.2
"""The pause before the second try, in seconds; each further pause is twice as long."""

# The pauses between two reads; each pause is twice as long as the last.
_FIRST_PAUSE = 0.05
"""The first pause, in seconds."""
_LONGEST_PAUSE = 1.0
"""The longest pause, in seconds."""

NOTIFY = "notify"
"""The value of the setting ``wake`` with which the store tells all hosts."""

_CLOCKS_DIFFER = 60.0
"""Seconds by which this host's clock may be behind the store's, which decides what is due. Reading
the store's clock would cost a round trip. If the difference is greater, a worker finds the row at
its next poll."""

_NAMED = 5
"""The largest number of keys that an error text lists."""

_DEFINITION = "type", "cron", "timezone", "delay", "alive_time", "label", "lane", "run_as"
_PAYLOADS = "data", "options"


@dataclass(frozen=True, kw_only=True)
class Access:
    """What the requests of one collection of schedules need.

    Attributes:
        store: the store that contains the schedules.
        settings: the installation's settings.
        clock: measures requests and leases, and is compared with the times of rows.
        send: sends a request to the store, again and again while the store is unavailable.
        draw_nonce: returns a new random text at each call.
        author: returns who makes the changes of this collection, for the audit trail.
        hint: sends a hint to the masters of this host; None if nobody is told anything.
    """

    store: Store
    settings: Config
    clock: Clock
    send: Send
    draw_nonce: Callable[[], str]
    author: Callable[[], Author]
    hint: Callable[[], object] | None

    @cached_property
    def auditor(self) -> Auditor:
        """Records the changes, and knows who makes them and why."""
        return Auditor(self.store, author=self.author, clock=self.clock, send=self.send)

    def read(self, key: str) -> Row:
        """Read the row with a key."""
        return self.send(partial(read_row, self.store, key))

    def spread(self, rows: Iterable[Row], *, are_new: bool = False) -> None:
        """Give the hosts that are known their rows of the templates among rows just written."""
        templates = [row.key for row in rows if row.each_host]
        if templates:
            from psched.client.each_host import spread  # noqa: PLC0415  # rarely needed

            spread(self, templates, are_new=are_new)

    # What wakes a worker can neither fail nor wait.

    def wake_for(self, rows: Iterable[Row]) -> None:
        """Wake a worker if one of these rows, which were just written, may be due soon.

        A worker that sleeps knows the rows that were due before its next poll when it last asked,
        and no others. So a row that falls due before that poll needs it to ask again, too.
        """
        if self.hint is not None and self._is_soon(rows):
            self.wake()

    def wake(self) -> None:
        """Wake a worker, because rows may be due."""
        if self.hint is None:
            return
        self.hint()
        announcements = self.store.announcements
        if self.settings.wake == NOTIFY and announcements is not None:
            # The change was made, whether others are told or not.
            with suppress(PschedError):
                announcements.announce()

    def wake_after(self, transaction: CallersTransaction, rows: Iterable[Row]) -> None:
        """Wake a worker when the caller's transaction, in which rows were added, has committed."""
        joined: object = transaction
        if self.hint is None or not self._is_soon(rows):
            return
        if isinstance(joined, TellsOfCommit):
            joined.after_commit(self.hint)
        if self.settings.wake == NOTIFY and isinstance(joined, AnnouncesInTransaction):
            joined.announce()

    def _is_soon(self, rows: Iterable[Row]) -> bool:
        """Whether one of these rows may be due before a sleeping worker asks again."""
        until = self.clock.wall() + self.settings.poll_interval + _CLOCKS_DIFFER
        times = (row.next_run_time for row in rows if row.owner is None)
        return any(time is not None and time <= until for time in times)


def read_row(store: Store, key: str) -> Row:
    """Read the row with this key."""
    row = store.get(stored_key(key))
    if row is None:
        raise NotFoundError(f"no schedule has the key {key!r}")
    return row


def is_possible(key: object) -> bool:
    """Whether a store can contain a key; see `stored_key`."""
    try:
        return isinstance(key, str) and b"\0" not in key.encode()
    except UnicodeEncodeError:
        return False


def stored_key(key: str) -> str:
    """Return the key unchanged, if a store can contain it."""
    if not is_possible(key):
        raise NotFoundError(f"no schedule has the key {key!r}")
    return key


def keeping_history(store: Store) -> KeepsHistory:
    """What keeps the run history and the audit trail of a store."""
    if store.history is None:
        raise NotSupportedError(
            "this store keeps no run history and no audit trail; psched's own table keeps both, and"
            " so does a store of your own that has the methods of KeepsHistory"
        )
    return store.history


def keeping_output(store: Store) -> KeepsOutput:
    """What keeps what the tasks of a store print."""
    if store.output is None:
        raise NotSupportedError(
            "this store does not keep what tasks print; psched's own table does, and so does a"
            " store of your own that has the methods of KeepsOutput"
        )
    return store.output


# --- requests -----------------------------------------------------------------------------


def read_each(send: Send, request: Callable[[], Iterator[T]]) -> Iterator[T]:
    """Send a request for what a store finds, and yield it, which the store reads page by page."""
    found, end = send(request), object()

    def each() -> Iterator[T]:
        while (item := send(lambda: next(found, end))) is not end:
            yield item  # type: ignore[misc]  # it is not `end`

    return each()


def retry_while_unavailable(
    request: Callable[[], T], *, clock: Clock, tries: int, patience: float = inf
) -> T:
    """Send a request, and repeat it while the store is unavailable.

    After ``patience`` seconds it is not repeated any more.
    """
    pause, until = _PAUSE, clock.boottime() + patience
    unknown: UnknownOutcomeError | None = None
    for left in reversed(range(tries)):
        try:
            return request()
        except MissingDatabaseError:
            raise  # a file that does not exist will hardly appear within seconds
        except TransientStoreError as error:
            if isinstance(error, UnknownOutcomeError):
                unknown = error
            if not left or clock.boottime() + pause >= until:
                if unknown is None or unknown is error:
                    raise
                # The last error says that nothing was applied, but only by the last try.
                raise unknown from error
            clock.sleep(pause)
            pause *= 2
    raise AssertionError


# --- waiting ------------------------------------------------------------------------------


def longest_wait(timeout: Duration | None) -> float | None:
    """The argument ``timeout`` of `Schedule.wait` in seconds."""
    seconds = as_seconds(timeout)
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or isnan(seconds):
        raise InvalidError(
            "timeout",
            f"must be a number of seconds, or a duration such as {DURATIONS}, not"
            f" {brief(repr(timeout))}",
        )
    return seconds


def wait_for_end(
    access: Access,
    key: str,
    timeout: float | None,
    look: Callable[[Row], object] | None = None,
) -> Row:
    """Wait until a schedule that runs only once has ended; see `Schedule.wait`."""
    give_up_at = None if timeout is None else access.clock.monotonic() + timeout
    pause = _FIRST_PAUSE
    row = access.read(key)
    while True:
        # A row with an owner has not ended, whatever its status: its task is still running, and
        # somebody has set the status by plain SQL.
        if row.status in {*ENDED, QUARANTINED} and row.owner is None:
            return row
        if row.cron is not None:
            raise InvalidError(
                "key", f"{key!r} has a trigger, so it never ends and cannot be waited for"
            )
        if look is not None:
            look(row)
        if give_up_at is not None:
            left = give_up_at - access.clock.monotonic()
            if left <= 0:
                raise TimeoutError(f"{key!r} is still {row.state}")
            pause = min(pause, left)
        access.clock.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        try:
            row = read_row(access.store, key)
        except TransientStoreError:
            continue  # the wait goes on, because the task can end while the store is down
        except NotFoundError:
            raise NotFoundError(
                f"{key!r} is gone: it was deleted, or it has ended and its retention_time is 0"
            ) from None


# --- conditions -------------------------------------------------------------------------

Condition = Callable[[Row], bool]
"""Whether a row, as it is stored now, is still to be changed."""


class ChangedMeanwhileError(ScheduleError):
    """A row does not fulfil the `Condition` any more, so it was not changed."""


def require(condition: Condition | None, seen: Row) -> None:
    """Refuse to change a row that does not fulfil a condition."""
    if condition is not None and not condition(seen):
        raise ChangedMeanwhileError(f"{seen.key!r} was changed meanwhile: it is {seen.state}")


_ON_TEMPLATES = frozenset({"edit", "modify"})
"""The changes of a template itself, which its hosts follow; others can only change their rows."""


def refuse_template(row: Row) -> None:
    """Refuse to do with a template what can only be done with the rows of its hosts."""
    if row.each_host:
        raise InvalidError(
            "key",
            f"{row.key!r} has a row for each of its hosts; name one of them, as in"
            f" '{row.key}@web1', or all by a pattern: '{row.key}@*'",
        )


# --- adding ------------------------------------------------------------------------------


def insert(access: Access, rows: Sequence[Row], *, audited: bool = True) -> None:
    """Insert either all of the rows, or none."""
    nonce, begun = access.draw_nonce(), access.clock.boottime()
    lost = LostAnswers[str]()

    def request() -> None:
        try:
            lost.send(nonce, partial(access.store.add, rows, nonce=nonce))
        except AlreadyExistsError:
            found = access.store.look([row.key for row in rows])
            if lost:
                since = access.store.now() - (access.clock.boottime() - begun)
                if were_inserted(found, rows, nonce, since):
                    return
            keys = [row.key for row in rows if row.key in found] or [row.key for row in rows]
            raise AlreadyExistsError(_taken(keys)) from None

    access.send(request)
    access.wake_for(rows)
    if audited:
        access.auditor.record_added(rows)
    access.spread(rows, are_new=True)


def _taken(keys: Sequence[str]) -> str:
    if len(keys) == 1:
        return f"the key {keys[0]!r} is taken"
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return f"the keys {', '.join(map(repr, keys[:_NAMED]))}{more} are taken"


# --- replacing ---------------------------------------------------------------------------


class Recorded(NamedTuple):
    """The new row of a schedule, and the records that the run history gets with it."""

    row: Row
    records: Sequence[RunRecord]


def replace(
    access: Access,
    action: str,
    key: str,
    change: Callable[[Row], Row | Recorded | None],
    was_applied: Callable[[Row, Row, Row], bool],
) -> None:
    """Replace a row by the result of ``change``; None leaves the row as it is.

    The row is read, and the new row is written only if the stored row has not changed since.
    Otherwise both begin again. Records are written in the transaction that replaces the row. A
    store that cannot do this gets them afterwards.
    """
    lost = LostAnswers[tuple[Row, Row, Sequence[RunRecord]]]()
    done: list[tuple[Row, Row, Sequence[RunRecord]]] = []

    def request() -> bool:
        seen = read_row(access.store, key)
        if seen.each_host and action not in _ON_TEMPLATES:
            refuse_template(seen)
        if write := lost.applied(lambda write: was_applied(seen, *write[:2])):
            done.append(write)
            return True
        new = change(seen)
        if new is None:
            return True
        row, records = new if isinstance(new, Recorded) else (new, ())
        write = seen, row, records
        is_replaced = lost.send(write, partial(_replace_and_record, access, *write))
        done.extend([write] if is_replaced else [])
        return is_replaced

    while not access.send(request):
        continue  # begin again, because the row was claimed, settled or changed meanwhile
    access.wake_for(row for _, row, _ in done)
    for _, _, records in done:
        _record_afterwards(access, records)
    access.auditor.record(action, [(seen, row) for seen, row, _ in done])
    access.spread(row for _, row, _ in done)


def _replace_and_record(access: Access, seen: Row, new: Row, records: Sequence[RunRecord]) -> bool:
    store = access.store
    if records and store.recorded_changes is not None:
        return store.recorded_changes.replace_and_record(seen, new, records)
    return store.replace(seen, new)


def _record_afterwards(access: Access, records: Sequence[RunRecord]) -> None:
    """Write the records of a change that was made, if the store has not written them with it.

    A failure is only logged, because the change stands.
    """
    store = access.store
    if not records or store.recorded_changes is not None:
        return
    if store.history is not None:
        try:
            access.send(partial(store.history.record, records))
        except StoreError as error:
            text = "%s was changed, but the run history does not tell what was skipped: %s"
            _log.warning(text, visible(repr(records[0].key)), error)


# --- lost answers ------------------------------------------------------------------------


class LostAnswers(Generic[W]):
    """Those writes of one request whose outcome is unknown. The object is true if there are any.

    The sender chooses what is stored for a write (the type `W`), such as the old and the new row of
    a replacement, or the owner of a claim.
    """

    def __init__(self) -> None:
        self._writes: list[W] = []

    def __bool__(self) -> bool:
        return bool(self._writes)

    def send(self, write: W, request: Callable[[], T]) -> T:
        """Send a write, and remember it if its answer is lost."""
        try:
            return request()
        except UnknownOutcomeError:
            self._writes.append(write)
            raise

    def applied(self, was_applied: Callable[[W], bool]) -> W | None:
        """The write that was applied, as far as ``was_applied`` can tell; None if none was."""
        return next((write for write in self._writes if was_applied(write)), None)

    @property
    def last(self) -> W:
        """The last of these writes; there must be one."""
        return self._writes[-1]


def were_inserted(
    found: Mapping[str, Row], wanted: Sequence[Row], nonce: str, since: float
) -> bool:
    """Whether an insert was applied, even if its rows have run since.

    The insert adds all rows or none. It writes its nonce into the rows, and the first settle of a
    row overwrites the nonce. So the insert also counts as applied if all rows have been settled,
    equal the wanted rows, and are no older than the request. If another caller has added such rows,
    the result is wrong, but this caller has the rows that it wanted.
    """
    if any(row.settled_by == nonce for row in found.values()):
        return True
    return all(row.key in found and _has_run(found[row.key], row, since) for row in wanted)


def _has_run(row: Row, wanted: Row, since: float) -> bool:
    settled = row.settled_by is not None and "#" in row.settled_by
    young = row.created_at is not None and row.created_at >= int(since)
    return settled and young and _is_alike(row, wanted)


def was_replaced(row: Row, seen: Row, written: Row) -> bool:
    """Whether a replacement was applied, even if the new row has run since."""
    if not _is_alike(row, written):
        return False
    if row.next_time != written.next_time:
        # The times also differ if the new row has run since, so we compare other columns.
        return row.version > seen.version and row.fence > seen.fence
    # We compare the times too, because the version of a row in PerfectSched's table is a checksum
    # that does not depend on them.
    times = row.next_run_time, row.status
    return row.version != seen.version or times == (written.next_run_time, written.status)


def was_requeued(row: Row, written: Row) -> bool:
    """Whether a requeue was applied, even if the row has run and ended again since."""
    return row.version > written.version and row.created_at == written.created_at


def _is_alike(row: Row, other: Row) -> bool:
    return all(getattr(row, name) == getattr(other, name) for name in _DEFINITION) and all(
        _bytes(getattr(row, name)) == _bytes(getattr(other, name)) for name in _PAYLOADS
    )


def _bytes(stored: str | bytes | None) -> bytes | None:
    plain = readable(stored)
    return plain.encode() if isinstance(plain, str) else plain

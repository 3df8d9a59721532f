"""The schedules of one store, as a program sees them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from psched.application.task import Task
from psched.base.clock import Clock
from psched.base.errors import AlreadyExistsError, NotFoundError, UnknownOutcomeError
from psched.base.retry import retry_while_unavailable
from psched.client.lost_answers import is_replaced, was_inserted
from psched.client.poller import Poller
from psched.client.queue import Queue
from psched.client.schedule import Schedule, ScheduleMetadata
from psched.config import Config
from psched.core.declare import When, declare, declare_all, redeclare
from psched.core.definition import parse_row
from psched.core.model import DEFAULT_TYPE, DELETING, Row
from psched.core.preview import UpcomingTime, upcoming_occurrences
from psched.core.store_protocol import Store

T = TypeVar("T")

_TRIES = 5
"""How often a request is sent while the store is unavailable."""

_NAMED = 5
"""Keys named in an error at most."""


class ScheduleCollection(Queue):
    """Adds, reads, changes and removes schedules, and leases their occurrences.

    A context manager: leaving it closes the connection. Requests are repeated for a few seconds
    while the store is unavailable.

    Args:
        store: the store.
        settings: the installation's.
        clock: this host's clocks.
        draw_nonce: draws a text that was never drawn before.
    """

    def __init__(
        self, store: Store, settings: Config, *, clock: Clock, draw_nonce: Callable[[], str]
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._draw_nonce = draw_nonce
        self._poller = Poller(
            store,
            settings,
            clock=clock,
            draw_nonce=draw_nonce,
            patiently=self._patiently,
            schedules=self,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __getitem__(self, key: str) -> Schedule:
        return Schedule(self, key)

    def close(self) -> None:
        """Close the connection; a later request opens another."""
        self._store.disconnect()

    def add(
        self,
        key: str,
        type: str = DEFAULT_TYPE,  # noqa: A002  # the word of the table
        *,
        cron: str | None = None,
        delay: int = 0,
        timezone: str | None = None,
        next_time: When | None = None,
        next_run_time: When | None = None,
        data: Mapping[str, Any] | None = None,
        **more: Any,  # noqa: ANN401  # named and checked by psched.declare
    ) -> Schedule:
        """Register a schedule.

        Args:
            key: unique name.
            type: which handler runs it.
            cron: five fields or ``@daily`` and its like; None: it runs once, at ``next_time``, or
                as ``every``, ``at`` or ``trigger`` say: see `psched.core.shorthands`.
            delay: seconds between an occurrence's scheduled time and its earliest run.
            timezone: IANA zone in which ``cron`` is read; default: the setting.
            next_time: the first occurrence is the first match of ``cron`` at or after this
                instant; default: now, by the store's clock.
            next_run_time: earliest start of the first run; default: its occurrence + ``delay``.
            data: the handler's payload, a JSON object.
            more: ``every``, ``align``, ``at``, ``trigger``; settings of its own: ``alive_time``,
                ``catchup``, ``dst_policy``, ``jitter``, ``kill_timeout``, ``retry_wait`` …; and for
                people ``label`` (whose it is) and ``note``.

        Raises:
            AlreadyExistsError: the key is taken.
            InvalidError: a value makes no sense; its ``field`` names it.
        """
        fields = {
            "type": type,
            "cron": cron,
            "delay": delay,
            "timezone": timezone,
            "next_time": next_time,
            "next_run_time": next_run_time,
            "data": data,
            **more,
        }
        self._insert([declare(key, fields, self._settings, lambda: self._patiently(self._now))])
        return self[key]

    submit = add
    """The older name of `add`."""

    def add_many(self, schedules: Iterable[Mapping[str, Any]]) -> Sequence[Schedule]:
        """Register many schedules, all of them or none, in one transaction.

        All are looked at before anything is written. Each is returned, in the same order.

        Args:
            schedules: for each its ``key`` and any of the other arguments of `add`.

        Raises:
            AlreadyExistsError: some keys are taken; its text names them.
            InvalidError: a value makes no sense; its ``field`` names it, and which schedule's it
                is: ``schedules[17].cron``. Or a key is there twice.
        """
        rows = declare_all(schedules, self._settings, lambda: self._patiently(self._now))
        self._insert(rows)
        return [self[row.key] for row in rows]

    def poll(self) -> Task | None:
        """Lease one due occurrence, if there is one.

        Nobody extends its lease but the caller (`Task.extend`): it ends ``alive_time`` seconds
        after this call, and the task must be settled before. Workers do all this for handlers.
        """
        return self._poller.poll()

    def list(self) -> Iterator[ScheduleMetadata]:
        """Every schedule, those due first, those at rest last.

        They are read while they are asked for: one that runs meanwhile may come twice, or not
        at all.
        """
        rows = self._store.rows()
        while (row := self._patiently(lambda: next(rows, None))) is not None:
            yield ScheduleMetadata(row)

    def read(self, key: str) -> ScheduleMetadata:
        """Read one schedule.

        Raises:
            NotFoundError: there is no such schedule.
        """
        return ScheduleMetadata(self._patiently(lambda: self._row(key)))

    def read_many(self, keys: Sequence[str]) -> Mapping[str, ScheduleMetadata]:
        """Read those of the schedules that exist, in few round trips."""
        found = self._patiently(lambda: self._store.look(keys))
        return {key: ScheduleMetadata(row) for key, row in found.items()}

    def next(self, key: str, number: int = 10) -> Sequence[UpcomingTime]:
        """See `Schedule.next`."""
        row = self.read(key).row
        return upcoming_occurrences(row, parse_row(row, self._settings), number, self.now())

    def now(self) -> float:
        """The store's clock, Unix seconds."""
        return self._patiently(self._now)

    def delete(self, key: str) -> bool:
        """Remove a schedule, or mark it; see `Schedule.delete`.

        Raises:
            NotFoundError: there is no such schedule.
        """
        unknown = False

        def request() -> bool:
            nonlocal unknown
            try:
                return self._store.delete(_known(key))
            except UnknownOutcomeError:
                unknown = True
                raise
            except NotFoundError:
                # It may be an earlier try of this very request that removed it.
                if not unknown:
                    raise
                return True

        return self._patiently(request)

    def modify(
        self,
        key: str,
        decide: Callable[[Row], Mapping[str, Any]] | None = None,
        /,
        **changes: Any,  # noqa: ANN401  # checked by psched.declare
    ) -> None:
        """Change a schedule's definition.

        A change of ``cron``, ``timezone`` or ``dst_policy`` sets the next occurrence anew, from
        now on; a quarantined schedule is taken back into service. A task that is running goes
        on as it was started; what comes after it follows the new definition (but for
        ``next_run_time``, which is then the end of its lease). A finished schedule stays so until
        it gets a trigger or a time.

        Args:
            key: the schedule's.
            decide: returns the changes instead, given the schedule as it stands; asked again if
                that has changed before they were written. Nothing is written if there are none.
            changes: any of the arguments of `add`; None for one of ``more``: the
                installation's setting is to hold again.

        Raises:
            NotFoundError: there is no such schedule, or it is being deleted.
            InvalidError: a value makes no sense; its ``field`` names it.
        """
        # What may have been written in place of what.
        unsure: list[tuple[Row, Row]] = []

        def request() -> bool:
            seen = self._row(key)
            if seen.status == DELETING:
                raise NotFoundError(f"the schedule {key!r} is being deleted")
            if any(is_replaced(seen, new, old) for new, old in unsure):
                return True
            wanted = changes if decide is None else decide(seen)
            if decide is not None and not wanted:
                return True
            new = redeclare(seen, wanted, self._settings, self._now)
            try:
                return self._store.replace(seen, new)
            except UnknownOutcomeError:
                unsure.append((new, seen))
                raise

        while not self._patiently(request):
            # It was claimed, settled or changed since it was read: look again.
            continue

    def _insert(self, rows: Sequence[Row]) -> None:
        nonce = self._draw_nonce()
        begun = self._clock.boottime()
        unknown = False

        def request() -> None:
            nonlocal unknown
            try:
                self._store.add(rows, nonce=nonce)
            except UnknownOutcomeError:
                unknown = True
                raise
            except AlreadyExistsError:
                found = self._store.look([row.key for row in rows])
                # It may be an earlier try of this very request that inserted them.
                if unknown and self._are_inserted(rows, found, nonce, begun):
                    return
                keys = [row.key for row in rows if row.key in found] or [row.key for row in rows]
                raise AlreadyExistsError(_taken(keys)) from None

        self._patiently(request)

    def _are_inserted(
        self, rows: Sequence[Row], found: Mapping[str, Row], nonce: str, begun: float
    ) -> bool:
        if any(row.settled_by == nonce for row in found.values()):
            return True
        since = self._store.now() - (self._clock.boottime() - begun)
        return all(row.key in found and was_inserted(found[row.key], row, since) for row in rows)

    def _row(self, key: str) -> Row:
        row = self._store.get(_known(key))
        if row is None:
            raise NotFoundError(f"no schedule has the key {key!r}")
        return row

    def _now(self) -> float:
        return self._store.now()

    def _patiently(self, request: Callable[[], T]) -> T:
        """Send a request, again and again while the store is unavailable."""
        return retry_while_unavailable(request, clock=self._clock, tries=_TRIES)


def _taken(keys: Sequence[str]) -> str:
    if len(keys) == 1:
        return f"the key {keys[0]!r} is taken"
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return f"the keys {', '.join(map(repr, keys[:_NAMED]))}{more} are taken"


def _known(key: str) -> str:
    """A key, if it can be one: half a character, as in a file's name, is stored nowhere."""
    try:
        known = b"\0" not in key.encode()  # PostgreSQL has no such text
    except (UnicodeEncodeError, AttributeError):  # or no text at all
        known = False
    if not known:
        raise NotFoundError(f"no schedule has the key {key!r}")
    return key

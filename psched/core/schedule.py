"""One schedule in the API for programs: a reference by key, and the data of a schedule when read.

`Schedules` declares what a collection of schedules offers. Handlers get a collection, but the
layers that hand it to them lie below `psched.client`, which implements it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from psched.base.compression import LARGEST
from psched.base.errors import NotFoundError
from psched.core.columns import annotation, parse_payload, raw_data
from psched.core.declare import When
from psched.core.model import DEFAULT_TYPE, Row
from psched.core.preview import UpcomingTime


@dataclass(frozen=True, slots=True)
class ScheduleMetadata:
    """A schedule as it stood when it was read.

    Attributes:
        row: all columns of the schedule, in their stored form.
    """

    row: Row

    @property
    def key(self) -> str:
        """The schedule's unique name."""
        return self.row.key

    @property
    def type(self) -> str:
        """The type, which selects the handler."""
        return self.row.type

    @property
    def data(self) -> dict[str, Any]:
        """The handler's payload.

        Raises:
            InvalidError: the stored payload is not a JSON object.
        """
        return parse_payload(self.row.data, LARGEST)

    @property
    def raw_data(self) -> bytes:
        """The payload as it was submitted, byte for byte; see `Task.raw_data`.

        Raises:
            InvalidError: the stored payload is not a JSON object.
        """
        return raw_data(self.row)

    @property
    def cron(self) -> str | None:
        """Trigger text; None for a one-shot."""
        return self.row.cron

    @property
    def timezone(self) -> str | None:
        """The zone in which ``cron`` is read; None: the installation's."""
        return self.row.timezone

    @property
    def delay(self) -> int:
        """Seconds between an occurrence's scheduled time and its earliest run."""
        return self.row.delay

    @property
    def next_time(self) -> int | None:
        """Scheduled time of the occurrence that is due or running next, Unix seconds."""
        return self.row.next_time

    @property
    def next_run_time(self) -> int | None:
        """Earliest instant at which a worker may lease the schedule, in Unix seconds.

        While the task runs, this is the end of its lease. None: the schedule has no next run.
        """
        return self.row.next_run_time

    @property
    def status(self) -> str:
        """The schedule's status.

        ``waiting`` or ``running``; after its end ``finished``, ``cancelled``, ``expired`` or
        ``failed``; ``quarantined`` or ``paused`` when it was set aside; ``deleting``,
        ``cancelling`` or ``finishing`` while its task is being stopped; ``migrating``.
        """
        return self.row.state

    @property
    def attempt(self) -> int:
        """How often the occurrence that is due or running has been tried so far."""
        return self.row.attempt

    @property
    def created_at(self) -> int | None:
        """When the schedule was added, Unix seconds; None if plain SQL added it without a time."""
        return self.row.created_at

    @property
    def label(self) -> str | None:
        """The schedule's owner, see `psched.files`."""
        return annotation(self.row, "label")

    @property
    def note(self) -> str | None:
        """Free text about the schedule; None: there is none."""
        return annotation(self.row, "note")

    @property
    def reason(self) -> str | None:
        """Why the schedule rests, or what was decided about it last."""
        return self.row.reason


class Schedule:
    """A reference to the schedule with this key, which need not exist."""

    __slots__ = ("_collection", "key")

    def __init__(self, collection: "Schedules", key: str) -> None:
        self._collection = collection
        self.key = key

    def __repr__(self) -> str:
        return f"<Schedule {self.key!r}>"

    def metadata(self) -> ScheduleMetadata:
        """Read the schedule.

        Raises:
            NotFoundError: there is no such schedule.
        """
        return self._collection.read(self.key)

    def exists(self) -> bool:
        """Whether there is such a schedule."""
        try:
            self.metadata()
        except NotFoundError:
            return False
        return True

    def next(self, number: int = 10) -> Sequence[UpcomingTime]:
        """The next occurrences, beginning with the one that is due or running.

        The result is empty if the schedule has no next run.

        Args:
            number: how many, from 1 to 1000.

        Raises:
            InvalidError: the number or the schedule is invalid.
            NotFoundError: there is no such schedule.
        """
        return self._collection.next(self.key, number)

    def delete(self) -> bool:
        """Delete the schedule.

        A schedule whose task is running is marked instead: its worker stops the task and deletes
        the row. Until then the key is taken.

        Returns:
            True if the schedule was deleted, False if it was marked.

        Raises:
            NotFoundError: there is no such schedule.
        """
        return self._collection.delete(self.key)

    def cancel(self) -> bool:
        """Never run the schedule again.

        A schedule whose task is running is marked: its worker stops the task and then cancels the
        schedule. If the task completes before it is stopped, the schedule is finished.

        Returns:
            True if the schedule is cancelled, False if it was marked.

        Raises:
            AlreadyFinishedError: it has ended already.
            NotFoundError: there is no such schedule.
        """
        return self._collection.cancel(self.key)

    def force_finish(self) -> bool:
        """Mark the schedule as finished, whatever its task has done; a running task is stopped.

        Returns:
            True if the schedule is finished, False if it was marked for the worker that runs it.

        Raises:
            AlreadyFinishedError: it has ended already.
            NotFoundError: there is no such schedule.
        """
        return self._collection.force_finish(self.key)

    def requeue(self, run_at: When | None = None) -> None:
        """Run a schedule again that has ended, is quarantined or is paused; attempts count from 1.

        Args:
            run_at: the earliest start; default: now.

        Raises:
            AlreadyExistsError: it is waiting or running already.
            NotFoundError: there is no such schedule.
        """
        self._collection.requeue(self.key, run_at)

    def wait(self, timeout: float | None = None) -> str:
        """Wait until a schedule that runs only once has ended.

        Args:
            timeout: seconds; None: without limit.

        Returns:
            ``finished``, ``cancelled``, ``expired``, ``failed`` or ``quarantined``.

        Raises:
            InvalidError: it has a trigger, so it never ends.
            NotFoundError: there is no such schedule; or it disappeared during the wait, because it
                was deleted, or because it has ended and its ``retention_time`` is 0.
            TimeoutError: it has not ended in time.
        """
        return self._collection.wait(self.key, timeout)

    def modify(self, **changes: Any) -> None:  # noqa: ANN401  # see ScheduleCollection.modify
        """Change arguments of `ScheduleCollection.add`; see `ScheduleCollection.modify`.

        Raises:
            NotFoundError: there is no such schedule.
            InvalidError: a value is invalid; the error's ``field`` is its name.
        """
        self._collection.modify(self.key, **changes)


class Schedules(Protocol):
    """The schedules of one store: the type of what `psched.open` returns and handlers get.

    `psched.ScheduleCollection` implements and documents it; only `poll`, which is for programs
    without workers, is missing here.
    """

    def __getitem__(self, key: str) -> Schedule: ...

    def close(self) -> None:
        """Close the connection; a later request opens another."""
        ...

    def add(
        self,
        key: str,
        type: str = DEFAULT_TYPE,  # noqa: A002  # the table's word
        *,
        cron: str | None = None,
        delay: int = 0,
        timezone: str | None = None,
        next_time: When | None = None,
        next_run_time: When | None = None,
        data: Mapping[str, Any] | None = None,
        **more: Any,  # noqa: ANN401  # checked by psched.core.declare
    ) -> Schedule:
        """Register a schedule."""
        ...

    def add_many(self, schedules: Iterable[Mapping[str, Any]]) -> Sequence[Schedule]:
        """Register many schedules, all of them or none."""
        ...

    def push(
        self,
        key: str,
        type: str = DEFAULT_TYPE,  # noqa: A002  # the table's word
        data: Mapping[str, Any] | None = None,
        *,
        run_at: When | None = None,
        timeout: int | None = None,
        connection: Any = None,  # noqa: ANN401  # SQLAlchemy's, which is not loaded for it
        **more: Any,  # noqa: ANN401  # checked by psched.core.declare
    ) -> Schedule:
        """Submit a task, which runs once."""
        ...

    def push_many(self, tasks: Iterable[Mapping[str, Any]]) -> Sequence[Schedule]:
        """Submit many tasks, all of them or none."""
        ...

    def read(self, key: str) -> ScheduleMetadata:
        """Read one schedule."""
        ...

    def read_many(self, keys: Sequence[str]) -> Mapping[str, ScheduleMetadata]:
        """Read the schedules with these keys; a key without a schedule is missing."""
        ...

    def list(self) -> Iterator[ScheduleMetadata]:
        """Read every schedule."""
        ...

    def next(self, key: str, number: int = 10) -> Sequence[UpcomingTime]:
        """The next occurrences of a schedule."""
        ...

    def now(self) -> float:
        """The store's clock, Unix seconds."""
        ...

    def modify(
        self,
        key: str,
        decide: Callable[[Row], Mapping[str, Any]] | None = None,
        /,
        **changes: Any,  # noqa: ANN401  # checked by psched.core.declare
    ) -> None:
        """Change a schedule's definition."""
        ...

    def delete(self, key: str) -> bool:
        """Delete a schedule, or mark it for the worker that runs it."""
        ...

    def cancel(self, key: str) -> bool:
        """Never run a schedule again."""
        ...

    def force_finish(self, key: str) -> bool:
        """Mark a schedule as finished, whatever its task has done."""
        ...

    def requeue(self, key: str, run_at: When | None = None) -> None:
        """Run a schedule again that has ended or was set aside."""
        ...

    def wait(self, key: str, timeout: float | None = None) -> str:
        """Wait until a schedule that runs only once has ended."""
        ...

"""One schedule, as a program sees it: a reference by key, and what was read under it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psched.base.compression import LARGEST
from psched.base.errors import NotFoundError
from psched.core.columns import annotation, parse_payload, raw_data
from psched.core.declare import When
from psched.core.model import Row
from psched.core.preview import UpcomingTime

if TYPE_CHECKING:
    from psched.client.collection import ScheduleCollection


@dataclass(frozen=True, slots=True)
class ScheduleMetadata:
    """A schedule as it stood when it was read.

    Attributes:
        row: all that the store holds, as it is stored.
    """

    row: Row

    @property
    def key(self) -> str:
        """The schedule's unique name."""
        return self.row.key

    @property
    def type(self) -> str:
        """Which handler runs it."""
        return self.row.type

    @property
    def data(self) -> dict[str, Any]:
        """The handler's payload.

        Raises:
            InvalidError: what is stored is not a JSON object.
        """
        return parse_payload(self.row.data, LARGEST)

    @property
    def raw_data(self) -> bytes:
        """The payload as it was submitted, byte for byte; see `Task.raw_data`.

        Raises:
            InvalidError: what is stored is not a JSON object.
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
        """Nobody takes it before this, Unix seconds; None while it is at rest.

        While its task runs, this is the instant at which the lease ends.
        """
        return self.row.next_run_time

    @property
    def status(self) -> str:
        """What it is.

        ``waiting``, ``running``; ``finished``, ``cancelled``, ``expired`` or ``failed`` when it
        has ended; ``quarantined`` or ``paused`` when it was set aside; while its task is being
        stopped ``deleting``, ``cancelling`` or ``finishing``; ``migrating``.
        """
        return self.row.state

    @property
    def attempt(self) -> int:
        """Tries of the occurrence that is due or running, so far."""
        return self.row.attempt

    @property
    def created_at(self) -> int | None:
        """When it was added, Unix seconds; None if that was by plain SQL, which did not say."""
        return self.row.created_at

    @property
    def label(self) -> str | None:
        """Whose it is: see `psched.files`."""
        return annotation(self.row, "label")

    @property
    def note(self) -> str | None:
        """What is to be known about it, for people."""
        return annotation(self.row, "note")

    @property
    def reason(self) -> str | None:
        """Why it rests, or what was decided about it last."""
        return self.row.reason


class Schedule:
    """A reference to the schedule with this key; it need not exist."""

    __slots__ = ("_collection", "key")

    def __init__(self, collection: "ScheduleCollection", key: str) -> None:
        self._collection = collection
        self.key = key

    def __repr__(self) -> str:
        return f"<Schedule {self.key!r}>"

    def metadata(self) -> ScheduleMetadata:
        """Read it.

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
        """Its coming occurrences, the one that is due or running first; at rest, it has none.

        Args:
            number: how many, from 1 to 1000.

        Raises:
            InvalidError: the number, or the schedule, makes no sense.
            NotFoundError: there is no such schedule.
        """
        return self._collection.next(self.key, number)

    def delete(self) -> bool:
        """Remove it.

        A schedule whose task is running is marked: its worker stops the task and removes the
        row. Until then the key is taken.

        Returns:
            Whether it is gone; False if it was marked.

        Raises:
            NotFoundError: there is no such schedule.
        """
        return self._collection.delete(self.key)

    def cancel(self) -> bool:
        """Never run it again.

        One whose task is running is marked: its worker stops the task, then it is cancelled. A
        task that completes first has finished.

        Returns:
            Whether it is cancelled; False if it was marked.

        Raises:
            AlreadyFinishedError: it has ended already.
            NotFoundError: there is no such schedule.
        """
        return self._collection.cancel(self.key)

    def force_finish(self) -> bool:
        """Count it as finished, whatever its task has done; a running one is stopped.

        Returns:
            Whether it is finished; False if it was marked.

        Raises:
            AlreadyFinishedError: it has ended already.
            NotFoundError: there is no such schedule.
        """
        return self._collection.force_finish(self.key)

    def requeue(self, run_at: When | None = None) -> None:
        """Run again what has ended, was quarantined or is paused: all its attempts are before it.

        Args:
            run_at: not before this; default: now.

        Raises:
            AlreadyExistsError: it waits or runs already.
            NotFoundError: there is no such schedule.
        """
        self._collection.requeue(self.key, run_at)

    def wait(self, timeout: float | None = None) -> str:
        """Wait for the end of what runs only once.

        Args:
            timeout: seconds; None: as long as it takes.

        Returns:
            ``finished``, ``cancelled``, ``expired``, ``failed`` or ``quarantined``.

        Raises:
            InvalidError: it has a trigger, and comes to no end.
            NotFoundError: there is no such schedule; or it went while it was waited for, since it
                was deleted, or has ended and its ``retention_time`` is 0.
            TimeoutError: it has not ended in time.
        """
        return self._collection.wait(self.key, timeout)

    def modify(self, **changes: Any) -> None:  # noqa: ANN401  # see ScheduleCollection.modify
        """Change some of what `ScheduleCollection.add` takes; see `ScheduleCollection.modify`.

        Raises:
            NotFoundError: there is no such schedule.
            InvalidError: a value makes no sense; its ``field`` names it.
        """
        self._collection.modify(self.key, **changes)

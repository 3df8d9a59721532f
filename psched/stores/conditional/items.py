"""What a service with conditional writes keeps of a row, and what it must be able to do."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from psched.base.errors import InvalidError
from psched.base.stable_hash import stable_hash
from psched.core.model import Row
from psched.stores.pages import Page

SHARDS = 4
"""Into how many parts the index of a queue is divided.

A service limits the writes to one part of an index: DynamoDB to 1,000 a second, and a run needs
four. A claim reads every part, which is what an idle worker costs.
"""

DUE, ENDED = "due", "ended"
"""The queues: rows by the time at which they can be claimed, and by that at which they go."""

ABANDONED = 600
"""Seconds after which what is left of an unfinished `Store.add` is removed."""


@dataclass(frozen=True, slots=True)
class Item:
    """A row, and what this kind of store keeps besides.

    Attributes:
        beat: grows whenever the lease or the hold of the row is written. Whoever sees the same
            number again knows that the lease was not extended meanwhile.
        lease: the length in seconds for which the lease or the hold was last written.
        adding: the nonce of the `Store.add` that has not yet written all of its rows. Nobody else
            sees the row before.
        odd: attributes that psched has read as another value, because somebody wrote them by hand.
            A write is conditional on them, and corrects them.
    """

    row: Row
    beat: int = 0
    lease: int = 0
    adding: str | None = None
    odd: Mapping[str, Any] = field(default_factory=dict, compare=False)


WATCHED = ("owner", "fence", "version", "status", "next_run_time", "held_by", "held_until")
"""The columns that a conditional write compares, besides ``beat`` and ``adding``.

Every write of psched changes at least one of them. ``status`` and ``next_run_time`` are compared
because people change them by hand.
"""


class Place(NamedTuple):
    """Where an item is in the index: in a part of a queue, and at which time."""

    queue: str
    at: int


def place_of(item: Item) -> Place | None:
    """The item's place in the index; None for a row that waits for nothing."""
    row = item.row
    if item.adding is not None:
        queue, at = ENDED, (row.created_at or 0) + ABANDONED
    elif row.next_run_time is not None:
        # Held rows are put behind the others, so that a claim need not read them.
        queue = DUE
        at = max(row.next_run_time, (row.held_until or 0) if row.held_by else row.next_run_time)
    elif row.retain_until is not None:
        queue, at = ENDED, row.retain_until
    else:
        return None
    return Place(part_of(queue, stable_hash(row.key, SHARDS)), at)


def can_be_key(key: str, longest: int) -> bool:
    """Whether the service can have a row with this key, of at most so many bytes."""
    try:
        return 0 < len(key.encode()) <= longest
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def check_key(key: str, longest: int) -> None:
    """Refuse the key of a new row if the service cannot have it."""
    if not can_be_key(key, longest):
        raise InvalidError(
            "key", f"has {len(key.encode())} bytes in UTF-8; in this store it may have {longest}"
        )


def part_of(queue: str, number: int) -> str:
    """The name of one part of a queue."""
    return f"{queue}.{number}"


class Table(Protocol):
    """The service. Its reads show the last write, except `queue`, which may lag behind.

    Attributes:
        offset: the seconds by which the service's clock was ahead of this host's when it last
            answered; None if it has not answered yet.
    """

    offset: float | None

    def begin(self) -> None:
        """Begin a request of a caller; those of the service that follow share its time."""

    def read(self, keys: Sequence[str]) -> Mapping[str, Item]:
        """The items with these keys, also those that are being added."""

    def insert(self, item: Item) -> bool:
        """Write a new item; False if its key is taken."""

    def update(self, seen: Item, new: Item) -> Item | None:
        """Write what differs if the item is as it was seen; return the whole item, else None."""

    def remove(self, seen: Item) -> bool:
        """Delete the item if it is as it was seen."""

    def queue(self, name: str, until: int, size: int) -> Iterator[tuple[int, Item]]:
        """Items of a queue up to a time, in order of their times in the index, without data.

        ``size`` tells how many are wanted. Who changes an item by hand leaves its old time.
        """

    def scan(self, place: Any, most: int, *, holder: str | None = None) -> Page[Item]:  # noqa: ANN401
        """A page of all items; or of those whose owner, or holder, begins with a text."""

    def note(self, name: str) -> str | None:
        """A text that is kept beside the rows."""

    def replace_note(self, name: str, seen: str | None, new: str) -> bool:
        """Replace such a text if it is as it was seen."""

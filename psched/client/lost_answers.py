"""Detection of writes that were applied although their answers were lost.

If the outcome of a write is unknown, the sender repeats the write. Before that, the sender checks
whether the write was applied already: the sender remembers what it has sent (`LostAnswers`), reads
the row, and compares the two (`were_inserted`, `was_replaced`, `was_requeued`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from psched.base.compression import readable
from psched.base.errors import UnknownOutcomeError
from psched.core.model import Row

T = TypeVar("T")
W = TypeVar("W")

_DEFINITION = "type", "cron", "timezone", "delay", "alive_time", "label"
_PAYLOADS = "data", "options"


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

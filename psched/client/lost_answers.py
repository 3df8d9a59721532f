"""What a request without an answer has left: whether a row is what it would have written."""

from psched.base.compression import readable
from psched.core.model import Row

_DEFINITION = "type", "cron", "timezone", "delay", "alive_time"
_PAYLOADS = "data", "options"


def was_inserted(row: Row, wanted: Row, since: float) -> bool:
    """Whether a row that has been run is the one that was to be inserted.

    Where the nonce of its insert stood is the token of its last settle by now. So a row of the very
    same definition that is no older than the request is it. If somebody else has added that, there
    is what both of them wanted.

    Args:
        row: as it stands.
        wanted: as it was to be inserted.
        since: the store's clock when the request was sent, or a little before.
    """
    settled = row.settled_by is not None and "#" in row.settled_by
    young = row.created_at is not None and row.created_at >= int(since)
    return settled and young and _is_alike(row, wanted)


def is_replaced(row: Row, written: Row, seen: Row) -> bool:
    """Whether a row is what was written, as far as nobody has changed it since.

    Args:
        row: as it stands.
        written: what was to be in the place of …
        seen: … this one.
    """
    if not _is_alike(row, written):
        return False
    if row.next_time != written.next_time:
        # It may have been run by now.
        return row.version > seen.version and row.fence > seen.fence
    # The version of a row of PerfectSched's is a checksum: it says nothing about its times.
    times = row.next_run_time, row.status
    return row.version != seen.version or times == (written.next_run_time, written.status)


def _is_alike(row: Row, other: Row) -> bool:
    return all(getattr(row, name) == getattr(other, name) for name in _DEFINITION) and all(
        _bytes(getattr(row, name)) == _bytes(getattr(other, name)) for name in _PAYLOADS
    )


def _bytes(stored: str | bytes | None) -> bytes | None:
    plain = readable(stored)
    return plain.encode() if isinstance(plain, str) else plain

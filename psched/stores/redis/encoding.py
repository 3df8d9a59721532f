"""Converts rows to arguments of the Lua scripts, and answers of the scripts to rows."""

import json
from collections.abc import Sequence
from math import floor, isfinite
from typing import Any

from psched.core.model import DEFAULT_TYPE, QUARANTINED, WAITING, Row, Settlement
from psched.core.selection import Selection
from psched.stores.upgrading import label_and_rest

Argument = bytes | str | int

PAGE = 200
"""The most rows that ``page`` looks at for one page without a filter."""

FILTERED_PAGE = 500
"""The most rows that ``page`` looks at for one page with a filter.

The number is larger than `PAGE`, because most of these rows are not returned. The server serves no
other client during this time, 2 to 5 ms.
"""

_LARGEST = 2**63 - 1

_COMPLETE = 32
"""The number of elements of a row in an answer: the key, next_run_time and 30 columns.

If the script could not read the row's hash, the row has fewer elements.
"""


def add_arguments(row: Row) -> Sequence[Argument]:
    """The arguments of the script ``add`` for one new row."""
    return (
        text(row.key),
        text(row.type),
        optional_text(row.data),
        optional_text(row.cron),
        optional_text(row.timezone),
        row.delay,
        optional_number(row.next_time),
        optional_number(row.next_run_time),
        optional_number(row.alive_time),
        optional_text(row.options),
        optional_text(row.local_time),
        optional_text(row.label),
        optional_text(row.lane),
        optional_text(row.run_as),
    )


def replace_arguments(seen: Row, new: Row) -> Sequence[Argument]:
    """The arguments of ``replace``: values of the row as it was read, then its new values."""
    return (
        text(new.key),
        seen.version,
        seen.fence,
        text(seen.owner or ""),
        optional_number(seen.next_run_time),
        text(seen.known_status or ""),
        text(new.type),
        optional_text(new.data),
        optional_text(new.cron),
        optional_text(new.timezone),
        new.delay,
        optional_number(new.next_time),
        optional_number(new.next_run_time),
        text(new.status),
        optional_text(new.reason),
        new.attempt,
        optional_number(new.alive_time),
        optional_text(new.options),
        optional_number(new.created_at),
        optional_number(new.retain_until),
        optional_text(new.label),
        optional_text(new.lane),
        optional_text(new.run_as),
        *_told(new),
    )


def settle_arguments(end: Settlement) -> Sequence[Argument]:
    """The arguments of the script ``settle`` for one settlement."""
    return (
        text(end.key),
        text(end.token.owner),
        end.token.fence,
        end.version,
        text(end.seen_status or ""),
        optional_number(end.next_time),
        end.not_before or 0,
        # One second is added, because scripts round the clock down, and the wait would otherwise
        # end early.
        end.wait + 1 if end.wait else 0,
        int(end.rest),
        int(end.remove),
        optional_number(end.retain),
        end.attempt,
        text(end.status),
        optional_text(end.reason),
        *_told(end),
    )


def _told(source: Row | Settlement) -> Sequence[Argument]:
    """The values of the function `told` of the scripts."""
    return (
        optional_number(source.decided_until),
        optional_number(source.moved_at),
        optional_text(source.local_time),
        optional_text(source.reason_code),
        optional_number(source.paused_at),
        optional_number(source.paused_until),
        optional_text(source.pause_note),
    )


def labels(stored: Sequence[bytes]) -> Sequence[Argument]:
    """The arguments of ``upgrade`` for rows with a label, given their keys and options."""
    found: list[Argument] = []
    for key, options in zip(stored[::2], stored[1::2], strict=True):
        if (told := label_and_rest(options)) is not None:
            label, rest = told
            found += key, options, text(label), optional_text(rest)
    return found


def text(value: str) -> bytes:
    """Encode a text as UTF-8.

    Half of a surrogate pair, which UTF-8 cannot encode, becomes ``?``.
    """
    return value.encode(errors="replace")


def optional_text(value: str | bytes | None) -> bytes:
    """Encode a text as ``=`` followed by the text, and None as an empty argument."""
    if value is None:
        return b""
    return b"=" + (value if isinstance(value, bytes) else text(value))


def optional_number(value: int | None) -> Argument:
    """Convert a number to an argument of a script; None becomes an empty argument."""
    return "" if value is None else value


def decoded(stored: bytes) -> str:
    """The text that was stored; bytes that are no text are replaced."""
    return stored.decode(errors="replace")


def decoded_or_none(stored: bytes | None) -> str | None:
    """The text that was stored, see `decoded`; None if there is none."""
    return None if stored is None else decoded(stored)


def whole(stored: bytes | None) -> int | None:
    """The whole number in a text; None if there is none."""
    try:
        return None if stored is None else int(stored)
    except ValueError:
        return None


def row_of(answer: Sequence[Any]) -> Row:
    """Convert a row of a script's answer; a number that cannot be read becomes 0 or None."""
    key, due, *columns = answer
    if len(answer) < _COMPLETE:
        reason = f"its row {decoded(columns[0])}"
        return Row(decoded(key), next_run_time=_time(due), status=QUARANTINED, reason=reason)
    (
        kind, data, cron, timezone, delay, next_time, owner, fence, settled_by, attempt, status,
        reason, version, created_at, alive_time, options, retain_until, claimed_at, held_by,
        held_until, decided_until, moved_at, local_time, reason_code, paused_at, paused_until,
        pause_note, label, lane, run_as,
    ) = columns  # fmt: skip
    return Row(
        key=decoded(key),
        type=DEFAULT_TYPE if kind is None else decoded(kind),
        data=_payload(data),
        cron=decoded_or_none(cron),
        timezone=decoded_or_none(timezone),
        delay=whole(delay) or 0,
        next_time=whole(next_time),
        next_run_time=_time(due),
        owner=decoded_or_none(owner),
        fence=whole(fence) or 0,
        settled_by=decoded_or_none(settled_by),
        attempt=whole(attempt) or 0,
        status=WAITING if status is None else decoded(status),
        reason=decoded_or_none(reason),
        version=1 if version is None else whole(version) or 0,
        created_at=whole(created_at),
        alive_time=whole(alive_time),
        options=_payload(options),
        retain_until=whole(retain_until),
        claimed_at=_claimed_at(claimed_at, fence),
        held_by=decoded_or_none(held_by),
        held_until=whole(held_until),
        decided_until=whole(decided_until),
        moved_at=whole(moved_at),
        local_time=decoded_or_none(local_time),
        reason_code=decoded_or_none(reason_code),
        paused_at=whole(paused_at),
        paused_until=whole(paused_until),
        pause_note=decoded_or_none(pause_note),
        label=decoded_or_none(label),
        lane=decoded_or_none(lane),
        run_as=decoded_or_none(run_as),
    )


def filter_of(selection: Selection) -> bytes:
    """The filter of the script ``page``, which may return other rows besides."""
    if selection.selects_all:
        return b""
    chosen = {
        "statuses": sorted(selection.statuses),
        "types": sorted(selection.types),
        "labels": sorted(selection.labels),
        "prefix": selection.prefix,
        "due": selection.due,
    }
    return text(json.dumps(chosen, ensure_ascii=False))


def _payload(stored: bytes | None) -> str | bytes | None:
    try:
        return None if stored is None else stored.decode()
    except UnicodeDecodeError:
        return stored


def _claimed_at(stored: bytes | None, fence: bytes | None) -> int | None:
    """When a lease was claimed; None if the field is that of another lease."""
    time, _, of = (stored or b"").partition(b"#")
    return whole(time) if of == (fence or b"0") else None


def _time(score: bytes | None) -> int | None:
    if score is None:
        return None
    seconds = float(score)
    return floor(seconds) if isfinite(seconds) else _LARGEST if seconds > 0 else -_LARGEST


def seconds_of(seconds: bytes, microseconds: bytes) -> float:
    """A time of the server's clock, in Unix seconds."""
    return int(seconds) + int(microseconds) / 1e6

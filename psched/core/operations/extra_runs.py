"""Extra runs of a schedule, beside its regular occurrences: `psched trigger`, `psched backfill`.

An extra run is a row of its own, which runs once. Its key is the schedule's key, an exclamation
mark and an identifier of 16 letters or digits. Nobody can add a schedule with such a key, so the
idempotency key of an extra run never equals that of a regular occurrence. The row's ``options``
name the schedule, and say what happens while another run of the schedule is going on (`OVERLAPS`).

Unless runs may overlap, the worker of an extra run also holds the schedule's row. So no regular
occurrence starts meanwhile, and the extra run does not start during a regular one. The schedule's
row changes as if nothing ran: see `psched.core.store_protocol.HoldsSchedules`.
"""

import re
from datetime import UTC, datetime

from psched.base.errors import InvalidError
from psched.core.columns import NAME_LENGTH, parse_options
from psched.core.model import Row

QUEUE = "queue"  # wait until the other run has ended
SKIP = "skip"  # do not run at all
PARALLEL = "parallel"  # run at the same time

OVERLAPS = (QUEUE, SKIP, PARALLEL)
"""What an extra run does while another run of its schedule is going on."""

SCHEDULE_OPTION = "schedule"
"""The option of an extra run that contains the key of its schedule."""

OVERLAP_OPTION = "overlap"
"""The option of an extra run that contains one of `OVERLAPS`."""

ID_LENGTH = 16

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_TIME_LENGTH = 9
"""The digits of a time in milliseconds, which are enough until the year 5188."""

_ID_OF_INSTANT = "%Y%m%dT%H%M%SZ"

_KEY = re.compile(rf"(?P<schedule>.+)!(?P<id>[0-9A-Za-z]{{{ID_LENGTH}}})", re.DOTALL)


def extra_key(key: str, id_: str) -> str:
    """The key of an extra run of the schedule with this key."""
    longest = NAME_LENGTH - ID_LENGTH - 1
    if len(key) > longest:
        raise InvalidError(
            "key", f"has {len(key)} characters; a schedule with extra runs may have {longest}"
        )
    return f"{key}!{id_}"


def prefix_of_extra_runs(key: str) -> str:
    """The beginning of the keys of all extra runs of a schedule; other keys can have it, too."""
    return f"{key}!"


def random_id(now: float, nonce: str, *, length: int = ID_LENGTH) -> str:
    """An identifier, such as that of an extra run that somebody has triggered.

    Identifiers are sorted by the time at which they were made.
    """
    from hashlib import sha256  # noqa: PLC0415  # runners do without it

    random = int.from_bytes(sha256(nonce.encode()).digest())
    return _in_digits(int(now * 1000), _TIME_LENGTH) + _in_digits(random, length - _TIME_LENGTH)


def _in_digits(number: int, length: int) -> str:
    digits = ""
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits


def id_of_instant(instant: int) -> str:
    """The identifier of the extra run that repeats a scheduled time, such as 20261125T023000Z."""
    return datetime.fromtimestamp(instant, UTC).strftime(_ID_OF_INSTANT)


def schedule_of(key: str) -> str | None:
    """The key of the schedule whose extra run has this key; None for any other key."""
    if key[-ID_LENGTH - 1 : -ID_LENGTH] != "!":
        return None  # this is so of nearly every key, and found out faster
    match = _KEY.fullmatch(key)
    return match["schedule"] if match else None


def schedule_key(key: str) -> str:
    """The key of the schedule: of an extra run, that of its schedule; else the key itself."""
    return schedule_of(key) or key


def refuse_extra_key(key: str) -> None:
    """Refuse the key of a new schedule if it has the form of an extra run's key."""
    if schedule_of(key) is not None:
        raise InvalidError(
            "key", f"{key!r} ends like the key of an extra run: ! and {ID_LENGTH} characters"
        )


def check_overlap(overlap: object) -> str:
    """Check one of `OVERLAPS`, and return it."""
    if not isinstance(overlap, str) or overlap not in OVERLAPS:
        raise InvalidError("overlap", f"must be {', '.join(OVERLAPS)}, not {overlap!r}")
    return overlap


def needed_schedule(row: Row) -> tuple[str, str] | None:
    """The schedule whose lease an extra run needs, and its `OVERLAPS`; None if it needs none.

    A row with a trigger is no extra run, whatever its key is.
    """
    schedule = schedule_of(row.key)
    if schedule is None or row.cron:
        return None
    options = parse_options(row.options)
    key, overlap = options.get(SCHEDULE_OPTION), options.get(OVERLAP_OPTION, QUEUE)
    if key != schedule or overlap == PARALLEL:
        return None
    return key, check_overlap(overlap)

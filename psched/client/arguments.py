"""Checks what callers have given: keys, times, and a store that is asked for its history."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from psched.base.errors import InvalidError, NotFoundError, NotSupportedError
from psched.base.quantities import DURATIONS, as_seconds
from psched.core.columns import LATEST_TIME
from psched.core.history.protocol import KeepsHistory
from psched.core.output.protocol import KeepsOutput
from psched.core.schedule import Since
from psched.core.store_protocol import Store

_LONGEST_AGE = 10**9
"""A number from here on is a time in Unix seconds; a smaller one is an age of up to 31 years."""


def keeping_history(store: Store) -> KeepsHistory:
    """The store, if it can keep a run history and an audit trail."""
    if not isinstance(store, KeepsHistory):
        raise NotSupportedError(
            "this store keeps no run history and no audit trail; psched's own table keeps both, and"
            " so does a store of your own that has the methods of KeepsHistory"
        )
    return store


def keeping_output(store: Store) -> KeepsOutput:
    """The store, if it can keep what tasks print."""
    if not isinstance(store, KeepsOutput):
        raise NotSupportedError(
            "this store does not keep what tasks print; psched's own table does, and so does a"
            " store of your own that has the methods of KeepsOutput"
        )
    return store


def earliest(since: Since, now: Callable[[], float]) -> int:
    """The earliest time that is meant by an argument ``since``, in Unix milliseconds."""
    if isinstance(since, datetime):
        if since.tzinfo is None:
            raise InvalidError(
                "since",
                "is a datetime without a zone; give it one: tzinfo=ZoneInfo('Europe/Paris')",
            )
        return round(since.timestamp() * 1000)
    seconds: Any = as_seconds(since)
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 <= seconds <= LATEST_TIME:
        raise InvalidError(
            "since",
            f"must be an age ({DURATIONS}, a timedelta, or a number of seconds), a datetime or"
            f" Unix seconds, not {since!r}",
        )
    if isinstance(since, str | timedelta) or seconds < _LONGEST_AGE:
        seconds = now() - seconds
    return int(seconds * 1000)


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


def chosen_key(key: str | None) -> str | None:
    """Return the argument ``key`` of a method that selects records; None means every key."""
    if key is None:
        return None
    if not isinstance(key, str):
        raise InvalidError("key", f"must be a text, not {key!r}")
    return stored_key(key)

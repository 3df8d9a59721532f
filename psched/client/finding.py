"""Finds schedules by keys, and by patterns of keys."""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from psched.core.model import Row
from psched.core.schedule import ListOrder, ScheduleMetadata, Schedules
from psched.core.selection import selection_of

_WILDCARDS = "*?"


def is_pattern(text: str) -> bool:
    """Whether a text contains a wildcard: ``*`` for any characters, or ``?`` for one."""
    return any(wildcard in text for wildcard in _WILDCARDS)


def matches(text: str, pattern: str) -> bool:
    """Whether a text matches a pattern as a whole."""
    if len(pattern) - pattern.count("*") > len(text):
        return False  # and a long pattern, which may come from a request, is not even compiled
    return fnmatchcase(text, pattern.replace("[", "[[]"))  # a bracket is no wildcard


def find(
    schedules: Schedules,
    patterns: Sequence[str],
    conditions: Mapping[str, Any],
    order: ListOrder = "next",
    watch: Callable[[Iterator[Row]], Iterator[Row]] = iter,
) -> Iterator[Row]:
    """Read the rows that fulfil the conditions, and whose keys match one of the patterns, if any.

    Rows are read by the beginnings of the patterns, which the database finds through an index.
    """
    beginnings = {_before_wildcard(pattern) for pattern in patterns or ("",)}
    # A beginning is dropped if it is longer than another one that its keys have as well.
    prefixes = [p for p in beginnings if not any(p != q and p.startswith(q) for q in beginnings)]
    found = [schedules.list(**conditions, prefix=prefix, order=order) for prefix in prefixes]
    if selection_of(status=conditions["status"], order=order).sorted_by_key:
        merged = heapq.merge(*found, key=_key_of)
    else:
        merged = heapq.merge(*found, key=_time_of)
    rows = watch(metadata.row for metadata in merged)
    return (row for row in rows if not patterns or any(matches(row.key, each) for each in patterns))


def _before_wildcard(pattern: str) -> str:
    ends = (pattern.find(wildcard) for wildcard in _WILDCARDS if wildcard in pattern)
    return pattern[: min(ends, default=len(pattern))]


def _key_of(metadata: ScheduleMetadata) -> str:
    return metadata.key


def _time_of(metadata: ScheduleMetadata) -> tuple[bool, int, str]:
    time = metadata.next_run_time
    return time is None, time or 0, metadata.key

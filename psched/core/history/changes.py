"""Reads the changes in the audit trail."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from psched.core.history.records import AuditRecord


def time_of(change: AuditRecord) -> float:
    """When a change was made, in Unix seconds."""
    return (change.time or 0) / 1000


@lru_cache(maxsize=16)  # those who read a change ask for its columns one by one
def values(text: str | None) -> Mapping[str, Any]:
    """The columns in `AuditRecord.before` or `AuditRecord.after`; none if they cannot be read."""
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def changes_trigger(change: AuditRecord) -> bool:
    """Whether a change of an existing schedule has changed its trigger."""
    before, after = values(change.before), values(change.after)
    if any(name in after and before.get(name) != after[name] for name in ("cron", "timezone")):
        return change.before is not None
    has_options = "options" in before and "options" in after
    return has_options and setting(before, "dst_policy") != setting(after, "dst_policy")


def setting(columns: Mapping[str, Any], name: str) -> object:
    """A setting of the schedule itself; None if there is none, or none is known."""
    options = columns.get("options")
    if isinstance(options, str):
        options = values(options)
    return options.get(name) if isinstance(options, Mapping) else None


def who(change: AuditRecord) -> str:
    """Who has made a change, and with which program."""
    return f"by {change.user} on {change.host} ({change.program})"

"""What the masters of this host tell about a running task, and which table they serve."""

from collections.abc import Mapping
from typing import Any

from psched.config import Config
from psched.reports.redaction import Redaction


def served_by(master: Mapping[str, Any]) -> str | None:
    """The table that a master serves, by its status; None if it does not know it yet."""
    return f"table {master['table']} on {master['url']}" if "url" in master else None


def table_of(settings: Config) -> str:
    """The table that the settings name, in the same form."""
    return f"table {settings.table} on {settings.safe_url}"


def serves(master: Mapping[str, Any], settings: Config) -> bool:
    """Whether a master, by its status, serves the configured table, as far as it tells."""
    return served_by(master) in {None, table_of(settings)}


def shown_progress(task: Mapping[str, Any], redaction: Redaction) -> Mapping[str, Any] | None:
    """The progress of a task in a master's status, with values hidden; None if there is none."""
    progress = task.get("progress")  # masters of older versions do not send it
    if progress is None:
        return None
    return {"percent": progress["percent"], "text": redaction.text(progress["text"])}

"""What the masters of this host tell about a running task, and which table they serve."""

import os
from collections.abc import Mapping
from typing import Any

from psched.config import Config
from psched.core.history.redaction import Redaction
from psched.core.model import Occurrence
from psched.master.reports.queries import ask_all
from psched.master.runtime_folders import socket_folders


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


def progress_here(
    occurrence: Occurrence, settings: Config, redaction: Redaction
) -> Mapping[str, Any] | None:
    """The progress of a running task, if a master of this host runs it and answers; else None."""
    for _pid, answer in ask_all(socket_folders(os.environ)):
        if isinstance(answer, OSError) or served_by(answer) != table_of(settings):
            continue
        for worker in answer["workers"]:
            for task in worker["tasks"]:
                if task["occurrence"] == str(occurrence):
                    return shown_progress(task, redaction)
    return None

"""The forms of a log line: text, JSON, and lines for systemd's journal.

A text line is ``time [pid] level process [key.scheduled_time] message``; continuation lines are
indented. In the journal, each line begins with its priority (``<3>`` is an error), and has neither
time nor pid, because the journal records both itself; see sd-daemon(3). A JSON line is one object.
"""

import json
import logging
import os
import time
from functools import lru_cache

from psched.base.texts import LONGEST_MESSAGE, cut, traceback_of, visible

COPIED = b"\x1epsched\x1e"
"""Stands before each line of `Log.copies_to`, to tell that the line is in the log, too. The
collector removes it. Other programs print the character 0x1e alone, see RFC 7464."""

_DEBUG, _INFO, _WARNING, _ERROR, _CRITICAL = 7, 6, 4, 3, 2
"""Priorities of syslog(3), which the journal uses."""


def is_journal(descriptor: int) -> bool:
    """Whether a descriptor leads to systemd's journal.

    systemd names the journal's socket in the variable ``JOURNAL_STREAM``, by its device and inode.
    The variable alone proves nothing, because it is inherited by processes whose output is
    redirected.
    """
    named = os.environ.get("JOURNAL_STREAM")
    if not named:
        return False
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return named == f"{found.st_dev}:{found.st_ino}"


def text_line(record: logging.LogRecord, process: str, subject: str) -> str:
    """A message as text, with its traceback if there is one; it ends with a line feed."""
    return f"{_time(record)} [{os.getpid()}] {_body(record, process, subject)}\n"


def journal_lines(record: logging.LogRecord, process: str, subject: str) -> str:
    """A message as lines for the journal, each of which begins with the message's priority.

    The arguments are those of `text_line`.
    """
    prefix = _priority(record)
    # The journal records each line as a message of its own, so each line needs the priority.
    return prefix + _body(record, process, subject).replace("\n", f"\n{prefix}") + "\n"


def json_line(
    record: logging.LogRecord, process: str, subject: str, *, for_journal: bool = False
) -> str:
    """A message as one JSON object on one line. All characters but ASCII are escaped.

    The fields are ``time`` (ISO 8601, UTC), ``level``, ``pid``, ``process``, ``occurrence`` and its
    ``key`` (only if the message is about an occurrence), ``message``, and ``traceback`` (only if
    there is one).
    """
    fields: dict[str, object] = {
        "time": _time(record),
        "level": record.levelname.lower(),
        "pid": os.getpid(),
        "process": process,
    }
    if subject:
        fields |= {"key": subject.rpartition(".")[0], "occurrence": subject}
    fields["message"] = cut(record.getMessage(), LONGEST_MESSAGE)
    if traceback := _traceback(record):
        fields["traceback"] = traceback
    return (_priority(record) if for_journal else "") + json.dumps(fields) + "\n"


def _body(record: logging.LogRecord, process: str, subject: str) -> str:
    shown = f" [{subject}]" if subject else ""
    text = cut(record.getMessage(), LONGEST_MESSAGE)
    if traceback := _traceback(record):
        text += "\n" + traceback
    line = f"{record.levelname:<7} {process}{shown} {text}"
    return visible(line, lines=True).replace("\n", "\n    ")


def _traceback(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    return "" if error is None else traceback_of(error)


def _time(record: logging.LogRecord) -> str:
    seconds, millis = divmod(int(record.created * 1000), 1000)
    return f"{_moment(seconds)}.{millis:03}Z"


@lru_cache(maxsize=1)
def _moment(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _priority(record: logging.LogRecord) -> str:
    level = record.levelno
    if level >= logging.CRITICAL:
        return f"<{_CRITICAL}>"
    if level >= logging.ERROR:
        return f"<{_ERROR}>"
    if level >= logging.WARNING:
        return f"<{_WARNING}>"
    return f"<{_INFO if level >= logging.INFO else _DEBUG}>"

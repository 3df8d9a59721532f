"""Opens a schedule in the user's editor, as YAML, and changes it as the edited text says."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from psched.app import CLOCK
from psched.base.errors import ConfigError, InvalidError, PschedError
from psched.base.texts import visible
from psched.cli.output import are_terminals
from psched.client.collection import ScheduleCollection
from psched.client.writing import ChangedMeanwhileError
from psched.config import Config
from psched.core.history.changes import who
from psched.core.model import Row
from psched.core.operations.rescheduled import Rescheduled, changes_of
from psched.files.document import Reader
from psched.files.export import document_of
from psched.files.plan import differences

_MARK = "# psched: "
"""The lines of the file that psched adds, and ignores, begin with this text."""

_LINE = re.compile(r"^line ([0-9]+): ", re.MULTILINE)

_ABOUT = (
    "change the text below, save it, and close the editor.",
    "If the text stays as it is, or is empty, nothing is changed.",
)


def edit_in_editor(
    schedules: ScheduleCollection, key: str, settings: Config, *, dry_run: bool
) -> Rescheduled | None:
    """Let the user edit a schedule, and change it.

    An invalid text is opened again on a terminal, until it is valid or the user leaves it as it is.
    A text that was not used stays in its file, whose path is printed.

    Returns:
        What was changed; None if the user has changed nothing.
    """
    seen = schedules.read(key).row
    if seen.cron is None:
        raise InvalidError(
            "key",
            f"{key!r} runs only once, which the editor cannot show; use options, such as --data",
        )
    original = document_of(seen, settings)
    with _draft(original) as draft:
        problem: str | None = None
        while True:
            given = draft.text
            schedules.close()  # the server might end a connection that is idle while the user edits
            draft.edit(problem)
            if not draft.text.strip() or draft.text == original:
                draft.is_used = True
                return None
            if problem is not None and draft.text == given:
                raise ConfigError(f"nothing was changed: {draft.numbered(problem)}")
            try:
                outcome = _apply(draft, schedules, seen, settings, dry_run=dry_run)
            except (ConfigError, InvalidError) as error:
                problem = str(error)
                if not _is_terminal():
                    text = f"nothing was changed: {draft.numbered(problem)}"
                    raise ConfigError(text) from None
            else:
                draft.is_used = not dry_run
                return outcome


def _apply(
    draft: "_Draft", schedules: ScheduleCollection, seen: Row, settings: Config, *, dry_run: bool
) -> Rescheduled:
    """Change the schedule as the text says."""
    wanted = _parse(draft, seen.key, settings)
    changes = {each.field: each.new for each in differences(seen, wanted, settings)}

    def decide(row: Row) -> Mapping[str, Any]:
        if row.version != seen.version or changes_of(seen, row, settings):
            by = _by(schedules, row)
            raise ChangedMeanwhileError(
                f"nothing was changed: {seen.key!r} was changed meanwhile{by}; edit it again"
            )
        return changes

    return schedules.edit(seen.key, decide, dry_run=dry_run)


def _parse(draft: "_Draft", key: str, settings: Config) -> Row:
    """The row that the text describes."""
    reader = Reader(settings, now=CLOCK.wall)
    reader.read_text(draft.text, draft.path)
    try:
        rows = [row for document in reader.documents() for row in document.rows.values()]
    except ConfigError as error:
        text = str(error).replace(f"{draft.path}: ", "")
        raise ConfigError(text.replace(f"{draft.path}:", "line ")) from None
    if [row.key for row in rows] != [key]:
        raise ConfigError(
            f"schedules: must contain {key} alone; to add another schedule, use psched add or apply"
        )
    return rows[0]


def _by(schedules: ScheduleCollection, row: Row) -> str:
    """Who has changed a row last, as far as the audit trail knows."""
    with suppress(PschedError):
        for each in schedules.audit(row.key, limit=1):
            return f" ({each.action}) {who(each)}"
    return ""


class _Draft:
    """The file in which the user edits.

    Args:
        path: the file.
        text: the text without psched's own lines.

    Attributes:
        is_used: whether the text is not needed any more.
        is_unreadable: whether the file contains something that is no text.
    """

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text
        self.is_used = self.is_unreadable = False
        self._header = 0  # the number of psched's own lines

    def numbered(self, problem: str) -> str:
        """A problem whose line numbers, which are those of ``text``, become those of the file."""
        return _LINE.sub(lambda found: f"line {int(found[1]) + self._header}: ", problem)

    def edit(self, problem: str | None) -> None:
        """Write the file, start the editor, wait for its end, and read the file."""
        self._header = len((problem or "").splitlines()) + len(_ABOUT)
        about = [f"Error: {line}" for line in self.numbered(problem or "").splitlines()]
        lines = [f"{_MARK}{visible(line)}\n" for line in (*about, *_ABOUT)]
        self.path.write_text("".join(lines) + self.text, encoding="utf-8")
        failure = _run_editor(self.path)
        try:
            written = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            self.is_used = True
            raise failure or ConfigError("nothing was changed: the file is gone") from None
        except (OSError, UnicodeDecodeError) as error:
            self.is_unreadable = True
            text = f"{self.path}: cannot be read as UTF-8 text: {error}"
            raise failure or ConfigError(text) from None
        self.text = "".join(
            line for line in written.splitlines(keepends=True) if not line.startswith(_MARK)
        )
        # An editor can fail after the user has saved the text.
        if failure is not None:
            raise failure


@contextmanager
def _draft(text: str) -> Iterator[_Draft]:
    """A file that only its owner can read; a text that was not used stays in it."""
    descriptor, path = tempfile.mkstemp(prefix="psched-", suffix=".yml", text=True)
    os.close(descriptor)
    draft = _Draft(Path(path), text)
    try:
        yield draft
    except BaseException:
        draft.is_used |= draft.text == text and not draft.is_unreadable
        raise
    finally:
        if draft.is_used:
            draft.path.unlink(missing_ok=True)
        else:
            click.echo(f"the text stays in {draft.path}", err=True)


def _run_editor(path: Path) -> ConfigError | None:
    """Start the editor, and wait for its end. Ctrl-C is meant for the editor meanwhile.

    Returns:
        How it has failed; None if it has not.
    """
    name = next((each for each in ("VISUAL", "EDITOR") if os.environ.get(each)), None)
    chosen = os.environ[name] if name else "vi"
    said = f"{chosen!r} ({f'${name}' if name else 'set $EDITOR'})"
    try:
        editor = subprocess.Popen([*shlex.split(chosen), path])
    except (OSError, ValueError) as error:
        raise ConfigError(f"the editor {said} cannot be started: {error}") from None
    status = None
    while status is None:
        with suppress(KeyboardInterrupt):
            status = editor.wait()
    if not status:
        return None
    how = f"failed with status {status}" if status > 0 else f"been killed by signal {-status}"
    return ConfigError(f"nothing was changed: the editor {said} has {how}")


def _is_terminal() -> bool:
    return are_terminals(sys.stdin, sys.stdout)

"""The command edit: by options, or in the user's editor, as YAML."""

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
from psched.cli.opening import warn_of_hosts, warn_of_types
from psched.cli.operate.chosen import Chosen, change_chosen, changing, lines_of
from psched.cli.operate.waiting import json_data
from psched.cli.output import are_terminals
from psched.cli.schedules.arguments import (
    OPTIONS,
    fields_of_a_schedule,
    pop_times,
    warn_of_trigger,
)
from psched.client.access import ChangedMeanwhileError
from psched.client.collection import ScheduleCollection
from psched.client.verbs.editing import Decide, Edit
from psched.config import OVERRIDES, Config
from psched.core.declare import TRIGGER_FIELDS
from psched.core.history.changes import who
from psched.core.hosts import lane_of
from psched.core.model import Row
from psched.core.operations.rescheduled import Rescheduled, changes_of
from psched.files.document import Reader
from psched.files.export import document_of
from psched.files.plan import differences
from psched.reports.redaction import Redaction
from psched.triggers.zone import find_zone

_REMOVABLE = ("timezone", "alive_time", "label", "hosts", "run_as", "note", *OVERRIDES)
"""The fields that --unset can remove."""

_MARK = "# psched: "
"""The lines of the file that psched adds, and ignores, begin with this text."""

_LINE = re.compile(r"^line ([0-9]+): ", re.MULTILINE)

_ABOUT = (
    "change the text below, save it, and close the editor.",
    "If the text stays as it is, or is empty, nothing is changed.",
)


@changing(
    click.option(
        "--cron",
        metavar="CRON",
        help="When it runs: a cron line, or a trigger; see psched add --help.",
    ),
    click.option(
        "--data",
        metavar="JSON",
        help="The data for the handler, a JSON object; - reads them from standard input.",
    ),
    click.option(
        "--new-type", metavar="TYPE", help="The type of its tasks, which selects the handler."
    ),
    fields_of_a_schedule(new=False),
    click.option(
        "--unset",
        type=click.Choice(sorted(_REMOVABLE)),
        metavar="FIELD",
        multiple=True,
        help="Remove this value of its own, so that the installation's setting applies again; may"
        " be repeated. A FIELD is a setting such as jitter, or timezone, alive_time, run_as,"
        " label, hosts or note.",
    ),
)
def edit(
    chosen: Chosen,
    *,
    cron: str | None,
    data: str | None,
    new_type: str | None,
    interval: int | None,
    unset: tuple[str, ...],
    **given: Any,  # noqa: ANN401  # the options of `fields_of_a_schedule`
) -> None:
    """Change schedules.

    The changed fields and the next three runs before and after the change are shown.

    Without an option that changes something, your editor ($VISUAL, else $EDITOR, else vi) opens the
    schedule with this KEY as psched export writes it. The text may contain every field. If it is
    not valid, the editor opens it again, with the error at its top. If the text is not used, it
    stays in a file, whose path is shown.

    KEYS are keys or patterns, in which * stands for any characters and ? for one; quote patterns.
    Patterns and conditions choose only those that match all of them. What is finished or cancelled
    is left out unless --status names it. --type chooses schedules; --new-type changes their type.

    If the schedule runs now, this run goes on as it was started. If CRON, --every, --timezone or
    --dst-policy is given, the next run is computed anew, from now on.

    A DURATION is seconds, or a number with the unit s, m, h or d: 30s, 5m, 1h, 30d. A TIME is
    18:00, tomorrow 09:00, 2026-01-31T09:00 or Unix seconds; without an offset, it is in the zone of
    --timezone, else in yours.
    """
    if cron is not None and interval is not None:
        raise click.UsageError("--every replaces --cron; leave one out")
    # An empty name, as of an unset variable, is refused.
    zone = None if given["timezone"] is None else find_zone(given["timezone"])
    times = pop_times(given, zone)
    fields = {"cron": cron, "every": interval, "type": new_type, **given, **times}
    changed = {name: value for name, value in fields.items() if value is not None}
    if data is not None:
        changed["data"] = json_data(data)
    if both := {*changed} & {*unset}:
        raise click.UsageError(f"--unset {min(both)} contradicts the option that sets it")
    changed |= dict.fromkeys(unset)
    with chosen.open() as schedules:
        if not changed:
            _edit_text(schedules, chosen)
            return
        change_chosen(schedules, chosen, Edit(lambda _: changed), OPTIONS)
        _warn(schedules, chosen, changed)
        warn_of_types(schedules, [] if new_type is None else [new_type])
        warn_of_hosts(schedules, [lane_of(changed.get("hosts"))])


def _warn(schedules: ScheduleCollection, chosen: Chosen, changed: Mapping[str, Any]) -> None:
    """Warn about the new triggers of named schedules."""
    if chosen.dry_run or TRIGGER_FIELDS.isdisjoint(changed):
        return
    for found in schedules.read_many(chosen.keys).values():
        warn_of_trigger(found.row, chosen.settings)


# --- in the editor -----------------------------------------------------------------------


def _edit_text(schedules: ScheduleCollection, chosen: Chosen) -> None:
    """Open one schedule in the user's editor."""
    if len(chosen.keys) != 1 or not chosen.names_each(schedules):
        raise click.UsageError(
            "give options that say what to change, such as --cron; without any, the editor opens"
            " one schedule, which is named by its KEY alone"
        )
    key, settings = chosen.keys[0], chosen.settings
    outcome = _edit_in_editor(schedules, key, settings, dry_run=chosen.dry_run)
    if outcome is None or outcome.changes_nothing:
        click.echo(f"{key}: unchanged")
        return
    click.echo(f"{key}: {'would be edited' if chosen.dry_run else 'edited'}")
    for line in lines_of(outcome, Redaction.of_changes(settings.redact)):
        click.echo(f"    {line}")
    _warn(schedules, chosen, outcome.changes)


def _edit_in_editor(
    schedules: ScheduleCollection, key: str, settings: Config, *, dry_run: bool
) -> Rescheduled | None:
    """Let the user edit a schedule, and change it; None if the user has changed nothing.

    An invalid text is opened again on a terminal, until it is valid or the user leaves it as it is.
    A text that was not used stays in its file, whose path is printed.
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
                if not are_terminals(sys.stdin, sys.stdout):
                    text = f"nothing was changed: {draft.numbered(problem)}"
                    raise ConfigError(text) from None
            else:
                draft.is_used = not dry_run
                return outcome


def _apply(
    draft: "_Draft", schedules: ScheduleCollection, seen: Row, settings: Config, *, dry_run: bool
) -> Rescheduled:
    """Change the schedule as the text says."""
    wanted = row_of_text(draft.text, draft.path, seen.key, settings)
    decide = change_to(wanted, schedules, seen, settings)
    return schedules.edit(seen.key, decide, dry_run=dry_run)


def change_to(wanted: Row, schedules: ScheduleCollection, seen: Row, settings: Config) -> Decide:
    """What makes a schedule the wanted one, unless somebody has changed it since it was seen."""
    changes = {name: each.new for name, each in differences(seen, wanted, settings).items()}

    def decide(row: Row) -> Mapping[str, Any]:
        if row.version != seen.version or changes_of(seen, row, settings):
            by = _by(schedules, row)
            raise ChangedMeanwhileError(
                f"nothing was changed: {seen.key!r} was changed meanwhile{by}; edit it again"
            )
        return changes

    return decide


def row_of_text(text: str, path: Path, key: str, settings: Config) -> Row:
    """The row that a text of one schedule describes, as `psched export` writes it."""
    reader = Reader(settings, now=CLOCK.wall)
    reader.read_text(text, path)
    try:
        rows = [row for document in reader.documents() for row in document.rows.values()]
    except ConfigError as error:
        problem = str(error).replace(f"{path}: ", "")
        raise ConfigError(problem.replace(f"{path}:", "line ")) from None
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
    """The file in which the user edits; its ``text`` is without psched's own lines."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text
        self.is_used = False  # whether the text is not needed any more
        self.is_unreadable = False  # whether the file contains something that is no text
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
    """Start the editor, and wait for its end; return how it has failed, if it has.

    Ctrl-C is meant for the editor meanwhile.
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

"""The command apply."""

import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from psched.app import CLOCK
from psched.base.errors import AlreadyExistsError
from psched.base.loader import gc_paused
from psched.cli import opening, options
from psched.cli.opening import open_to_change, settings_to_write, warn_of_hosts, warn_of_types
from psched.cli.options import ConfigLocation
from psched.cli.output import one_line
from psched.cli.progress import Progress, quiet_option
from psched.cli.schedules.arguments import warn_of_steps
from psched.cli.time_format import format_time
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.core.model import ENDED, WAITING
from psched.files.apply import apply_plan, make_plan
from psched.files.document import Document, Reader, Track, untracked
from psched.files.plan import Item, NextRuns, Plan, next_after, next_before, non_defaults
from psched.reports.redaction import Redaction

PENDING = 3
"""Exit status of --dry-run: the plan is not empty."""

_LONGEST = 200
"""The maximum length, in characters, of a value in the output. A longer value is cut."""

_SHORT = 60
"""The maximum length, in characters, of a schedule's command or data in the plan."""

_RESULTS = {"removed": "deleted", "marked": "will be deleted when its task has stopped"}
"""For a result that `apply_plan` reports: the text that is shown in place of the result. Results
that are not listed here are shown unchanged."""

_STANDARD_INPUT = Path("-")


@click.command()
@click.argument(
    "paths", metavar="FILE|FOLDER...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option("--dry-run", is_flag=True, help="Only show the plan; exit with 3 if it is not empty.")
@click.option(
    "--prune",
    is_flag=True,
    help="Also delete the schedules of each label that are no longer in its files.",
)
@click.option(
    "--label", metavar="LABEL", help="The owner of the schedules in files without a label."
)
@click.option(
    "--adopt", is_flag=True, help="Take over existing schedules that have another label, or none."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Show the plan as JSON, one object per label."
)
@click.option("-v", "--verbose", is_flag=True, help="Show all fields and the next runs.")
@quiet_option
@opening.message
@options.zone()
@options.database
@click.pass_obj
def apply(
    location: ConfigLocation,
    /,
    paths: tuple[Path, ...],
    label: str | None,
    message: str | None,
    *,
    quiet: bool,
    **how: bool,  # the options of `apply_documents`
) -> None:
    """Add and change schedules as files declare them.

    The plan is shown first. A schedule that is no longer in the files of its label is shown, but is
    deleted only with --prune. Schedules of other labels are changed only with --adopt. Running
    tasks continue, except those of deleted schedules, which their workers stop. Applying the same
    files again is safe.
    """
    settings = settings_to_write(location)
    track = Progress(quiet=quiet)
    reader = Reader(settings, label, now=CLOCK.wall, track=track)
    # Garbage collection would take a third of the time: it examines all schedules again and again.
    with gc_paused():
        if _STANDARD_INPUT in paths:
            reader.read_text(sys.stdin.read(), Path("standard input"))
        documents = reader.read(path for path in paths if path != _STANDARD_INPUT)
        with open_to_change(settings, message) as schedules:
            apply_documents(documents, schedules, settings, track=track, **how)


def apply_documents(
    documents: Sequence[Document],
    schedules: ScheduleCollection,
    settings: Config,
    *,
    dry_run: bool = False,
    prune: bool = False,
    adopt: bool = False,
    as_json: bool = False,
    verbose: bool = False,
    track: Track = untracked,
) -> None:
    """Show the plans of all documents, and carry the plans out.

    If one of the plans is refused, none is carried out. With ``dry_run``, none is carried out, and
    the exit status is `PENDING` if a plan is not empty.
    """
    plans = [
        make_plan(
            schedules,
            each.schedules,
            each.label,
            settings=settings,
            adopt=adopt,
            declared=each.rows,
            track=track,
        )
        for each in documents
    ]
    warn_of_all_steps(documents)
    planned = (item.wanted for made in plans for item in (*made.added, *made.changed))
    pending = [row for row in planned if row is not None]
    warn_of_types(schedules, (row.type for row in pending))
    warn_of_hosts(schedules, (row.lane for row in pending))
    now = schedules.now()
    if len(plans) > 1 and not as_json:
        click.echo(f"{len(plans)} labels: {_summary(plans, prune=prune)}")
    for made in plans:
        if as_json:
            click.echo(json.dumps(_object(made, settings, now, prune=prune)))
        else:
            shown = _Shown(settings, now, prune=prune, verbose=verbose)
            click.echo("\n".join(map(one_line, shown.lines(made))))
    if refused := [f"{key} {why}" for made in plans for key, why in made.refused.items()]:
        raise AlreadyExistsError("\n".join(refused))
    if dry_run:
        if any(made.is_pending(prune=prune) for made in plans):
            sys.exit(PENDING)
        return
    done = list[str]()
    try:
        for made in plans:
            apply_plan(
                made,
                schedules,
                settings=settings,
                prune=prune,
                report=lambda result, key: done.append(f"{key}: {_RESULTS.get(result, result)}"),
                track=track,
            )
    finally:
        # The results are shown together, because each would otherwise break the line of the bar.
        if done:
            click.echo("\n".join(map(one_line, done)), err=as_json)


def warn_of_all_steps(documents: Sequence[Document]) -> None:
    """Warn about steps in the triggers of declared schedules; see `warn_of_steps`."""
    for document in documents:
        for declared in document.schedules:
            warn_of_steps(declared["key"], declared.get("cron"))


def _summary(plans: Sequence[Plan], *, prune: bool) -> str:
    """Say how many schedules are added, changed, deleted and left unchanged."""
    gone = "to delete" if prune else "no longer in the files, but stay (see --prune)"
    counts = (
        (sum(len(made.added) for made in plans), "to add"),
        (sum(len(made.changed) for made in plans), "to change"),
        (sum(len(made.left) for made in plans), gone),
        (sum(len(made.unchanged) for made in plans), "unchanged"),
    )
    return ", ".join(f"{count} {what}" for count, what in counts if count) or "nothing to do"


class _Shown:
    """Shows plans as text; if ``verbose``, with all fields and the next runs."""

    def __init__(self, settings: Config, now: float, *, prune: bool, verbose: bool) -> None:
        self._settings = settings
        self._now = now
        self._prune = prune
        self._verbose = verbose
        self._redact = Redaction.of_changes(settings.redact).value

    def lines(self, made: Plan) -> Iterator[str]:
        """Yield the lines of a plan; the first is a summary."""
        owner = "without a label" if made.label is None else f"label {made.label}"
        yield f"{owner}: {_summary([made], prune=self._prune)}"
        for item in made.added:
            yield f"+ {item.key}: {self._in_short(item)}"
            if self._verbose and item.wanted is not None:
                for name, value in non_defaults(item.wanted, self._settings).items():
                    yield f"    {name}: {_value(self._redact(value))}"
                yield from self._next(item)
        for item in made.changed:
            yield f"~ {item.key}"
            for name, change in item.changes.items():
                old, new = _value(self._redact(change.old)), _value(self._redact(change.new))
                yield f"    {name}: {old} -> {new}"
            # That a schedule runs again which somebody has ended is always shown.
            if self._verbose or (item.found is not None and item.found.status in ENDED):
                yield from self._next(item)
        for item in made.left:
            yield f"- {item.key}" + ("" if self._prune else " (stays)")
            if self._verbose and self._prune:
                yield from self._next(item)
        yield from _at_rest(made.unchanged)

    def _in_short(self, item: Item) -> str:
        """Say in one line what a schedule to be added is."""
        row = item.wanted
        if row is None:
            return ""
        when = "once" if row.cron is None else row.cron
        zone = row.timezone or self._settings.timezone
        data = self._redact(item.fields.get("data"))
        return f"{self._redact(when)} {zone}, {row.type}{_payload(data)}"

    def _next(self, item: Item) -> Iterator[str]:
        was = next_before(item, self._settings)
        will = next_after(item, self._settings, self._now)
        if was is not None and was != will:
            yield f"    next was: {_runs(was)}"
        if will is not None:
            yield f"    next: {_runs(will)}"


def _runs(runs: NextRuns) -> str:
    return ", ".join(map(format_time, runs.instants)) or runs.problem


def _payload(data: Any) -> str:  # noqa: ANN401  # JSON
    """The command in a schedule's data, or the data, in short; empty if there are none."""
    if not data:
        return ""
    command = data.get("command") if isinstance(data, Mapping) else None
    if isinstance(command, list) and all(isinstance(word, str) for word in command):
        command = shlex.join(command)
    text = command if isinstance(command, str) else json.dumps(data, ensure_ascii=False)
    return f": {text}" if len(text) <= _SHORT else f": {text[:_SHORT]}…"


def _at_rest(items: Iterable[Item]) -> Iterator[str]:
    """Yield a line for each unchanged schedule that will not run, as its status is not waiting."""
    for item in items:
        if item.found is not None and item.found.status != WAITING:
            yield f"= {item.key} (unchanged: it stays {item.found.state})"


def _value(value: Any) -> str:  # noqa: ANN401  # a field of any type
    if value is None:
        return "(default)"
    shown = json.dumps(value, ensure_ascii=False, default=repr)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"


def _object(made: Plan, settings: Config, now: float, *, prune: bool) -> dict[str, Any]:
    """Convert a plan to a dictionary that can be written as JSON."""
    redact = Redaction.of_changes(settings.redact).value

    def shown(item: Item) -> dict[str, Any]:
        was, will = next_before(item, settings), next_after(item, settings, now)
        changes = {
            name: {"old": redact(change.old), "new": redact(change.new)}
            for name, change in item.changes.items()
        }
        return {
            "key": item.key,
            **({"changes": changes} if changes else {}),
            **({} if was is None else {"next_was": was.instants}),
            **({} if will is None else {"next": will.instants}),
        }

    return {
        "label": made.label,
        "pending": made.is_pending(prune=prune),
        "added": [shown(item) for item in made.added],
        "changed": [shown(item) for item in made.changed],
        "removed" if prune else "left": [item.key for item in made.left],
        "unchanged": [item.key for item in made.unchanged],
        "refused": dict(made.refused),
    }

"""The command apply."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from psched.app import open_schedules, read_config
from psched.base.errors import AlreadyExistsError
from psched.cli.exit_status import report_errors
from psched.cli.options import ConfigLocation
from psched.cli.output import one_line
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.core.model import WAITING
from psched.files import preview
from psched.files.apply import apply_plan, make_plan
from psched.files.document import Document, Reader
from psched.files.plan import Item, Plan

PENDING = 3
"""Exit status of --dry-run: the plan is not empty."""

_LONGEST = 200
"""The maximum length, in characters, of a value that a plan shows; longer ones are cut."""

_RESULTS = {"marked": "will be removed when its task has stopped"}
"""Texts shown in place of results that `apply_plan` reports; other results are shown unchanged."""

_STANDARD_INPUT = Path("-")


@click.command()
@click.argument(
    "paths", metavar="FILE|FOLDER...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option("--dry-run", is_flag=True, help="Only show the plan; exit with 3 if it is not empty.")
@click.option(
    "--prune",
    is_flag=True,
    help="Also remove the schedules of each label that are no longer in its files.",
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
@click.pass_obj
@report_errors
def apply(
    location: ConfigLocation,
    paths: tuple[Path, ...],
    label: str | None,
    *,
    dry_run: bool,
    prune: bool,
    adopt: bool,
    as_json: bool,
) -> None:
    """Add and change schedules as files declare them.

    The plan is shown first. Schedules that are no longer in the files of their label are shown, but
    stay unless --prune is given; other schedules are never changed. A running task
    continues; its worker stops it only if its schedule is removed. Applying the same files again is
    safe.
    """
    settings = read_config(*location)
    reader = Reader(settings, label)
    if _STANDARD_INPUT in paths:
        reader.read_text(sys.stdin.read(), Path("standard input"))
    documents = reader.read(path for path in paths if path != _STANDARD_INPUT)
    with open_schedules(settings) as schedules:
        apply_documents(
            documents,
            schedules,
            settings,
            dry_run=dry_run,
            prune=prune,
            adopt=adopt,
            as_json=as_json,
        )


def apply_documents(
    documents: Sequence[Document],
    schedules: ScheduleCollection,
    settings: Config,
    *,
    dry_run: bool = False,
    prune: bool = False,
    adopt: bool = False,
    as_json: bool = False,
) -> None:
    """Show the plans of documents and carry them out; if one plan is refused, carry out none.

    Raises:
        AlreadyExistsError: a key belongs to another label.
    """
    plans = [
        make_plan(schedules, each.schedules, each.label, settings=settings, adopt=adopt)
        for each in documents
    ]
    now = schedules.now()
    for made in plans:
        if as_json:
            shown = json.dumps(_object(made, settings, now, prune=prune))
            click.echo(shown)
        else:
            for line in _lines(made, settings, now, prune=prune):
                click.echo(line)
    if refused := [f"{key} {why}" for made in plans for key, why in made.refused.items()]:
        raise AlreadyExistsError("\n".join(refused))
    if dry_run:
        if any(made.is_pending(prune=prune) for made in plans):
            sys.exit(PENDING)
        return

    def report(done: str, key: str) -> None:
        click.echo(f"{key}: {_RESULTS.get(done, done)}", err=as_json)

    for made in plans:
        apply_plan(made, schedules, settings=settings, prune=prune, report=report)


def _lines(made: Plan, settings: Config, now: float, *, prune: bool) -> Iterator[str]:
    """The lines in which a plan is shown."""
    counts = [
        f"{len(items)} {what}"
        for items, what in (
            (made.added, "to add"),
            (made.changed, "to change"),
            (made.left, "to remove" if prune else "no longer in the files, but stay (see --prune)"),
            (made.unchanged, "unchanged"),
        )
        if items
    ]
    owner = "without a label" if made.label is None else f"label {made.label}"
    yield one_line(f"{owner}: {', '.join(counts) or 'nothing to do'}")
    for sign, items in (("+", made.added), ("~", made.changed), ("-", made.left)):
        for item in items:
            kept = sign == "-" and not prune
            yield one_line(f"{sign} {item.key}" + (" (stays)" if kept else ""))
            for change in item.changes:
                yield one_line(f"    {change.field}: {_value(change.old)} -> {_value(change.new)}")
            if not kept:
                yield from _next(item, settings, now)
    yield from map(one_line, _at_rest(made.unchanged))


def _at_rest(items: Iterable[Item]) -> Iterator[str]:
    """Lines about unchanged schedules that will not run, because their status is not waiting."""
    for item in items:
        if item.found is not None and item.found.status != WAITING:
            yield f"= {item.key} (unchanged: it stays {item.found.state})"


def _next(item: Item, settings: Config, now: float) -> Iterator[str]:
    was, will = preview.before(item, settings), preview.after(item, settings, now)
    if was is not None and was != will:
        yield one_line(f"    next was: {was.shown}")
    if will is not None:
        yield one_line(f"    next: {will.shown}")


def _value(value: Any) -> str:  # noqa: ANN401  # a field of any type
    if value is None:
        return "(default)"
    shown = json.dumps(value, ensure_ascii=False, default=repr)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"


def _object(made: Plan, settings: Config, now: float, *, prune: bool) -> dict[str, Any]:
    """A plan as a JSON object."""

    def shown(item: Item) -> dict[str, Any]:
        was, will = preview.before(item, settings), preview.after(item, settings, now)
        changes = {c.field: {"old": c.old, "new": c.new} for c in item.changes}
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

"""Commands about files in which schedules are declared: apply, export."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from psched.app import open_schedules, read_config
from psched.base.errors import AlreadyExistsError
from psched.cli.exit_status import refusing
from psched.cli.options import Place
from psched.cli.output import write_whole
from psched.cli.schedules.listing import text
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.core.model import WAITING
from psched.files import preview
from psched.files.applying import carry_out, look_at_all, make_plan
from psched.files.document import Document, Reader
from psched.files.plan import Item, Plan
from psched.files.writing import export as exported
from psched.files.writing import text_of

PENDING = 3
"""Exit status: there is something to do, and it was only to be looked at."""

_LONGEST = 200
"""Characters of a value in a plan."""

_DONE = {"marked": "removed when its running task has stopped"}


_STANDARD_INPUT = Path("-")


@click.command()
@click.argument(
    "paths", metavar="FILE|FOLDER...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option("--dry-run", is_flag=True, help="Only show the plan; exit with 3 if it is not empty.")
@click.option("--prune", is_flag=True, help="Remove what has left the files of a label.")
@click.option("--label", help="Whose the schedules are, for files that do not say so.")
@click.option("--adopt", is_flag=True, help="Take over schedules of another label, or of none.")
@click.option("--json", "as_json", is_flag=True, help="The plan as one JSON object per label.")
@click.pass_obj
@refusing
def apply(
    place: Place,
    paths: tuple[Path, ...],
    label: str | None,
    *,
    dry_run: bool,
    prune: bool,
    adopt: bool,
    as_json: bool,
) -> None:
    """Make the database match files: add and change what they declare, and nothing else.

    A plan is shown first. What left the files of a label stays, and is named, unless --prune is
    given. A task that is running goes on; one whose schedule is removed is stopped first, by its
    worker. It is safe to do it again.
    """
    settings = read_config(*place)
    reader = Reader(settings, label)
    if _STANDARD_INPUT in paths:
        reader.take(sys.stdin.read(), Path("standard input"))
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
    """Show the plans of documents and carry them out, all of them or, if one is refused, none.

    Raises:
        AlreadyExistsError: a key is somebody else's.
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

    def tell(done: str, key: str) -> None:
        click.echo(f"{key}: {_DONE.get(done, done)}", err=as_json)

    for made in plans:
        carry_out(made, schedules, settings=settings, prune=prune, tell=tell)


@click.command()
@click.argument("path", default="-", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--label", help="Only the schedules of this label.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.pass_obj
@refusing
def export(place: Place, path: Path, label: str | None, *, force: bool) -> None:
    """Write the schedules to a file, which apply reads; - is standard output.

    Their order is stable, and what is the default is left out. Tasks that run once are not written.
    What cannot be understood is left out and named, and the exit status is 1.
    """
    settings = read_config(*place)
    with open_schedules(settings) as schedules:
        rows = look_at_all(schedules, label)
    documents, remarks, omitted = exported(rows, settings)
    if label is not None and label not in documents:
        documents = {label: {}}
    content = text_of(documents)
    if str(path) == "-":
        click.echo(content, nl=False)
    else:
        write_whole(path, content, force=force)
    for remark in (*remarks, *omitted):
        click.echo(text(remark), err=True)
    if omitted:
        sys.exit(1)


def _lines(made: Plan, settings: Config, now: float, *, prune: bool) -> Iterator[str]:
    """A plan for people."""
    counts = [
        f"{len(items)} {what}"
        for items, what in (
            (made.added, "to add"),
            (made.changed, "to change"),
            (made.left, "to remove" if prune else "left the files and stay (see --prune)"),
            (made.unchanged, "unchanged"),
        )
        if items
    ]
    owner = "without a label" if made.label is None else f"label {made.label}"
    yield text(f"{owner}: {', '.join(counts) or 'nothing to do'}")
    for sign, items in (("+", made.added), ("~", made.changed), ("-", made.left)):
        for item in items:
            kept = sign == "-" and not prune
            yield text(f"{sign} {item.key}" + (" (stays)" if kept else ""))
            for change in item.changes:
                yield text(f"    {change.field}: {_value(change.old)} -> {_value(change.new)}")
            if not kept:
                yield from _next(item, settings, now)
    yield from map(text, _at_rest(made.unchanged))


def _at_rest(items: Iterable[Item]) -> Iterator[str]:
    """What is as declared, but does not run."""
    for item in items:
        if item.found is not None and item.found.status != WAITING:
            yield f"= {item.key} (unchanged: it stays {item.found.state})"


def _next(item: Item, settings: Config, now: float) -> Iterator[str]:
    was, will = preview.before(item, settings), preview.after(item, settings, now)
    if was is not None and was != will:
        yield text(f"    next was: {was.shown}")
    if will is not None:
        yield text(f"    next: {will.shown}")


def _value(value: Any) -> str:  # noqa: ANN401  # of a field
    if value is None:
        return "(default)"
    shown = json.dumps(value, ensure_ascii=False, default=repr)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"


def _object(made: Plan, settings: Config, now: float, *, prune: bool) -> dict[str, Any]:
    """A plan for programs."""

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

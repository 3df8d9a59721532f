"""The command edit."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from psched.app import CLOCK
from psched.base.errors import InvalidError
from psched.cli import changes, options
from psched.cli.changes import open_to_change, warn_of_types
from psched.cli.exit_status import report_errors
from psched.cli.operate.in_editor import edit_in_editor
from psched.cli.operate.rescheduled import lines_of
from psched.cli.operate.waiting import json_data
from psched.cli.options import ConfigLocation
from psched.cli.other_database import settings_to_write
from psched.cli.schedules.chosen import Chosen, Verb, change_chosen, choosing
from psched.cli.schedules.fields import OPTIONS, fields_of_a_schedule
from psched.cli.schedules.next import warn_of_trigger
from psched.cli.time_format import parse_time
from psched.client.collection import ScheduleCollection
from psched.client.selected import SelectedSchedules
from psched.config import OVERRIDES, Config
from psched.core.declare import TRIGGER_FIELDS
from psched.core.history.redaction import Redaction
from psched.core.operations.rescheduled import Rescheduled
from psched.triggers.zone import find_zone

_REMOVABLE = ("timezone", "alive_time", "label", "note", *OVERRIDES)
"""The fields that --unset can remove."""


@click.command()
@choosing
@click.option(
    "--cron", metavar="CRON", help="When it runs: a cron line, or a trigger; see psched add --help."
)
@click.option(
    "--data",
    metavar="JSON",
    help="The data for the handler, a JSON object; - reads them from standard input.",
)
@click.option(
    "--new-type", metavar="TYPE", help="The type of its tasks, which selects the handler."
)
@fields_of_a_schedule(new=False)
@click.option(
    "--unset",
    type=click.Choice(sorted(_REMOVABLE)),
    metavar="FIELD",
    multiple=True,
    help="Remove this value of its own, so that the installation's setting applies again; may be"
    " repeated. A FIELD is a setting such as jitter, or timezone, alive_time, label or note.",
)
@changes.message
@options.zone()
@options.database
@click.pass_obj
@report_errors
def edit(
    location: ConfigLocation,
    /,
    *,
    cron: str | None,
    data: str | None,
    new_type: str | None,
    interval: int | None,
    unset: tuple[str, ...],
    message: str | None,
    **given: Any,  # noqa: ANN401  # the options of `choosing` and `fields_of_a_schedule`
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
    fields: dict[str, Any] = {"cron": cron, "every": interval, "type": new_type}
    fields |= {name: given.pop(name) for name in ("delay", "timezone", "jitter", "catchup")}
    fields["dst_policy"] = given.pop("dst_policy")
    times = {name: given.pop(option) for name, option in OPTIONS.items()}
    changed = {name: value for name, value in fields.items() if value is not None}
    if data is not None:
        changed["data"] = json_data(data)
    if both := {*changed} & {*unset}:
        raise click.UsageError(f"--unset {min(both)} contradicts the option that sets it")
    changed |= dict.fromkeys(unset)
    chosen = Chosen(**given)
    chosen.check()
    settings = settings_to_write(location)
    zone = None
    if changed.get("timezone") is not None:
        zone = find_zone(changed["timezone"])  # refuses an empty name, as of an unset variable
    changed |= {
        name: parse_time(OPTIONS[name], text, CLOCK.wall(), zone=zone)
        for name, text in times.items()
        if text is not None
    }
    if not changed:
        _edit_text(settings, chosen, message)
        return
    with open_to_change(settings, message) as schedules:
        change_chosen(schedules, chosen, _verb(changed, settings))
        _warn(schedules, chosen, settings, changed)
        warn_of_types(schedules, [] if new_type is None else [new_type])


def _verb(fields: Mapping[str, Any], settings: Config) -> Verb:
    redaction = Redaction.of_changes(settings.redact)

    def edit_one(schedules: ScheduleCollection, key: str, *, dry_run: bool = False) -> Rescheduled:
        try:
            return schedules.edit(key, dry_run=dry_run, **fields)
        except InvalidError as error:
            raise InvalidError(OPTIONS.get(error.field, error.field), error.problem) from None

    return Verb(
        "edit",
        "edited",
        edit_one,
        partial(SelectedSchedules.edit, **fields),
        preview_one=partial(edit_one, dry_run=True),
        lines=lambda outcome: lines_of(outcome, redaction),
    )


def _warn(
    schedules: ScheduleCollection, chosen: Chosen, settings: Config, changed: Mapping[str, Any]
) -> None:
    """Warn about the new triggers of named schedules."""
    if chosen.dry_run or TRIGGER_FIELDS.isdisjoint(changed):
        return
    for found in schedules.read_many(chosen.keys).values():
        warn_of_trigger(found.row, settings)


def _edit_text(settings: Config, chosen: Chosen, message: str | None) -> None:
    """Open one schedule in the user's editor."""
    with open_to_change(settings, message) as schedules:
        if len(chosen.keys) != 1 or not chosen.names_each(schedules):
            raise click.UsageError(
                "give options that say what to change, such as --cron; without any, the editor"
                " opens one schedule, which is named by its KEY alone"
            )
        key = chosen.keys[0]
        outcome = edit_in_editor(schedules, key, settings, dry_run=chosen.dry_run)
        if outcome is None or outcome.changes_nothing:
            click.echo(f"{key}: unchanged")
            return
        click.echo(f"{key}: {'would be edited' if chosen.dry_run else 'edited'}")
        for line in lines_of(outcome, Redaction.of_changes(settings.redact)):
            click.echo(f"    {line}")
        _warn(schedules, chosen, settings, outcome.changes)

"""What the commands that change chosen schedules share: options, question, change and report."""

import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property, wraps
from typing import Any

import click

from psched.app import CLOCK
from psched.base.errors import InvalidError, PschedError, ScheduleError, StoreError
from psched.base.quantities import RATES, format_duration
from psched.base.texts import counted, cut, visible
from psched.cli import opening, options
from psched.cli.completion import complete_key
from psched.cli.opening import settings_to_write
from psched.cli.options import ConfigLocation
from psched.cli.output import are_terminals, one_line
from psched.cli.progress import Footer
from psched.cli.time_format import format_span, format_time, local_times
from psched.client.access import stored_key
from psched.client.collection import ScheduleCollection
from psched.client.selected import ManyChanged, Outcome, Pace, SelectedSchedules
from psched.client.verbs import Verb
from psched.config import Config
from psched.core.model import PAUSED, RUNS_NO_MORE
from psched.core.operations.rescheduled import Rescheduled
from psched.core.preview import UpcomingTime
from psched.core.selection import STATES, is_pattern
from psched.reports.redaction import Redaction

AddsOption = Callable[[Callable[..., None]], Callable[..., None]]
"""A decorator of click's, such as ``click.option(…)``."""

NONE = "no schedule matches"
"""Is printed if patterns and conditions choose no schedule."""

_EXAMPLES = 3
"""The most keys that the question names."""

_LONGEST = 200
"""The most characters of a value that are shown."""

_TIMES = ("next_time", "next_run_time")
"""The fields that are instants."""

_WITHOUT_DEFAULT = (*_TIMES, "cron", "label", "hosts", "run_as", "note")
"""The fields of which the settings have no default."""


# --- the options -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The schedules that a user has chosen by arguments and options, see `changing`."""

    keys: Sequence[str]
    states: Sequence[str]
    types: Sequence[str]
    labels: Sequence[str]
    reason: str | None
    every: bool
    rate: str | None
    dry_run: bool
    yes: bool
    message: str | None
    location: ConfigLocation

    def check(self) -> None:
        """Refuse options that choose nothing, or contradict each other."""
        if self.every and (self.keys or self._has_conditions):
            raise click.UsageError("--all chooses every schedule; leave out KEYS and conditions")
        if not self.chooses:
            raise click.UsageError(
                "name KEYS, or choose by --status, --type, --label, --reason or --all"
            )

    @property
    def chooses(self) -> bool:
        """Whether schedules are chosen."""
        return self.every or bool(self.keys) or self._has_conditions

    @property
    def asks(self) -> bool:
        """Whether the user can be asked, and wants to be."""
        return not self.yes and are_terminals(sys.stdin, sys.stderr)

    @property
    def _has_conditions(self) -> bool:
        return bool(self.states or self.types or self.labels or self.reason is not None)

    @cached_property
    def settings(self) -> Config:
        """The settings of a command that writes."""
        return settings_to_write(self.location)

    @contextmanager
    def open(self) -> Iterator[ScheduleCollection]:
        """Check what was chosen, and open the schedules to change them."""
        self.check()
        with opening.open_to_change(self.settings, self.message) as schedules:
            yield schedules

    def names_each(self, schedules: ScheduleCollection) -> bool:
        """Whether each schedule is named by its key, and none by a pattern or a condition."""
        patterns = [stored_key(key) for key in self.keys if is_pattern(key)]
        if self.every or self._has_conditions:
            return False
        return not patterns or len(schedules.read_many(patterns)) == len({*patterns})

    def select(self, schedules: ScheduleCollection) -> SelectedSchedules:
        """The selection that corresponds to the arguments and options."""
        return schedules.select(
            *self.keys,
            status=self.states or None,
            type=self.types or None,
            label=self.labels or None,
            reason=self.reason,
            every=self.every,
        )


def changing(
    *own: AddsOption,
    rate: str = "At most so many changes per time",
    shows_times: bool = True,
    kind: type[click.Command] = click.Command,
) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that makes a command of a function that changes what its user chooses.

    The function gets a `Chosen`, and then its own options, ``own``, by name. ``rate`` says what the
    option --rate limits. With ``shows_times``, the command has the options for time zones.
    """
    choice: tuple[Any, ...] = (
        click.argument("keys", nargs=-1, shell_complete=complete_key),
        click.option(
            "--status",
            "states",
            type=click.Choice(sorted(STATES)),
            metavar="STATUS",
            multiple=True,
            help=f"Those with this status; may be repeated. One of {', '.join(sorted(STATES))}.",
        ),
        click.option("--type", "types", metavar="TYPE", multiple=True, help="Those of this type."),
        click.option(
            "--label", "labels", metavar="LABEL", multiple=True, help="Those with this label."
        ),
        click.option(
            "--reason",
            metavar="TEXT",
            help="Those whose REASON in psched list contains this text, or matches this pattern;"
            " capital and small letters are equal.",
        ),
        click.option("--all", "every", is_flag=True, help="No condition."),
        click.option("--rate", metavar="N/UNIT", help=f"{rate}: {RATES}."),
        click.option("--dry-run", is_flag=True, help="Show what would be done."),
        click.option(
            "-y",
            "--yes",
            is_flag=True,
            help="Do not ask before several are changed. Without a terminal, psched never asks.",
        ),
    )
    zone = (options.zone(),) if shows_times else ()
    added = (*choice, *own, opening.message, *zone, options.database)

    def make(function: Callable[..., None]) -> click.Command:
        @click.pass_obj
        @wraps(function)
        def command(location: ConfigLocation, /, **given: Any) -> None:  # noqa: ANN401
            parts = {
                each.name: given.pop(each.name) for each in fields(Chosen) if each.name in given
            }
            function(Chosen(location=location, **parts), **given)

        made: Any = command
        for add in reversed(added):
            made = add(made)
        finished: click.Command = click.command(cls=kind)(made)
        return finished

    return make


# --- the change --------------------------------------------------------------------------


def change_chosen(
    schedules: ScheduleCollection,
    chosen: Chosen,
    verb: Verb[Any],
    names: Mapping[str, str] | None = None,
) -> None:
    """Do something with the chosen schedules, and print what became of each.

    The program exits with status 1 if a schedule could not be changed, or if the user says no.
    If it is stopped before the end, it says how far it has come. ``names`` are the options of
    fields that have different names.
    """
    shown = _Shown(schedules, chosen, verb, names or {})
    names_each = chosen.names_each(schedules)
    if names_each and chosen.dry_run and verb.has_preview:
        failed = shown.preview_each()
    elif names_each and not chosen.dry_run:
        failed = shown.change_each()
    else:
        with shown.telling_where_it_stops():
            result = chosen.select(schedules).change(
                verb,
                rate=chosen.rate,
                dry_run=chosen.dry_run,
                report=shown.show,
                confirm=shown.begin,
            )
        failed = bool(result.failed)
        if chosen.dry_run:
            failed |= shown.preview_many(result, names_each=names_each)
        else:
            click.echo(closing(result, verb))
    if failed:
        sys.exit(1)


class _Shown:
    """Does something with each schedule, or only says what it would do, and prints the results."""

    def __init__(
        self,
        schedules: ScheduleCollection,
        chosen: Chosen,
        verb: Verb[Any],
        names: Mapping[str, str],
    ) -> None:
        self._schedules = schedules
        self._chosen = chosen
        self._verb = verb
        self._names = names
        self._count = self._total = 0
        self._footer = Footer()
        self._ended: Collection[str] = ()
        self._redaction = Redaction.of_changes(chosen.settings.redact)

    def begin(self, keys: Sequence[str]) -> bool:
        """Ask the user, and note how many schedules there are; return True."""
        ended = self._ends(keys)
        ask(keys, self._chosen, _name(self._verb), ended)
        self._footer, self._total, self._ended = Footer(), len(keys), ended
        return True

    def _ends(self, keys: Sequence[str]) -> Collection[str]:
        """Those of some schedules that have a trigger, and that the verb ends."""
        found = self._schedules.read_many(keys) if self._verb.ends else {}
        return {key for key, each in found.items() if each.row.cron is not None}

    def change_each(self) -> bool:
        """Change schedules that are named by their keys; return whether one could not be."""
        keys = [*dict.fromkeys(self._chosen.keys)]
        pace = Pace(self._chosen.rate, CLOCK)  # refuses a wrong rate before the question
        self.begin(keys)
        failed = False
        with self.telling_where_it_stops():
            for key in keys:
                pace.wait()
                try:
                    outcome = self._verb.apply(self._schedules.access, key)
                except (InvalidError, ScheduleError) as error:
                    failed = True
                    self._say(f"Error: {about(key, error, self._names)}")
                else:
                    self.show(key, outcome)
        return failed

    def show(self, key: str, outcome: Outcome) -> None:
        """Print what became of a schedule."""
        if isinstance(outcome, ScheduleError):
            self._say(f"{key}: skipped: {outcome}")
        elif isinstance(outcome, InvalidError):
            self._say(f"Error: {about(key, outcome, self._names)}")
        else:
            self._footer.clear()
            self._echo(key, result_of(self._verb, outcome), outcome, self._ended)
            self._note()

    def _say(self, text: str) -> None:
        """Print why a schedule was not changed."""
        self._footer.clear()
        click.echo(local_times(text), err=True)
        self._note()

    def _note(self) -> None:
        self._count += 1
        self._footer.show(self._verb.done, self._count, self._total)

    def _echo(self, key: str, text: str, outcome: Outcome, ended: Collection[str]) -> None:
        if key in ended:
            text += f"; it {RUNS_NO_MORE}"
        click.echo(f"{key}: {text}")
        for line in lines_of(outcome, self._redaction):
            click.echo(f"    {line}")

    @contextmanager
    def telling_where_it_stops(self) -> Iterator[None]:
        """Say how far the command has come if it is interrupted, or if the database is away."""
        try:
            yield
        except (KeyboardInterrupt, BrokenPipeError, StoreError) as stopped:
            # The others stay as they are, if nobody can see what becomes of them, too.
            self._footer.clear()
            if self._total > 1:
                text = "the same command goes on with the others"
                if not self._verb.leaves_changed:
                    text = (
                        "name only the others next time: the same command would"
                        f" {_name(self._verb)} these again"
                    )
                click.echo(f"stopped after {self._count} of {self._total}; {text}", err=True)
            if isinstance(stopped, KeyboardInterrupt):
                raise click.Abort from None
            raise

    # A dry run.

    def preview_each(self) -> bool:
        """Show what would become of named schedules; return whether one could not be changed."""
        done = list[str]()
        keys = [*dict.fromkeys(self._chosen.keys)]
        for key in keys:
            try:
                row = self._schedules.read(key).row
                outcome = self._verb.preview(self._schedules.access, row)
            except (InvalidError, ScheduleError) as error:
                say_not_done(key, error, self._verb.done, self._names)
            else:
                done.append(key)
                self._would(key, outcome)
        self._sum_up(done, names_each=True)
        return done != keys

    def preview_many(self, result: ManyChanged, *, names_each: bool) -> bool:
        """Show what would become of a selection; return whether a named one is not part of it."""
        keys, done = result.changed, self._verb.done
        ended = self._ends(keys)
        for key in keys:
            self._would(key, result.rescheduled.get(key, True), ended)
        for key, error in (*result.skipped.items(), *result.failed.items()):
            say_not_done(key, error, done, self._names)
        others = {*self._chosen.keys} - {*keys} if names_each else set[str]()
        for key in sorted(others):
            found = self._schedules.read_many([key]).get(key)
            why = "there is no such schedule" if found is None else f"it is {found.status}"
            click.echo(f"{key}: would not be {done}: {why}", err=True)
        self._sum_up(keys, names_each=names_each)
        return bool(others)

    def _would(self, key: str, outcome: Outcome, ended: Collection[str] = ()) -> None:
        nothing = isinstance(outcome, Rescheduled) and outcome.changes_nothing
        text = "would stay unchanged" if nothing else f"would be {self._verb.done}"
        self._echo(key, text, outcome, ended)

    def _sum_up(self, keys: Sequence[str], *, names_each: bool) -> None:
        if not (keys or names_each):
            click.echo(NONE)
            return
        pause = Pace(self._chosen.rate, CLOCK).pause
        took = f", in {format_duration((len(keys) - 1) * pause)}" if pause and keys else ""
        click.echo(f"{counted(len(keys), 'schedule')} would be {self._verb.done}{took}")


def ask(keys: Sequence[str], chosen: Chosen, verb: str, ended: Collection[str] = ()) -> None:
    """Ask the user on a terminal before several schedules are changed, or one ends."""
    if (len(keys) > 1 or ended) and chosen.asks:
        examples = ", ".join(keys[:_EXAMPLES]) + (", …" if len(keys) > _EXAMPLES else "")
        what = f"{len(keys)} schedules ({examples})" if len(keys) > 1 else keys[0]
        each = "Each" if len(keys) > 1 else "It"
        confirm(f"{verb} {what}?" + (f" {each} {RUNS_NO_MORE}." if ended else ""))


def confirm(question: str) -> None:
    """Ask the user a question before something is changed."""
    if not click.confirm(question, err=True):
        raise click.ClickException("nothing was changed")


# --- the texts ---------------------------------------------------------------------------


def _name(verb: Verb[Any]) -> str:
    """The name of a verb's command."""
    return verb.name.replace("_", "-")


def result_of(verb: Verb[Any], outcome: Outcome) -> str:
    """What became of a schedule."""
    if isinstance(outcome, Rescheduled) and outcome.changes_nothing:
        return "unchanged"
    if outcome is False:
        return verb.later or f"will be {verb.done} when its task has {verb.after}"
    return f"{verb.done} as {outcome}" if isinstance(outcome, str) else verb.done


def about(key: str, error: PschedError, names: Mapping[str, str] | None = None) -> str:
    """The text of an error about a schedule, which names the schedule once."""
    text = _without_field(key, error, names or {})
    return text if repr(key) in text else f"{key}: {text}"


def say_not_done(
    key: str,
    error: PschedError,
    done: str,
    names: Mapping[str, str] | None = None,
) -> None:
    """Print that a schedule would not be changed, and why; ``done`` is the participle."""
    text = local_times(_without_field(key, error, names or {}))
    click.echo(f"{key}: would not be {done}: {text}", err=True)


def _without_field(key: str, error: PschedError, names: Mapping[str, str]) -> str:
    """The text of an error, which calls a field as its option is called."""
    if not isinstance(error, InvalidError):
        return str(error)
    if error.field == "key" and repr(key) in error.problem:
        return error.problem
    return str(InvalidError(names.get(error.field, error.field), error.problem))


def closing(result: ManyChanged, verb: Verb[Any]) -> str:
    """What became of the schedules of a selection, in a line."""
    if not (result.changed or result.skipped or result.failed):
        return NONE
    parts = [f"{counted(len(result.changed), 'schedule')} {verb.done}"]
    if result.marked and verb.later is None:
        parts[0] += f", {len(result.marked)} of them when its task has {verb.after}"
    return "; ".join([*parts, *left_over(len(result.skipped), len(result.failed), verb.done)])


def left_over(skipped: int, failed: int, done: str) -> Sequence[str]:
    """How many of the chosen schedules were not changed, and why; ``done`` is the participle."""
    parts = []
    if skipped:
        parts.append(f"{skipped} skipped, because they were changed meanwhile")
    if failed:
        parts.append(f"{failed} not {done}, because of errors")
    return parts


def lines_of(outcome: Outcome, redaction: Redaction) -> Iterator[str]:
    """The lines about a schedule that was skipped or edited."""
    if not isinstance(outcome, Rescheduled) or outcome.changes_nothing:
        return
    if (skipped := outcome.skipped) is not None:
        more = {1: "", 2: " and the next one"}
        number = skipped.count or 1
        others = more.get(number, f" and the next {number - 1}")
        yield f"left out: {format_time(skipped.first)}{others}"
    for name, change in outcome.changes.items():
        old, new = (_value(name, redaction.value({name: each})[name]) for each in change)
        yield f"{name}: {old} -> {new}"
    before, after = _runs(outcome.before), _runs(outcome.after)
    if before != after:
        yield f"next was: {before}"
    paused = " (it is paused)" if outcome.status == PAUSED else ""
    yield f"next: {after}{paused}"


def _runs(upcoming: Sequence[UpcomingTime]) -> str:
    runs = [each for each in upcoming if each.run_at is not None]
    return ", ".join(_run(each) for each in runs) or "none"


def _run(each: UpcomingTime) -> str:
    notes = [one_line(local_times(each.note))] if each.note else []
    if each.run_at is not None and each.run_at > each.time:
        notes.insert(0, f"starts {format_span(each.run_at - each.time)} later")
    return format_time(each.time) + (f" ({'; '.join(notes)})" if notes else "")


def _value(name: str, value: Any) -> str:  # noqa: ANN401  # a field of any type
    if value is None:
        return "(none)" if name in _WITHOUT_DEFAULT else "(default)"
    if name in _TIMES and isinstance(value, int):
        return format_time(value)
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return visible(cut(text, _LONGEST))

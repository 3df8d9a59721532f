"""Which schedules a command changes, and the question that it asks before it changes several."""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from psched.app import CLOCK
from psched.base.errors import InvalidError, PschedError, ScheduleError, StoreError
from psched.base.quantities import RATES, format_duration
from psched.base.texts import counted
from psched.cli.completion import complete_key
from psched.cli.output import are_terminals
from psched.cli.progress import Footer
from psched.cli.time_format import local_times
from psched.client.arguments import stored_key
from psched.client.collection import ScheduleCollection
from psched.client.finding import is_pattern
from psched.client.selected import ManyChanged, Outcome, Pace, SelectedSchedules
from psched.core.model import RUNS_NO_MORE
from psched.core.operations.rescheduled import Rescheduled
from psched.core.selection import STATES

Command = TypeVar("Command", bound=Callable[..., Any])

_EXAMPLES = 3
"""The most keys that the question names."""

NONE = "no schedule matches"
"""Is printed if patterns and conditions choose no schedule."""


@dataclass(frozen=True, slots=True)
class Verb:
    """What a command does with each schedule.

    Attributes:
        name: the infinitive, such as ``cancel``.
        done: the participle, such as ``cancelled``.
        change_one: changes the schedule with a key; see `Outcome` for what it returns. None means
            the same as True.
        change_many: the same for a selection: a method of `SelectedSchedules`, whose own options
            are bound with `functools.partial`.
        after: what the task of a schedule has done before its worker changes the schedule.
        marked: what is said of a schedule whose worker will do it; None means a text with
            ``after``.
        preview_one: returns what ``change_one`` would return, or raises what it would raise, but
            changes nothing. None if the status alone says whether a schedule can be changed.
        lines: returns the lines that are shown below that of a schedule, also of a preview.
        ends: whether a schedule then runs no more by itself, which is said.
        leaves_changed: whether the same command, entered again, leaves alone what it has changed.
    """

    name: str
    done: str
    change_one: Callable[[ScheduleCollection, str], Outcome | None]
    change_many: Callable[..., ManyChanged]
    after: str = "stopped"
    marked: str | None = None
    preview_one: Callable[[ScheduleCollection, str], Outcome | None] | None = None
    lines: Callable[[Outcome | None], Iterable[str]] | None = None
    ends: bool = False
    leaves_changed: bool = True

    def result(self, outcome: Outcome | None) -> str:
        """What became of a schedule."""
        if isinstance(outcome, Rescheduled) and outcome.changes_nothing:
            return "unchanged"
        if outcome is False:
            return self.marked or f"will be {self.done} when its task has {self.after}"
        return f"{self.done} as {outcome}" if isinstance(outcome, str) else self.done

    def ended(self, schedules: ScheduleCollection, keys: Sequence[str]) -> Collection[str]:
        """Those of some schedules that have a trigger, and that this verb ends."""
        found = schedules.read_many(keys) if self.ends else {}
        return {key for key, each in found.items() if each.row.cron is not None}

    def show(
        self,
        key: str,
        outcome: Outcome | None,
        ended: Collection[str] = (),
        *,
        dry_run: bool = False,
    ) -> None:
        """Print what became of a schedule, or what would, and the lines below that."""
        text = self.result(outcome)
        if dry_run:
            text = "would stay unchanged" if text == "unchanged" else f"would be {self.done}"
        if key in ended:
            text += f"; it {RUNS_NO_MORE}"
        click.echo(f"{key}: {text}")
        for line in () if self.lines is None else self.lines(outcome):
            click.echo(f"    {line}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The schedules that a user has chosen by arguments and options, see `choosing`."""

    keys: Sequence[str]
    states: Sequence[str]
    types: Sequence[str]
    labels: Sequence[str]
    reason: str | None
    every: bool
    rate: str | None
    dry_run: bool
    yes: bool

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


def choosing(command: Command) -> Command:
    """Add the arguments and options to a command from which `Chosen` is made."""
    return choosing_with("At most so many changes per time")(command)


def choosing_with(rate: str) -> Callable[[Command], Command]:
    """Return a decorator like `choosing`; ``rate`` says what the option --rate limits."""

    def choosing_at_rate(command: Command) -> Command:
        return _add_options(command, rate)

    return choosing_at_rate


def _add_options(command: Command, rate: str) -> Command:
    for add in reversed(
        (
            click.argument("keys", nargs=-1, shell_complete=complete_key),
            click.option(
                "--status",
                "states",
                type=click.Choice(sorted(STATES)),
                metavar="STATUS",
                multiple=True,
                help="Those with this status; may be repeated. One of"
                f" {', '.join(sorted(STATES))}.",
            ),
            click.option(
                "--type", "types", metavar="TYPE", multiple=True, help="Those of this type."
            ),
            click.option(
                "--label", "labels", metavar="LABEL", multiple=True, help="Those with this label."
            ),
            click.option(
                "--reason",
                metavar="TEXT",
                help="Those whose REASON in psched list contains this text, or matches this"
                " pattern; capital and small letters are equal.",
            ),
            click.option("--all", "every", is_flag=True, help="No condition."),
            click.option("--rate", metavar="N/UNIT", help=f"{rate}: {RATES}."),
            click.option("--dry-run", is_flag=True, help="Show what would be done."),
            click.option(
                "-y",
                "--yes",
                is_flag=True,
                help="Do not ask before several are changed. Without a terminal, psched never"
                " asks.",
            ),
        )
    ):
        command = add(command)
    return command


def change_chosen(schedules: ScheduleCollection, chosen: Chosen, verb: Verb) -> None:
    """Change the chosen schedules, and print each result.

    The program exits with status 1 if a schedule could not be changed, or if the user says no.
    If it is stopped before the end, it says how far it has come.
    """
    names_each = chosen.names_each(schedules)
    if names_each and chosen.dry_run and verb.preview_one is not None:
        _preview_each(schedules, chosen, verb, verb.preview_one)
        return
    shown = _Shown(verb)

    def begin(keys: Sequence[str]) -> bool:
        ended = verb.ended(schedules, keys)
        return ask(keys, chosen, verb.name, ended) and shown.begin(keys, ended)

    if names_each and not chosen.dry_run:
        keys = [*dict.fromkeys(chosen.keys)]
        pace = Pace(chosen.rate, CLOCK)  # refuses a wrong rate before the question
        begin(keys)
        with shown.telling_where_it_stops():
            _change_each(schedules, keys, pace, shown)
        return
    with shown.telling_where_it_stops():
        result = verb.change_many(
            chosen.select(schedules),
            rate=chosen.rate,
            report=shown.show,
            dry_run=chosen.dry_run,
            confirm=begin,
        )
    if chosen.dry_run:
        _show_dry_run(schedules, result, chosen, verb, names_each=names_each)
    else:
        click.echo(_closing(result, verb))
    if result.failed:
        sys.exit(1)


class _Shown:
    """Prints what became of each schedule.

    Attributes:
        verb: what is done with each schedule.
    """

    def __init__(self, verb: Verb) -> None:
        self._count = self._total = 0
        self._footer = Footer()
        self._ended: Collection[str] = ()
        self.verb = verb

    def begin(self, keys: Sequence[str], ended: Collection[str]) -> bool:
        """Note how many schedules there are, and which of them the verb ends; return True."""
        self._footer, self._total, self._ended = Footer(), len(keys), ended
        return True

    def show(self, key: str, outcome: Outcome | None) -> None:
        """Print what became of a schedule that was selected by a pattern or a condition."""
        if isinstance(outcome, ScheduleError):
            self.say(f"{key}: skipped: {outcome}")
        elif isinstance(outcome, InvalidError):
            self.say(f"Error: {about(key, outcome)}")
        else:
            self._footer.clear()
            self.verb.show(key, outcome, self._ended)
            self._note()

    def say(self, text: str) -> None:
        """Print why a schedule was not changed."""
        self._footer.clear()
        click.echo(local_times(text), err=True)
        self._note()

    def _note(self) -> None:
        self._count += 1
        self._footer.show(self.verb.done, self._count, self._total)

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
                if not self.verb.leaves_changed:
                    text = (
                        f"name only the others next time: the same command would {self.verb.name}"
                        " these again"
                    )
                click.echo(f"stopped after {self._count} of {self._total}; {text}", err=True)
            if isinstance(stopped, KeyboardInterrupt):
                raise click.Abort from None
            raise


def about(key: str, error: InvalidError | ScheduleError) -> str:
    """The text of an error about a schedule, which names the schedule once."""
    text = _without_field(key, error)
    return text if repr(key) in text else f"{key}: {text}"


def _without_field(key: str, error: PschedError) -> str:
    if isinstance(error, InvalidError) and error.field == "key" and repr(key) in error.problem:
        return error.problem
    return str(error)


def _change_each(
    schedules: ScheduleCollection, keys: Sequence[str], pace: Pace, shown: _Shown
) -> None:
    failed = False
    for key in keys:
        pace.wait()
        try:
            outcome = shown.verb.change_one(schedules, key)
        except (InvalidError, ScheduleError) as error:
            failed = True
            shown.say(f"Error: {about(key, error)}")
        else:
            shown.show(key, outcome)
    if failed:
        sys.exit(1)


def _preview_each(
    schedules: ScheduleCollection,
    chosen: Chosen,
    verb: Verb,
    preview: Callable[[ScheduleCollection, str], Outcome | None],
) -> None:
    done = list[str]()
    keys = [*dict.fromkeys(chosen.keys)]
    for key in keys:
        try:
            outcome = preview(schedules, key)
        except (InvalidError, ScheduleError) as error:
            say_not_done(key, error, verb.done)
        else:
            done.append(key)
            verb.show(key, outcome, dry_run=True)
    click.echo(_preview(done, chosen, verb, names_each=True))
    if done != keys:
        sys.exit(1)


def ask(keys: Sequence[str], chosen: Chosen, verb: str, ended: Collection[str] = ()) -> bool:
    """Ask the user on a terminal before several schedules are changed, or one ends; return True."""
    if (len(keys) > 1 or ended) and chosen.asks:
        examples = ", ".join(keys[:_EXAMPLES]) + (", …" if len(keys) > _EXAMPLES else "")
        what = f"{len(keys)} schedules ({examples})" if len(keys) > 1 else keys[0]
        each = "Each" if len(keys) > 1 else "It"
        confirm(f"{verb} {what}?" + (f" {each} {RUNS_NO_MORE}." if ended else ""))
    return True


def confirm(question: str) -> None:
    """Ask the user a question before something is changed."""
    if not click.confirm(question, err=True):
        raise click.ClickException("nothing was changed")


def _show_dry_run(
    schedules: ScheduleCollection,
    result: ManyChanged,
    chosen: Chosen,
    verb: Verb,
    *,
    names_each: bool,
) -> None:
    """Show what the command would do.

    The program exits with status 1 if a schedule is named that would not be changed.
    """
    keys = result.changed
    ended = verb.ended(schedules, keys)
    for key in keys:
        verb.show(key, result.rescheduled.get(key, True), ended, dry_run=True)
    for key, error in (*result.skipped.items(), *result.failed.items()):
        say_not_done(key, error, verb.done)
    others = {*chosen.keys} - {*keys} if names_each else set[str]()
    for key in sorted(others):
        found = schedules.read_many([key]).get(key)
        why = "there is no such schedule" if found is None else f"it is {found.status}"
        click.echo(f"{key}: would not be {verb.done}: {why}", err=True)
    click.echo(_preview(keys, chosen, verb, names_each=names_each))
    if others or result.failed:
        sys.exit(1)


def say_not_done(key: str, error: PschedError, done: str) -> None:
    """Print that a schedule would not be changed, and why; ``done`` is the participle."""
    click.echo(f"{key}: would not be {done}: {local_times(_without_field(key, error))}", err=True)


def _preview(keys: Sequence[str], chosen: Chosen, verb: Verb, *, names_each: bool) -> str:
    if not (keys or names_each):
        return NONE
    pause = Pace(chosen.rate, CLOCK).pause
    took = f", in {format_duration((len(keys) - 1) * pause)}" if pause and keys else ""
    return f"{counted(len(keys), 'schedule')} would be {verb.done}{took}"


def _closing(result: ManyChanged, verb: Verb) -> str:
    if not (result.changed or result.skipped or result.failed):
        return NONE
    parts = [f"{counted(len(result.changed), 'schedule')} {verb.done}"]
    if result.marked and verb.marked is None:
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

"""What can be done on the pages: each action says what it will do, does it, and names its inverse.

The verbs of `psched.client.verbs` do it: they check and record it, as for the commands.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from typing import Any, NamedTuple

from psched.app import CLOCK
from psched.base.errors import (
    AlreadyFinishedError,
    InvalidError,
    StoreError,
    UnknownOutcomeError,
)
from psched.base.texts import counted, visible
from psched.cli.history.alerts import sentence
from psched.cli.operate.chosen import closing, lines_of, result_of
from psched.cli.operate.commands import describe_backfill
from psched.cli.time_format import format_time, parse_time, reader_zone
from psched.client.access import ChangedMeanwhileError, Condition, refuse_template
from psched.client.selected import SelectedSchedules
from psched.client.verbs import Verb
from psched.client.verbs.ending import Cancel, Requeue, Stop
from psched.client.verbs.extra_runs import CAN_HAVE_EXTRA_RUNS, RunMissed, Trigger
from psched.client.verbs.pausing import Pause, Resume
from psched.client.verbs.skipping import Skip
from psched.core.alerts.alert import Alert
from psched.core.asked_time import parse_next
from psched.core.model import RUNS_NO_MORE, Row
from psched.core.operations import pausing
from psched.core.operations.backfills import Backfill, Stagger
from psched.core.operations.extra_runs import QUEUE, schedule_of
from psched.core.operations.rescheduled import Rescheduled, next_runs
from psched.core.operations.skipping import MOST as MOST_SKIPPED
from psched.core.preview import UpcomingTime
from psched.reports.redaction import Redaction
from psched.web.asked import Asked, link, schedule_link
from psched.web.definition import edit
from psched.web.search import Found, parse_search
from psched.web.users import ADMIN, OPERATE, Right, allows

MOST = 500
"""The most schedules that one form changes; a command can take longer."""

_NAMED = 5  # the most keys that a sentence names
_LONGEST_LINK = 1500  # the most characters of the keys in the address of an inverse
_UNDONE_AT_ONCE = 20  # the most extra runs that an inverse cancels


class PartlyDoneError(UnknownOutcomeError):
    """The store failed when some of several schedules were changed; the text says how many."""


class Field(NamedTuple):
    """A field of a form, or of a program's; ``kind`` is text, number, checkbox or area."""

    name: str
    label: str
    hint: str = ""
    kind: str = "text"


class Plan(NamedTuple):
    """What an action will do.

    Attributes:
        lines: sentences.
        verb: does it.
        keys: the schedules with which it does it.
        only_if: under which condition it does it with the schedule.
        fixed: what the form repeats, so that nothing else is done than what was shown.
    """

    lines: Sequence[str]
    verb: Verb[Any] | None
    keys: Sequence[str]
    only_if: Condition | None = None
    fixed: Mapping[str, str] = {}


class Done(NamedTuple):
    """What an action has done: a sentence, the inverse and its address, and the changed keys."""

    text: str
    inverse: str = ""
    href: str = ""
    keys: Sequence[str] = ()
    extra_runs: Sequence[str] = ()


class Action(NamedTuple):
    """Something that can be done.

    Attributes:
        title: the words of its button.
        about: what it does, in a sentence or two.
        plan: reads what it would do with the schedule, or with those that were chosen.
        states: those of the schedules with which it can be done.
        right: who may do it.
        inverse: the name of the action that undoes it; empty if none does.
        asked: the fields of which its effect depends, so that it is shown before it is done.
        given: other fields, which are asked for where it is done.
        takes_many: whether it can be done with all that a search finds.
    """

    title: str
    about: str
    plan: Callable[[Asked], Plan]
    states: frozenset[str]
    right: Right = OPERATE
    inverse: str = ""
    asked: Sequence[Field] = ()
    given: Sequence[Field] = ()
    takes_many: bool = False


# --- what it would do --------------------------------------------------------------------


def _planned(
    make: Callable[[Asked], Verb[Any]],
    effects: Callable[[Asked, Row], Sequence[str]],
    shown: Callable[[Row], str] = lambda _: "",
) -> Callable[[Asked], Plan]:
    """What a verb would do with one schedule, or with several.

    If what ``shown`` returns is another text later, the verb would do something else.
    """

    def plan(asked: Asked) -> Plan:
        verb = make(asked)
        if not asked.query.get("key"):
            keys = _chosen(asked, verb)
            fixed = {"count": str(len(keys)), "seen": _digest(keys)}
            return Plan([_counted(keys, verb)] if keys else [], verb, keys, fixed=fixed)
        key = asked.key()
        row = asked.schedules.read(key).row
        _refuse_state(row, verb)
        seen = shown(row)

        def is_as_shown(now: Row) -> bool:
            return shown(now) == seen

        return Plan(effects(asked, row), verb, [key], is_as_shown, {"shown": seen})

    return plan


def _refuse_state(row: Row, verb: Verb[Any]) -> None:
    refuse_template(row)
    if row.state not in verb.states:
        raise AlreadyFinishedError(f"{row.key!r} cannot be {verb.done}: it is {row.state}")
    if not verb.takes_one_shots and row.cron is None:
        raise InvalidError("key", f"{row.key!r} runs only once, so it cannot be {verb.done}")
    if not verb.takes_extra_runs and schedule_of(row.key) is not None:
        raise InvalidError("key", f"{row.key!r} is an extra run, so it cannot be {verb.done}")


def _chosen(asked: Asked, verb: Verb[Any]) -> Sequence[str]:
    """The keys of the schedules that a list or a search chooses, and with which it can be done."""
    if listed := asked.query.get("keys"):
        keys = [*dict.fromkeys(listed.splitlines())]
    else:
        search = parse_search(asked.query["q"])
        found = Found(asked, search, asked.schedules.now(), with_last=False)
        keys = [row.key for row, _ in islice(found.rows, MOST + 1)]
        if found.is_cut:
            raise InvalidError("q", "finds too many; begin the key with other characters than *")
    if len(keys) > MOST:
        raise InvalidError(
            "q", f"finds more than {MOST} schedules; narrow it, or use psched {verb.name}"
        )
    # A key that is gone meanwhile could be a pattern, which chooses others.
    known = asked.schedules.read_many(keys)
    there = [key for key in keys if key in known]
    if not there:
        return []
    return _select(asked, there, verb).change(verb, dry_run=True).changed


def _select(asked: Asked, keys: Sequence[str], verb: Verb[Any]) -> SelectedSchedules:
    """Those of the keys in every state that the verb takes, if they or their states were chosen."""
    is_chosen = asked.query.get("keys") or parse_search(asked.query.get("q", "")).states
    return asked.schedules.select(*keys, status=verb.states if is_chosen else None)


def _digest(keys: Sequence[str]) -> str:
    return sha256("\n".join(sorted(keys)).encode(errors="replace")).hexdigest()


def _counted(keys: Sequence[str], verb: Verb[Any]) -> str:
    names = ", ".join(keys[:_NAMED]) + (", …" if len(keys) > _NAMED else ".")
    return visible(f"{counted(len(keys), 'schedule')} will be {verb.done}: {names}")


def _times(runs: Sequence[UpcomingTime]) -> str:
    shown = [format_time(each.run_at) for each in runs if each.run_at is not None]
    return ", ".join(shown) or "none"


def _next(asked: Asked, row: Row) -> str:
    return _times(next_runs(row, asked.settings, asked.schedules.now()))


def _running(row: Row) -> str:
    """Which run goes on."""
    return "" if row.owner is None else str(row.fence)


def _while_running(row: Row, text: str) -> Sequence[str]:
    return [text] if row.owner is not None else []


def _effects_of_trigger(asked: Asked, row: Row) -> Sequence[str]:
    waits = "It runs now: the extra run waits for the end of this run."
    return [
        "One extra run starts now, with the data of the schedule.",
        *_while_running(row, waits),
        f"The regular runs keep their times: {_next(asked, row)}.",
    ]


def _effects_of_stop(asked: Asked, row: Row) -> Sequence[str]:
    goes_on = (
        "It runs only once, so it is cancelled."
        if row.cron is None
        else f"The schedule goes on; its next runs: {_next(asked, row)}."
    )
    return ["The run is stopped with TERM, later with KILL, and is not tried again.", goes_on]


def _effects_of_pause(asked: Asked, row: Row) -> Sequence[str]:
    return [
        "It does not run until the pause ends. What falls due meanwhile is skipped then.",
        f"Its next runs are now: {_next(asked, row)}.",
        *_while_running(row, "The run that goes on is not stopped."),
    ]


def _effects_of_resume(asked: Asked, row: Row) -> Sequence[str]:
    after, skipped = pausing.resumed(row, asked.settings, asked.schedules.now(), backfill=False)
    lines = [f"It runs again; its next runs: {_next(asked, after)}."]
    if skipped is not None:
        lines.append(
            f"Skipped is what fell due during the pause, from {format_time(skipped.first)} on."
        )
    return lines


def _effects_of_skip(asked: Asked, row: Row) -> Sequence[str]:
    return [*lines_of(_skip(asked).preview(asked.schedules.access, row), _redaction(asked))]


def _effects_of_requeue(_asked: Asked, row: Row) -> Sequence[str]:
    how = "It goes on with its next run." if row.cron is not None else "It runs again, now."
    return [how, "Attempts are counted from 1 again."]


def _effects_of_cancel(_asked: Asked, row: Row) -> Sequence[str]:
    return [f"It {RUNS_NO_MORE}.", *_while_running(row, "Its run is stopped.")]


def _redaction(asked: Asked) -> Redaction:
    return Redaction.of_changes(asked.settings.redact)


def _pause(asked: Asked) -> Verb[Any]:
    text = asked.query.get("until", "").strip()
    now = asked.schedules.now()
    return Pause(parse_next("until", text, reader_zone(), now) if text else None)


def _skip(asked: Asked) -> Verb[Any]:
    text = asked.query.get("n") or "1"
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= len("1000") else 0
    if not 0 < number <= MOST_SKIPPED:
        raise InvalidError("n", f"{text!r} is no number from 1 to {MOST_SKIPPED}")
    return Skip(number)


def _plan_of_stop(asked: Asked) -> Plan:
    """The run that was shown is stopped, and no later one."""
    found = _planned(lambda _: Stop(), _effects_of_stop)(asked)
    fence = asked.schedules.read(asked.key()).row.fence
    seen = asked.query.get("run") or str(fence)
    return found._replace(only_if=lambda row: str(row.fence) == seen, fixed={"run": seen})


def _plan_of_backfill(asked: Asked) -> Plan:
    key = asked.key()
    texts = {name: asked.query.get(name, "").strip() for name in ("from", "to")}
    if not texts["from"]:
        return Plan([], None, [key])
    now = CLOCK.wall()
    start, end = (
        int(now)
        if name == "to" and text in {"", "now"}
        else parse_time(name, text, now, is_next=False) or 0
        for name, text in texts.items()
    )
    _refuse_state(asked.schedules.read(key).row, _backfill(start, end, dry_run=True))
    would = _backfill(start, end, dry_run=True).apply(asked.schedules.access, key)
    line = describe_backfill(would, dry_run=True)
    # The times as they were understood: a relative one means another time later.
    fixed = {"from": str(start), "to": str(end), "count": str(len(would.runs))}
    verb = _backfill(start, end, dry_run=False) if would.runs else None
    return Plan([f"{line}."], verb, [key], fixed=fixed)


def _backfill(start: int, end: int, *, dry_run: bool) -> RunMissed:
    return RunMissed(start, end, stagger=Stagger(None), again=False, overlap=QUEUE, dry_run=dry_run)


def _plan_of_edit(asked: Asked) -> Plan:
    key = asked.key()
    verb, row, fixed = edit(asked, key)
    if verb is None:
        return Plan([], None, [key], fixed=fixed)
    outcome = verb.preview(asked.schedules.access, row)
    lines = [*lines_of(outcome, _redaction(asked))]
    if not lines:
        return Plan(["Nothing would be changed."], None, [key], fixed=fixed)
    return Plan(lines, verb, [key], fixed=fixed)


class _Acknowledge(Verb[str]):
    """Close the open alerts about a schedule."""

    name = "acknowledge"
    done = "acknowledged"

    def __init__(self, asked: Asked, shown: Sequence[Alert]) -> None:
        self._asked = asked
        self._shown = shown

    def apply(self, access: Any, key: str, only_if: Condition | None = None) -> str:  # noqa: ANN401
        del key, only_if  # another alert stays open, because nobody has seen it
        schedules, auditor = self._asked.schedules, access.auditor
        note = f": {auditor.note}" if auditor.note else ""
        closed = schedules.close_alerts(self._shown, f"closed by {auditor.author.name}{note}")
        return ", ".join(sorted(str(alert.rule) for alert in closed))


def _plan_of_acknowledge(asked: Asked) -> Plan:
    key = asked.key()
    found = [*asked.schedules.alerts(key)]
    if not found:
        raise AlreadyFinishedError(f"there is no open alert about {key!r}")
    redaction = asked.redaction
    lines = [sentence(alert, redaction) for alert in found]
    seen = _digest([f"{alert.rule} {alert.since}" for alert in found])
    return Plan(lines, _Acknowledge(asked, found), [key], fixed={"shown": seen})


_KEY = Field("key", "The key of the schedule")
_DRY_RUN = Field("dry_run", "Only tell what it would do", kind="checkbox")
_NOTE = Field("note", "Why", "for the audit trail")
_ANY = frozenset({"*"})  # it does not depend on the state

ACTIONS: Mapping[str, Action] = {
    "trigger": Action(
        "Trigger",
        "Run it now, beside its regular runs.",
        _planned(lambda _: Trigger(), _effects_of_trigger),
        Trigger.states,
        inverse="cancel",
        given=[_NOTE],
        takes_many=True,
    ),
    "stop": Action(
        "Stop this run",
        "Stop what runs now.",
        _plan_of_stop,
        Stop.states,
        inverse="trigger",
        given=[_NOTE],
    ),
    "pause": Action(
        "Pause",
        "It does not run until it is resumed, or until a time.",
        _planned(_pause, _effects_of_pause),
        Pause.states,
        inverse="resume",
        given=[
            Field("until", "Until (empty: until resumed)", "18:00, tomorrow 08:00, +2h"),
            _NOTE,
        ],
        takes_many=True,
    ),
    "resume": Action(
        "Resume",
        "Let it run again.",
        _planned(lambda _: Resume(), _effects_of_resume),
        Resume.states,
        inverse="pause",
        given=[_NOTE],
        takes_many=True,
    ),
    "skip": Action(
        "Skip",
        "Leave out its next runs. This cannot be undone.",
        _planned(_skip, _effects_of_skip, lambda row: str(row.next_time)),
        Skip.states,
        asked=[Field("n", "Runs to leave out", "1", "number")],
        given=[_NOTE],
    ),
    "requeue": Action(
        "Requeue",
        "Run again what has ended, or was quarantined.",
        _planned(lambda _: Requeue(), _effects_of_requeue),
        Requeue.states,
        inverse="cancel",
        given=[_NOTE],
        takes_many=True,
    ),
    "backfill": Action(
        "Backfill",
        "Run the times of a period that did not run.",
        _plan_of_backfill,
        CAN_HAVE_EXTRA_RUNS,
        inverse="cancel",
        asked=[
            Field("from", "From", "yesterday 02:30, 2026-11-22T02:30 or -2h"),
            Field("to", "To (empty: now)", "03:30, -1h"),
        ],
        given=[_NOTE],
    ),
    "edit": Action(
        "Edit",
        "Change its definition, as psched export writes it.",
        _plan_of_edit,
        _ANY,
        right=ADMIN,
        inverse="edit",
        asked=[Field("text", "Definition", kind="area")],
        given=[_NOTE],
    ),
    "cancel": Action(
        "Cancel",
        "It runs no more, until it is requeued.",
        _planned(lambda _: Cancel(), _effects_of_cancel, _running),
        Cancel.states,
        inverse="requeue",
        given=[_NOTE],
        takes_many=True,
    ),
    "acknowledge": Action(
        "Acknowledge",
        "Close its open alerts. The same incident is not told of again, and this cannot be undone.",
        _plan_of_acknowledge,
        _ANY,
        given=[_NOTE],
    ),
}
"""All actions by their names."""


def fields_of(action: Action) -> Sequence[Field]:
    """The fields with which programs ask for an action."""
    return [_KEY, _DRY_RUN, *action.asked, *action.given]


def act_link(name: str, /, **query: str) -> str:
    """The address of the page that says what an action will do."""
    return link("act", do=name, **query)


def links_for(asked: Asked, row: Row, *, has_alerts: bool) -> Sequence[tuple[str, str]]:
    """The actions that the visitor may do with a schedule: their titles and addresses."""
    wanted = {"acknowledge": has_alerts}
    if row.each_host:  # the rows of its hosts have the other actions, and are edited by this one
        wanted = {**dict.fromkeys(ACTIONS, False), "edit": True, **wanted}
    if row.template is not None:
        wanted["edit"] = False
    if row.cron is None or schedule_of(row.key) is not None:
        wanted |= dict.fromkeys(("skip", "backfill", "edit"), False)
    if schedule_of(row.key) is not None:
        wanted["trigger"] = False
    return [
        (action.title, act_link(name, key=row.key))
        for name, action in ACTIONS.items()
        if allows(asked.right, action.right)
        and wanted.get(name, True)
        and (action.states is _ANY or row.state in action.states)
    ]


def links_for_many(
    asked: Asked, search: str, names: Collection[str] = ACTIONS
) -> Sequence[tuple[str, str]]:
    """Those of some actions that the visitor may do with all that a search finds."""
    return [
        (action.title, act_link(name, q=search or "*"))
        for name, action in ACTIONS.items()
        if name in names and action.takes_many and allows(asked.right, action.right)
    ]


# --- doing it ----------------------------------------------------------------------------


def plan_of(name: str, asked: Asked) -> Plan:
    """What an action would do; nothing is chosen by leaving out what chooses."""
    if (action := ACTIONS.get(name)) is None:
        raise InvalidError("do", f"{name!r} is no action")
    chooses_many = asked.query.get("keys") or asked.query.get("q")
    if not asked.query.get("key") and not (action.takes_many and chooses_many):
        raise InvalidError("key", "is missing")
    return action.plan(asked)


def do(name: str, asked: Asked) -> Done:
    """Do what was shown; it is refused if it would now be something else."""
    action, plan = ACTIONS[name], plan_of(name, asked)
    if plan.verb is None:
        raise InvalidError("form", "there is nothing to do; show what it does first")
    if asked.query.get("key"):
        [key] = plan.keys
        # A program need not have looked.
        for field in ("count", "shown"):
            _refuse_change(asked, plan, field, plan.fixed.get(field, ""))
        outcome = plan.verb.apply(asked.schedules.access, key, plan.only_if)
        return _done(action, key, plan.verb, outcome)
    _refuse_change(asked, plan, "seen")
    if not plan.keys:
        raise InvalidError("q", "finds nothing with which this can be done")

    def confirm(keys: Sequence[str]) -> bool:
        return _digest(keys) == plan.fixed["seen"]

    begun = list[str]()

    def report(key: str, _: object) -> None:
        begun.append(key)

    try:
        selected = _select(asked, plan.keys, plan.verb)
        result = selected.change(plan.verb, report=report, confirm=confirm)
    except StoreError as error:
        if not begun:
            raise
        done = f"{len(begun)} of {counted(len(plan.keys), 'schedule')} were dealt with before"
        text = f"{done}; look what was {plan.verb.done} before you do it again: {error}"
        raise PartlyDoneError(text) from error
    inverse, href = "", ""
    keys = [*result.extra_runs.values()] if name == "trigger" else result.changed
    listed = "\n".join(keys)
    if action.inverse and keys and len(listed) <= _LONGEST_LINK:
        inverse, href = ACTIONS[action.inverse].title, act_link(action.inverse, keys=listed)
    text = visible(closing(result, plan.verb))
    return Done(text, inverse, href, result.changed, [*result.extra_runs.values()])


def _refuse_change(asked: Asked, plan: Plan, name: str, default: str = "") -> None:
    """Refuse a form whose effect is not any more what was shown."""
    if name in plan.fixed and asked.query.get(name, default) != plan.fixed[name]:
        raise ChangedMeanwhileError("what would be done has changed meanwhile; look at it again")


def _done(action: Action, key: str, verb: Verb[Any], outcome: Any) -> Done:  # noqa: ANN401
    """What was done with one schedule, and how it is undone."""
    text = f"{key}: {result_of(verb, outcome)}"
    inverse, query, runs = action.inverse, {"key": key}, list[str]()
    if isinstance(outcome, Backfill):
        text = f"{key}: {describe_backfill(outcome, dry_run=False)}"
        runs = [*outcome.runs]
        query = {"keys": "\n".join(runs)}
        inverse = inverse if len(runs) <= _UNDONE_AT_ONCE else ""
    elif isinstance(outcome, Rescheduled):
        query["undo"] = "1"
    elif isinstance(outcome, str) and verb.name == "trigger":
        runs, query = [outcome], {"key": outcome}
    elif isinstance(outcome, str):
        text = f"{key}: acknowledged: {outcome}"
    title = "Undo" if inverse == "edit" else ACTIONS[inverse].title if inverse else ""
    href = act_link(inverse, **query) if inverse else ""
    return Done(visible(text), title, href, [key], runs)


def where(asked: Asked) -> str:
    """The page to which an action leads back."""
    if key := asked.query.get("key"):
        return schedule_link(key)
    return link("schedules", q=asked.query.get("q", ""))

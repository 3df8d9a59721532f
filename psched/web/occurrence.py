"""The page of a run: from due to its end, why it was late or did not run, and what it printed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypedDict

from psched.base.errors import NotFoundError, NotSupportedError
from psched.base.texts import visible
from psched.cli.history.live_output import SOON, find_live
from psched.cli.history.logs import PRINTED_NOTHING, about_output, output_object, why_not_kept
from psched.cli.schedules.show import fields_of_run
from psched.cli.shown import result, run_object
from psched.cli.time_format import format_time, format_took, reader_zone
from psched.client.verbs.extra_runs import CAN_HAVE_EXTRA_RUNS
from psched.core.columns import LATEST_TIME
from psched.core.history.records import Fate
from psched.core.history.run import Run
from psched.core.model import Occurrence, Row
from psched.core.operations.extra_runs import schedule_key
from psched.core.output import Output
from psched.web.actions import act_link
from psched.web.asked import LOOK, PATIENCE, Asked, Page, schedule_link, table_of_runs
from psched.web.fates import kind_of, late_of
from psched.web.users import OPERATE, allows

_ATTEMPTS = 100  # the most records of an occurrence that are shown
_NOT_YET = "No output yet."  # the output of an attempt is stored a moment after its record
_OUTPUTS = 20  # the most attempts of an occurrence whose output is shown
_SAME = "[the error above]"  # in place of a traceback in the output that is shown already


class OccurrenceDocument(TypedDict):
    """An occurrence, as by ``psched why --json``, its attempts, and what they printed."""

    why: Mapping[str, Any]
    runs: Sequence[Mapping[str, Any]]
    outputs: Sequence[Mapping[str, Any]]


class Printed(NamedTuple):
    """What an attempt has printed, None if nothing is kept; and the error that has ended it."""

    heading: str
    error: str
    output: str | None


class Course(NamedTuple):
    """An attempt from the time when it was due to its end.

    ``waited`` is how long it waited, in per cent of the whole; ``steps`` are names and texts.
    """

    title: str
    kind: str
    waited: str
    ran: str
    steps: Sequence[tuple[str, str]]
    facts: Mapping[str, str]


def occurrence_page(asked: Asked) -> Page:
    """The page of an occurrence: the one at the time that the query names, or the last one."""
    key, time = asked.key(), asked.query.get("time") or None
    answer = asked.schedules.why(key, time, reader_zone())
    runs: Sequence[Run] = ()
    outputs: Sequence[Output] = ()
    row, live, no_output, view = None, None, None, asked.view()
    with suppress(NotFoundError):
        row = asked.schedules.read(key).row
    if answer.time is not None and 0 <= answer.time <= LATEST_TIME:
        with suppress(NotSupportedError):
            runs = [*asked.schedules.runs(key, time=answer.time, limit=_ATTEMPTS)]
        live = _live(asked, row, answer.time)
        with suppress(NotSupportedError):
            outputs = [*asked.schedules.outputs(key, time=answer.time, limit=_OUTPUTS)]
    printed = [*_printed(asked, runs, outputs)]
    attempt = next((run for run in runs if run.outcome is not None), None)
    if attempt and live is None and all(each.output is None for each in printed):
        is_soon = view.now - attempt.ended <= SOON
        why = why_not_kept(row, attempt, asked.settings, view.now)
        not_kept = asked.sentence(f"No output: {why}.")
        no_output = _NOT_YET if is_soon and why == PRINTED_NOTHING else not_kept
    values = {
        "title": visible(key),
        "key": key,
        "schedule": schedule_link(schedule_key(key)),
        "time": "" if time is None or time.isdecimal() else time,
        "why": asked.sentence(answer.sentence),
        "actions": _actions(asked, row, answer.time, runs),
        "courses": [_course(asked, run, view.now) for run in runs if run.outcome is not None],
        "attempts": table_of_runs(runs, key, view),
        "live": live,
        "progress": None if live is None else _progress(asked, Occurrence(key, answer.time or 0)),
        "printed": printed,
        "no_output": no_output,
    }

    def document() -> OccurrenceDocument:
        ends = {run.record.owner: run for run in runs}
        return {
            "why": asked.redaction.value(answer.to_json()),
            "runs": [run_object(run, asked.redaction) for run in runs],
            "outputs": [
                output_object(each, ends.get(each.record.owner), asked.redaction)
                for each in outputs
            ],
        }

    goes_on = live is not None or no_output == _NOT_YET
    return Page("occurrence", values, document, refresh=LOOK if goes_on else 0)


def _actions(
    asked: Asked, row: Row | None, time: int | None, runs: Sequence[Run]
) -> Sequence[tuple[str, str]]:
    """What can be done with a run that goes on, or with an occurrence that did not run."""
    if row is None or time is None or not allows(asked.right, OPERATE):
        return []
    if row.owner is not None and row.next_time == time:
        return [("Stop this run", act_link("stop", key=row.key, run=str(row.fence)))]
    can_run = row.cron is not None and row.state in CAN_HAVE_EXTRA_RUNS
    if can_run and runs and not any(run.fate == Fate.FINISHED for run in runs):
        span = {"from": str(time), "to": str(time)}
        return [("Run it after all", act_link("backfill", key=row.key, **span))]
    return []


def _course(asked: Asked, run: Run, now: float) -> Course:
    took, late = run.took or 0.0, late_of(run)
    steps = []
    if run.due is not None:
        steps.append(("due", format_time(int(run.due))))
    if run.started is not None:
        after = f", {format_took(late)} later" if run.due is not None else ""
        steps.append(("started", format_time(int(run.started)) + after))
    after = f", after {format_took(took)}" if run.started is not None else ""
    steps.append(("ended", format_time(int(run.ended)) + after))
    waited = 100 * late / (late + took) if late + took else 0.0
    facts = fields_of_run(run, now, asked.redaction)
    # The steps tell it.
    for name in "last run", "started", "ended", "took":
        facts.pop(name, None)
    if run.cpu_time is not None:
        facts["processor time"] = format_took(run.cpu_time)
    if run.reason:
        facts["reason"] = asked.sentence(run.reason)
    title = f"Attempt {run.attempt}: {result(run)}"
    return Course(title, kind_of(run), f"{waited:.2f}%", f"{100 - waited:.2f}%", steps, facts)


def _live(asked: Asked, row: Row | None, time: int) -> Printed | None:
    """What the running attempt of an occurrence has printed so far; None if it does not run."""
    if row is None or row.owner is None or row.next_time != time:
        return None
    live, _, _ = find_live(asked.settings, row.key, PATIENCE)
    if live is not None and live.is_collected and live.attempt.owner == row.owner:
        with suppress(OSError):  # its master has hung up, or hangs
            output = live.so_far()
            about = about_output(output, None, is_running=True)
            return Printed(about, "", asked.lines(output.text))
    return Printed(f"running; psched logs -f {visible(row.key)} shows what it prints", "", None)


def _progress(asked: Asked, occurrence: Occurrence) -> Mapping[str, Any] | None:
    found = asked.reader.progress(occurrence)
    return found and {**found, "text": visible(found["text"] or "")}


def _printed(asked: Asked, runs: Iterable[Run], kept: Iterable[Output]) -> Iterator[Printed]:
    """What the attempts of an occurrence have printed, and their errors, the newest first."""
    outputs = {output.record.owner: output for output in kept}
    for run in runs:
        output = outputs.pop(run.record.owner, None) if run.outcome is not None else None
        error = run.error or ""
        if output is not None:
            shown = _without(error, output.text) if error else output.text
            yield Printed(about_output(output, run), asked.lines(error), asked.lines(shown))
        elif error:
            yield Printed(f"attempt {run.attempt}: {result(run)}", asked.lines(error), None)
    for output in outputs.values():  # the setting history omits their records
        yield Printed(about_output(output, None), "", asked.lines(output.text))


def _without(error: str, output: str) -> str:
    """The output without the traceback that is shown already; psched logs it, too, indented."""
    lines, wanted = output.split("\n"), [line.strip() for line in error.strip().split("\n")]
    for place, line in enumerate(lines):
        end = place + len(wanted)
        if line.strip() == wanted[0] and [each.strip() for each in lines[place:end]] == wanted:
            return "\n".join([*lines[:place], _SAME, *lines[end:]])
    return output

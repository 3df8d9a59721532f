"""Tests of the answers to "why did it not run?", against simulations that know what happened."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from psched import config
from psched.base.errors import InvalidError
from psched.core.asked_time import Asked, parse_asked
from psched.core.definition import parse_row
from psched.core.history.answer import Code, State
from psched.core.history.records import FOREVER, AuditRecord, RunRecord, WorkerRecord
from psched.core.model import Row
from psched.reports.why.explain import explain
from psched.reports.why.facts import Facts, last_before
from psched.triggers import trigger as triggers
from psched.triggers.zone import find_zone
from support.why_simulator import (
    BEGIN,
    KEY,
    MINUTE,
    MOST_ATTEMPTS,
    RETRY_WAIT,
    Life,
    Plan,
    Simulation,
    at,
)

UTC = find_zone("UTC")
SETTINGS = config.from_mapping(
    {
        "url": "sqlite:///unused.db",
        "max_attempts": MOST_ATTEMPTS,
        "retry_wait": RETRY_WAIT * MINUTE,
    }
)

COMPAT = config.from_mapping(
    {"url": "sqlite:///unused.db", "type": "rdb_compat", "table": "perfectsched"}
)

with_settings = SETTINGS.with_settings

STATES = {
    "ran": State.RAN,
    "running": State.RAN,
    "will_run": State.WILL_RUN,
    "retrying": State.WILL_RUN,
    "no_instant": State.NO_INSTANT,
}


@dataclass(frozen=True, kw_only=True)
class GivenFacts(Facts):
    """Facts that are given, and not read from a store."""

    store: object = None
    send: object = None
    workers_since: Callable = lambda _since: ()
    covering: Callable = lambda _instant: ()
    extra_runs: Callable = lambda: ()
    backfilled: Callable = lambda _instant: ()
    oldest: Callable = lambda: (None, 0)
    ran_between: Callable = lambda _a, _b: ()
    leased: Sequence = ()
    similar_keys: Callable = lambda: ()


def facts_of(simulation):
    records = simulation.records
    everything = [*records, *simulation.other_records]
    return GivenFacts(
        key=KEY,
        row=simulation.row,
        settings=SETTINGS,
        now=simulation.now,
        no_history=None,
        audits=simulation.audits[::-1],
        latest=records[:-11:-1],
        workers_since=lambda since: [w for w in simulation.worker_records if w.seen >= since],
        covering=lambda instant: [r for r in records[::-1] if r.covers(instant)],
        oldest=lambda: (records[0] if records else None, len(records)),
        ran_between=lambda start, end: [
            r
            for r in everything
            if r.started is not None and r.started < end * 1000 and r.ended > start * 1000
        ],
        leased=simulation.other_rows,
    )


def why(simulation, instant):
    return explain(facts_of(simulation), Asked(instants=(instant,)), UTC)


def check(simulation):
    """Compare the answer about every minute with the truth."""
    plan = simulation.plan
    changed = plan.change is not None and bool(simulation.audits)
    for minute in {*range(-30, plan.until + 60, 7), *((i - BEGIN) // 60 for i in simulation.truth)}:
        instant = at(minute)
        answer = why(simulation, instant)
        expected = simulation.truth.get(instant)
        context = f"minute {minute}: {answer.sentence} {answer.details}"
        if expected is None and minute < plan.created:
            assert answer.code == "before_creation", context
        elif expected is None and instant > max(simulation.truth):
            continue
        elif expected is None:
            wanted = {"no_instant", "before_trigger_change"} if changed else {"no_instant"}
            assert answer.code in wanted, context
        elif expected != "?":
            assert answer.code == expected, context
            assert_state(simulation, answer, expected, context)
        assert answer.sentence.endswith(".")
        assert "\n" not in answer.sentence
        json.dumps(answer.to_json())


def assert_state(simulation, answer, expected, context):
    if expected in STATES:
        assert answer.state is STATES[expected], context
    elif "due" in answer.details and expected != "?":
        due = answer.details.get("first_due", answer.details["due"])
        late = simulation.now - due >= 60
        assert answer.state is (State.DID_NOT_RUN if late else State.WILL_RUN), context
    elif expected not in {"waiting", "no_worker", "no_worker_takes_type", "all_slots_busy"}:
        assert answer.state is State.DID_NOT_RUN, context
    causes = simulation.causes.get(answer.time)
    if expected == "ran" and causes and len(answer.details["attempts"]) == 1:
        [(cause, minutes)] = causes.most_common(1)
        if minutes > 0.6 * sum(causes.values()) and answer.details["late"] >= 2 * MINUTE:
            seen = answer.details.get("late_code")
            assert seen in {cause, "waiting"}, context


EXAMPLES = 150

TENS = st.integers(0, 48).map(lambda ten: 10 * ten)


@st.composite
def plans(draw):
    workers = []
    for _ in range(draw(st.integers(0, 3))):
        start = draw(TENS)
        workers.append(
            Life(
                start=start,
                end=start + draw(st.integers(1, 48)) * 10,
                slots=draw(st.integers(1, 2)),
                types=draw(st.sampled_from([(), (), ("job", "mail"), ("mail",)])),
                killed=draw(st.booleans()),
            )
        )
    others = []
    for _ in range(draw(st.integers(0, 4)) if workers else 0):
        number = draw(st.integers(0, len(workers) - 1))
        start = draw(st.integers(workers[number].start, workers[number].end - 1))
        others.append((number, start, min(start + draw(st.integers(5, 90)), workers[number].end)))
    steer = draw(st.sampled_from(["", "", "cancel", "change"]))
    return Plan(
        every=draw(st.sampled_from([10, 20, 30, 60])),
        delay=draw(st.sampled_from([0, 0, 120])),
        catchup=draw(st.sampled_from(["all", "latest", "skip"])),
        workers=tuple(workers),
        others=tuple(others),
        fails=draw(st.dictionaries(st.integers(0, 20), st.integers(1, MOST_ATTEMPTS), max_size=5)),
        takes=draw(st.dictionaries(st.integers(0, 20), st.integers(1, 45), max_size=3)),
        cancel=draw(TENS) + 5 if steer == "cancel" else None,
        change=(draw(TENS) + 5, draw(st.sampled_from([15, 120]))) if steer == "change" else None,
        created=draw(st.integers(0, 60)),
        until=draw(st.integers(100, 480)),
    )


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(plans())
def test_every_minute_of_a_simulation_is_explained_as_it_happened(plan):
    for number, life in enumerate(plan.workers):
        # A worker that was killed a moment ago cannot be told from one that is alive. A worker
        # takes no slot while another task has all of them.
        assume(not (life.killed and plan.until - 3 <= life.end <= plan.until))
        loads = [(s, e) for w, s, e in plan.others if w == number]
        assume(all(sum(s <= m < e for s, e in loads) <= life.slots for m in range(600)))
    check(Simulation(plan))


# --- situations of their own ---------------------------------------------------------------

BERLIN = "Europe/Berlin"
NOW = BEGIN + 36_000  # 2026-11-22T10:00:00Z


def berlin(text, now=NOW):
    return parse_asked(text, find_zone(BERLIN), now)


def schedule(**columns):
    """A schedule that ran at 02:30 in Berlin today and runs next tomorrow."""
    tomorrow = BEGIN + 86_400 + 5400
    given = {
        "key": KEY,
        "type": "job",
        "cron": "30 2 * * *",
        "timezone": BERLIN,
        "next_time": tomorrow,
        "next_run_time": tomorrow,
        "created_at": BEGIN - 60 * 86_400,
    }
    return Row(**{**given, **columns})


def ran(instant, **fields):
    given = {
        "key": KEY,
        "type": "job",
        "scheduled_time": instant,
        "owner": "n1.1",
        "fence": 1,
        "attempt": 1,
        "due": instant * 1000,
        "started": instant * 1000 + 1500,
        "ended": instant * 1000 + 4700,
        "host": "web1",
        "outcome": "finished",
        "fate": "finished",
    }
    return RunRecord(**{**given, **fields})


def change(action, time, before=None, after=None):
    return AuditRecord(
        key=KEY,
        action=action,
        user="ann",
        host="desk",
        program="psched",
        time=int(time * 1000),
        before=None if before is None else json.dumps(before),
        after=None if after is None else json.dumps(after),
    )


def alive(start, end=None, *, nonce="n1", **fields):
    given = {
        "nonce": nonce,
        "host": "web1",
        "pid": 1,
        "number": 0,
        "generation": 1,
        "slots": 1,
        "busy": 0,
        "types": None,
        "started": start,
        "seen": NOW - 10 if end is None else end,
        "ended": end,
    }
    return WorkerRecord(**{**given, **fields})


def ask(text, row, *records, audits=(), workers=(), now=NOW, settings=None, zone=None, **facts):
    own = SETTINGS if settings is None else settings
    newest = sorted(records, key=lambda record: record.ended, reverse=True)
    known = GivenFacts(
        **{
            "key": KEY,
            "row": row,
            "settings": own,
            "now": now,
            "no_history": None,
            "audits": sorted(audits, key=lambda each: each.time, reverse=True),
            "latest": newest[:10],
            "covering": lambda instant: [each for each in newest if each.covers(instant)],
            "oldest": lambda: (newest[-1] if newest else None, len(newest)),
            "workers_since": lambda since: [each for each in workers if each.seen >= since],
            **facts,
        }
    )
    shown = known.zone(zone)
    return explain(known, None if text is None else parse_asked(text, shown, now), shown)


TODAY = BEGIN + 5400  # 02:30 in Berlin
DAY = 86_400


class TestSituations:
    def test_a_row_that_continues_where_its_trigger_can_be_loaded_has_a_next_time(self):
        decided = NOW // MINUTE * MINUTE - 10 * MINUTE
        row = schedule(cron="* * * * *", next_time=None, decided_until=decided, next_run_time=NOW)
        answer = ask(None, row)
        assert "1970" not in answer.sentence
        assert decided < answer.time <= NOW
        answer = ask(str(decided + 2 * MINUTE), row)
        assert (answer.details.get("first"), "1970" in answer.sentence) == (decided + MINUTE, False)

    def test_an_occurrence_that_new_zone_data_have_moved_says_so(self):
        row = schedule(reason="A is now B, by the zone data 2026b", reason_code="new_zone_data")
        answer = ask("tomorrow 02:30", row)
        assert answer.code == Code.WILL_RUN
        assert answer.sentence.endswith(
            " will run then; it was moved: A is now B, by the zone data 2026b."
        )
        assert answer.details["reason_code"] == "new_zone_data"

    def test_without_a_time_the_last_occurrence_and_what_comes_next(self):
        answer = ask(None, schedule(), ran(TODAY))
        assert answer.sentence == (
            "The occurrence of 2026-11-22 02:30 CET ran at 02:30:01 CET on web1 and took 3.2 s; the"
            " next is 2026-11-23 02:30 CET."
        )
        assert (answer.code, answer.state) == (Code.RAN, State.RAN)
        assert answer.details["next"] == TODAY + DAY

    def test_a_new_schedule_has_not_been_due(self):
        answer = ask(None, schedule(created_at=NOW - 60))
        assert (answer.code, answer.time) == (Code.WILL_RUN, TODAY + DAY)

    def test_late_because_no_worker_was_alive(self):
        late = ran(TODAY, started=(TODAY + 1020) * 1000, ended=(TODAY + 1030) * 1000)
        workers = [
            alive(TODAY - DAY, TODAY - 300),
            alive(TODAY + 1000, nonce="n2"),
        ]
        answer = ask("02:30", schedule(), late, workers=workers)
        assert answer.sentence == (
            "The occurrence of 2026-11-22 02:30 CET ran at 02:47 CET on web1, 17.0 min late because"
            " no worker was alive between 02:25 CET and 02:46:40 CET, and took 10.0 s."
        )
        assert answer.details["late_code"] == "no_worker"
        assert answer.details["late"] == 1020

    @pytest.mark.parametrize("workers_tell", [True, False])
    def test_after_an_outage_each_occurrence_is_late_for_the_same_cause(self, workers_tell):
        """A predecessor that was late itself is no cause, unless nothing else is known."""
        back = TODAY + 900
        first, second = (
            ran(
                TODAY + 60 * number,
                owner=f"n2.{number}",
                fence=number,
                due=(back + number) * 1000,
                started=(back + number) * 1000,
                ended=(back + number + 1) * 1000,
            )
            for number in (1, 2)
        )
        workers = [alive(TODAY - DAY, TODAY - 300), alive(back, nonce="n2")]
        if not workers_tell:
            workers = [alive(TODAY - DAY)]
        answer = ask("02:32", schedule(cron="* * * * *"), first, second, workers=workers)
        if workers_tell:
            assert answer.details["late_code"] == "no_worker"
            assert answer.sentence.endswith(
                ", 13.0 min late because no worker was alive between 02:25 CET and 02:45 CET, and"
                " took 1.0 s."
            )
        else:
            assert answer.details["late_code"] == "waiting"

    def test_a_predecessor_that_ran_when_it_was_due_holds_the_next_one_back(self):
        first = ran(TODAY + 60, ended=(TODAY + 500) * 1000)
        second = ran(
            TODAY + 120,
            owner="n1.2",
            fence=2,
            due=(TODAY + 500) * 1000,
            started=(TODAY + 500) * 1000,
            ended=(TODAY + 501) * 1000,
        )
        row = schedule(cron="* * * * *")
        answer = ask("02:32", row, first, second, workers=[alive(TODAY - DAY)])
        assert (
            "because the occurrence of 02:31 CET had not ended before 02:38:20" in answer.sentence
        )
        assert answer.details["late_code"] == "waiting"

    def test_an_attempt_that_failed_is_summarised(self):
        first = ran(TODAY, outcome="failed", fate=None, reason="exit status 1")
        second = ran(
            TODAY, owner="n1.2", attempt=2, started=(TODAY + 60) * 1000, ended=(TODAY + 61) * 1000
        )
        answer = ask("02:30", schedule(), first, second)
        assert answer.sentence.endswith(
            "and took 1.0 s, in attempt 2, after attempt 1 failed on web1 at 02:30:04 CET (exit"
            " status 1)."
        )
        assert [each["outcome"] for each in answer.details["attempts"]] == ["failed", "finished"]

    def test_a_retry_says_when_and_why(self):
        row = schedule(next_time=TODAY, next_run_time=NOW + 60, attempt=1, reason="exit status 1")
        failed = ran(TODAY, outcome="failed", fate=None, reason="exit status 1")
        answer = ask("02:30", row, failed)
        assert answer.code == Code.RETRYING
        assert "will be retried at 11:01 CET because attempt 1 failed" in answer.sentence

    def test_attempts_with_one_reason_tell_it_once(self):
        row = schedule(next_time=TODAY, next_run_time=NOW + 60, attempt=5, reason="no route")
        failed = [
            ran(
                TODAY,
                outcome="failed",
                fate=None,
                reason="no route",
                owner=f"n1.{number}",
                fence=number,
                attempt=number,
                started=(TODAY + number) * 1000,
                ended=(TODAY + number) * 1000,
            )
            for number in range(1, 6)
        ]
        assert ask("02:30", row, *reversed(failed)).sentence.endswith(
            " because 2 earlier attempts did not succeed, attempt 3 failed on web1 at 02:30:03 CET,"
            " attempt 4 failed on web1 at 02:30:04 CET and attempt 5 failed on web1 at 02:30:05 CET"
            " (no route)."
        )

    def test_a_reason_that_says_the_same_is_left_out(self):
        reason = "stopped at its time limit"
        record = ran(TODAY, outcome="timed_out", fate="gave_up", reason=reason)
        answer = ask("02:30", schedule(), record)
        assert answer.sentence.count(reason) == 1

    def test_a_run_of_less_than_a_second(self):
        record = ran(TODAY, started=TODAY * 1000, ended=TODAY * 1000 + 12)
        assert "and took 12 ms" in ask("02:30", schedule(), record).sentence

    def test_the_host_of_a_task_that_was_claimed_after_its_workers_last_beat(self):
        row = schedule(next_time=TODAY, next_run_time=NOW + 99, owner="n9.1", claimed_at=NOW - 5)
        answer = ask("02:30", row, workers=[alive(TODAY - DAY, NOW - 50, nonce="n9")])
        assert "has been running on web1 since 10:59:55 CET" in answer.sentence

    def test_what_waits_for_an_earlier_one_that_is_long_overdue_does_not_run(self):
        row = schedule(cron="@every 10", next_time=NOW - 600, next_run_time=NOW - 600)
        answer = ask(None, row, workers=[alive(TODAY - DAY, NOW - 700, ended=NOW - 700)])
        assert (answer.code, answer.state) == (Code.NO_WORKER, State.DID_NOT_RUN)
        assert answer.details["first_due"] == NOW - 600

    def test_a_dead_workers_lease(self):
        row = schedule(
            next_time=TODAY,
            next_run_time=NOW - 600,
            attempt=1,
            owner="n9.1",
            claimed_at=TODAY,
        )
        answer = ask("02:30", row, workers=[alive(TODAY - DAY, TODAY + 60, nonce="n9")])
        assert (answer.code, answer.state) == (Code.NO_WORKER, State.DID_NOT_RUN)
        assert "was running on web1" in answer.sentence

    @pytest.mark.parametrize(
        ("status", "code"),
        [
            ("quarantined", Code.QUARANTINED),
            ("paused", Code.PAUSED),
            ("cancelled", Code.CANCELLED),
            ("migrating", Code.MIGRATING),
            ("finished", Code.ENDED),
            ("strange", Code.UNKNOWN),
        ],
    )
    @pytest.mark.parametrize("when", ["02:30", "tomorrow 02:30"])
    def test_a_schedule_at_rest(self, status, code, when):
        row = schedule(status=status, next_time=TODAY, next_run_time=None, reason="a reason")
        answer = ask(when, row)
        assert answer.code == code
        assert answer.state in {State.DID_NOT_RUN, State.UNKNOWN}
        assert "a reason" in answer.sentence

    def test_the_answer_names_who_has_cancelled_the_schedule(self):
        row = schedule(status="cancelled", next_time=TODAY, next_run_time=None)
        cancelled = change("cancel", TODAY - 60, {"status": "waiting"}, {"status": "cancelled"})
        answer = ask("02:30", row, audits=[cancelled])
        assert "cancelled at 02:29 CET by ann on desk (psched)" in answer.sentence

    @pytest.mark.parametrize("status", ["cancelled", "cancelling"])
    def test_what_was_cancelled_and_requeued_since(self, status):
        audits = [
            change("cancel", TODAY - 60, {"status": "waiting"}, {"status": status}),
            change("requeue", TODAY + 60, {"status": "cancelled"}, {"status": "waiting"}),
        ]
        row = schedule(created_at=TODAY + 60)
        assert ask("02:30", row, audits=audits).code == Code.CANCELLED

    def test_a_span_without_an_end(self):
        record = ran(
            TODAY - DAY,
            until=FOREVER,
            count=None,
            outcome=None,
            fate="skipped_catchup",
            started=None,
            attempt=0,
            reason="catch-up (skip) dropped the occurrences",
        )
        answer = ask("02:30", schedule(), record)
        assert answer.code == Code.SKIPPED_CATCHUP
        assert answer.details["span"] == {"from": TODAY - DAY, "to": None, "count": None}

    @pytest.mark.parametrize(
        "fate", ["skipped_paused", "skipped_calendar", "skipped_clock_change", "skipped_overlap"]
    )
    def test_every_skip_has_its_code(self, fate):
        record = ran(TODAY, outcome=None, fate=fate, started=None, attempt=0)
        answer = ask("02:30", schedule(), record)
        assert (answer.code, answer.state) == (fate, State.DID_NOT_RUN)

    @pytest.mark.parametrize("fate", ["cancelled", "expired", "quarantined", "gave_up"])
    def test_every_other_fate_has_its_code(self, fate):
        record = ran(TODAY, outcome="failed", fate=fate, reason="a reason")
        answer = ask("02:30", schedule(), record)
        assert (answer.code, answer.state) == (fate, State.DID_NOT_RUN)
        assert "a reason" in answer.sentence

    def test_what_a_person_has_marked_as_finished_did_not_run(self):
        record = ran(TODAY, outcome="cancelled")
        answer = ask("02:30", schedule(), record)
        assert (answer.code, answer.state) == (Code.MARKED_FINISHED, State.DID_NOT_RUN)

    def test_a_time_that_the_schedule_does_not_have(self):
        answer = ask("03:00", schedule(), ran(TODAY))
        assert answer.sentence == (
            "2026-11-22 03:00 CET is not an instant of this schedule; the nearest are 2026-11-22"
            " 02:30 CET and 2026-11-23 02:30 CET."
        )
        assert answer.details["nearest"] == [TODAY, TODAY + DAY]

    def test_a_future_time_before_the_first_occurrence(self):
        row = schedule(next_time=TODAY + 9 * DAY, next_run_time=TODAY + 9 * DAY)
        assert ask("tomorrow 02:30", row).code == Code.BEFORE_START

    def test_the_next_time_was_moved(self):
        moved = change("modify", TODAY - 60, {"next_time": TODAY}, {"next_time": TODAY + 9 * DAY})
        late = change("modify", TODAY + 60, {"next_time": TODAY}, {"next_time": TODAY + 9 * DAY})
        row = schedule(next_time=TODAY + 9 * DAY, next_run_time=TODAY + 9 * DAY)
        answer = ask("02:30", row, audits=[late])
        assert (answer.code, answer.state) == (Code.MOVED, State.DID_NOT_RUN)
        assert ask("02:30", row, audits=[moved]).code == Code.MOVED

    @pytest.mark.parametrize(
        ("facts", "code"),
        [
            ({}, Code.UNKNOWN),
            ({"settings": with_settings(history="none")}, Code.HISTORY_OFF),
            ({"settings": with_settings(history="failures")}, Code.HISTORY_OFF),
            ({"no_history": "the table psched_runs does not exist"}, Code.HISTORY_OFF),
            ({"settings": with_settings(history_keep=3600)}, Code.HISTORY_PURGED),
            ({"settings": COMPAT}, Code.UNKNOWN),
        ],
    )
    def test_nothing_is_recorded(self, facts, code):
        answer = ask("02:30", schedule(), **facts)
        assert (answer.code, answer.state) == (code, State.UNKNOWN)

    def test_only_so_many_records_are_kept(self):
        later = [ran(TODAY + number, owner=f"n1.{number}") for number in range(60, 65)]
        keeps = with_settings(history_keep_per_key=5)
        assert ask("02:30", schedule(), *later, settings=keeps).code == Code.HISTORY_PURGED
        assert ask("02:30", schedule(), *later[1:], settings=keeps).code == Code.UNKNOWN

    def test_without_history_the_row_tells_what_comes(self):
        off = {"no_history": "off"}
        assert ask("tomorrow 02:30", schedule(), **off).code == Code.WILL_RUN
        overdue = schedule(next_time=TODAY, next_run_time=TODAY)
        assert ask("02:30", overdue, **off).code == Code.WAITING
        assert ask("02:30", schedule(created_at=NOW - 60), **off).code == Code.BEFORE_CREATION

    def test_perfectscheds_table_does_not_tell_a_lease_from_a_wait(self):
        leased = schedule(next_time=TODAY, next_run_time=NOW + 9)
        answer = ask("02:30", leased, settings=COMPAT)
        assert (answer.code, answer.details["run_at"]) == (Code.WILL_RUN, NOW + 9)
        assert "is running, or will run at" in answer.sentence
        delayed = schedule(next_time=TODAY, next_run_time=NOW + 9, delay=NOW + 9 - TODAY)
        assert " will run at " in ask("02:30", delayed, settings=COMPAT).sentence
        assert "is running" not in ask("02:30", delayed, settings=COMPAT).sentence
        assert "is running" not in ask("02:30", leased).sentence
        early = schedule(next_run_time=NOW + 9)
        answer = ask("tomorrow 02:30", early, settings=COMPAT)
        assert "is running, or will run at" in answer.sentence

    def test_a_first_run_before_its_scheduled_time(self):
        early = schedule(next_run_time=NOW + 600)
        answer = ask("tomorrow 02:30", early)
        assert (answer.code, answer.details["run_at"]) == (Code.WILL_RUN, NOW + 600)
        assert answer.sentence.endswith("11:10 CET, 15.3 h before its scheduled time.")
        assert ask(None, early).sentence.endswith(" 02:30 CET (from 2026-11-22 11:10 CET on).")
        record = ran(early.next_time, started=(NOW - 600) * 1000, ended=(NOW - 590) * 1000)
        done = schedule(next_time=early.next_time + 86_400)
        answer = ask("tomorrow 02:30", done, record)
        assert answer.code == Code.RAN
        assert " on web1, 15.7 h before its scheduled time, and took 10.0 s" in answer.sentence

    def test_the_trigger_that_applied_then_is_used(self):
        changed = change("modify", TODAY + 60, {"cron": "0 1 * * *"}, {"cron": "30 2 * * *"})
        record = ran(TODAY - 5400)
        answer = ask("02:30", schedule(), record, audits=[changed])
        assert answer.code == Code.BEFORE_TRIGGER_CHANGE
        assert "from '0 1 * * *' to '30 2 * * *' by ann" in answer.sentence
        assert ask("01:00", schedule(), record, audits=[changed]).code == Code.RAN
        assert ask("2026-11-21 01:00", schedule(), record, audits=[changed]).code == Code.UNKNOWN

    def test_a_trigger_that_was_invalid_then(self):
        changed = change("modify", TODAY + 60, {"cron": "30 2 * * 9"}, {"cron": "30 2 * * *"})
        answer = ask("02:30", schedule(), audits=[changed])
        assert (answer.code, answer.state) == (Code.QUARANTINED, State.DID_NOT_RUN)

    def test_an_earlier_schedule_of_the_same_key(self):
        audits = [
            change("add", TODAY - 9 * DAY, None, {"cron": "30 2 * * *"}),
            change("delete", TODAY - 60, {"cron": "30 2 * * *"}, None),
            change("add", TODAY + 60, None, {"cron": "30 2 * * *"}),
        ]
        answer = ask("02:30", schedule(created_at=TODAY + 60), audits=audits)
        assert answer.code == Code.BEFORE_CREATION
        assert "an earlier one was deleted at 2026-11-22 02:29 CET" in answer.sentence

    def test_a_schedule_that_was_added_with_occurrences_in_the_past(self):
        after = {"cron": "30 2 * * *", "next_time": TODAY - DAY}
        row = schedule(created_at=NOW - 60, next_time=TODAY - DAY, next_run_time=TODAY - DAY)
        audits = [change("add", NOW - 60, None, after)]
        assert ask("02:30", row, audits=audits).code == Code.NO_WORKER
        assert ask("2026-11-20 02:30", row, audits=audits).code == Code.BEFORE_CREATION

    def test_a_key_that_no_schedule_has(self):
        answer = ask(None, None, similar_keys=lambda: ["s12"])
        assert (answer.code, answer.state) == (Code.NO_SUCH_SCHEDULE, State.UNKNOWN)
        assert answer.sentence == "No schedule has the key 's1' now; did you mean 's12'?"

    def test_a_schedule_that_was_deleted(self):
        deleted = change("delete", TODAY + 600, {"cron": "30 2 * * *"}, None)
        answer = ask("2026-11-22 02:30", None, audits=[deleted], zone=BERLIN)
        assert answer.code == Code.NO_SUCH_SCHEDULE
        assert "was deleted at 2026-11-22 02:40 CET by ann" in answer.sentence
        answer = ask(None, None, ran(TODAY), audits=[deleted], zone=BERLIN)
        assert answer.code == Code.RAN
        assert "was deleted at 2026-11-22 02:40 CET by ann" in answer.sentence

    def test_all_slots_are_busy(self):
        row = schedule(next_time=TODAY, next_run_time=TODAY)
        leased = [Row(key="other", owner="n1.7", claimed_at=TODAY - 60)]
        workers = [alive(TODAY - DAY)]
        answer = ask("02:30", row, workers=workers, leased=leased)
        assert (answer.code, answer.state) == (Code.ALL_SLOTS_BUSY, State.DID_NOT_RUN)
        assert ask("02:30", row, workers=workers).code == Code.WAITING
        unknown = ask("02:30", row, workers=workers, ran_between=lambda _a, _b: None)
        assert unknown.code == Code.WAITING

    def test_a_worker_that_has_let_a_lease_end_is_dead_and_not_busy(self):
        since = NOW - 5
        row = schedule(
            cron=None, next_time=NOW - 60, next_run_time=since, owner="n1.7", claimed_at=NOW - 20
        )
        workers = [alive(TODAY, nonce="n1"), alive(TODAY, nonce="n2", types='["mail"]')]
        answer = ask(None, row, workers=workers, leased=[row])
        assert answer.code == Code.NO_WORKER_TAKES_TYPE, answer.sentence
        alone = ask(None, row, workers=workers[:1], leased=[row])
        assert alone.code == Code.NO_WORKER, alone.sentence

    def test_an_occurrence_whose_lease_has_ended_is_not_still_running(self):
        row = schedule(
            cron="* * * * *",
            next_time=NOW - 180,
            next_run_time=NOW - 5,
            owner="n1.7",
            claimed_at=NOW - 170,
        )
        answer = ask(None, row, workers=[alive(TODAY)], leased=[row])
        assert answer.code == Code.NO_WORKER
        assert "still running" not in answer.sentence
        assert "waits for an earlier one: the occurrence of " in answer.sentence
        assert "but the lease ended at " in answer.sentence

    def test_a_lease_that_workers_must_observe_is_not_taken_over_before(self):
        columns = {"cron": None, "next_time": NOW - 180, "next_run_time": NOW - 50}
        row = schedule(**columns, owner="n1.7", claimed_at=NOW - 170, alive_time=60)
        settings = SETTINGS.with_settings(takeover="observed")
        workers = [alive(TODAY, nonce="n2")]
        answer = ask(None, row, workers=workers, leased=[row], settings=settings)
        assert (answer.code, answer.state) == (Code.WAITING, State.WILL_RUN)
        assert answer.sentence.endswith("when it has seen this lease unchanged for 1.0 min.")
        later = ask(None, row, workers=workers, leased=[row], settings=settings, now=NOW + 20)
        assert "workers with free slots seem to be alive" in later.sentence

    def test_a_worker_that_was_just_killed_is_not_promised(self):
        def asked(age, **fields):
            row = schedule(cron=None, next_time=NOW - age, next_run_time=NOW - age)
            workers = [alive(TODAY - DAY, **fields), alive(TODAY, nonce="n2", seen=NOW - 40)]
            return ask(None, row, workers=workers)

        due = asked(3, seen=NOW - 50)
        assert due.sentence.endswith("and a worker will claim it within moments.")
        overdue = asked(30, seen=NOW - 50)
        assert (overdue.code, overdue.state) == (Code.WAITING, State.WILL_RUN)
        assert overdue.sentence.endswith("; the newest record of such a worker is 40.0 s old.")
        assert overdue.details["newest_record"] == NOW - 40
        for other in {"types": '["mail"]'}, {"busy": 1}:
            assert asked(30, seen=NOW - 5, **other).details["newest_record"] == NOW - 40
        late = asked(70, seen=NOW - 50)
        assert late.state is State.DID_NOT_RUN
        assert "within moments" not in late.sentence

    def test_a_late_one_is_not_promised_however_seldom_workers_look(self):
        row = schedule(cron=None, next_time=NOW - 90, next_run_time=NOW - 90)
        answer = ask(None, row, workers=[alive(TODAY)], settings=with_settings(poll_interval=60))
        assert answer.state is State.DID_NOT_RUN
        assert "within moments" not in answer.sentence

    def test_no_worker_takes_the_type(self):
        row = schedule(next_time=TODAY, next_run_time=TODAY)
        answer = ask("02:30", row, workers=[alive(TODAY - DAY, types='["mail"]')])
        assert answer.code == Code.NO_WORKER_TAKES_TYPE
        assert "takes the type 'job' (they take only mail)" in answer.sentence

    def test_no_host_that_may_run_it_is_alive(self):
        row = schedule(next_time=TODAY, next_run_time=TODAY, lane="db1")
        workers = [alive(TODAY - DAY), alive(TODAY - DAY, NOW - 10_800, nonce="n2", host="DB1")]
        answer = ask("02:30", row, workers=workers)
        assert answer.code == Code.NO_HOST
        assert "only db1 may run it, last seen 3.0 h ago" in answer.sentence
        unknown = ask("02:30", changed(row, lane="*mail web?"), workers=[alive(TODAY, host="x")])
        assert unknown.code == Code.NO_HOST
        assert "only mail or web? may run it, and no such host is known" in unknown.sentence

    def test_a_host_with_the_label_may_run_it(self):
        row = schedule(next_time=TODAY, next_run_time=TODAY, lane="db")
        answer = ask("02:30", row, workers=[alive(TODAY - DAY, labels="eu db")])
        assert answer.code != Code.NO_HOST

    def test_delay_and_jitter_are_no_lateness(self):
        row = schedule(delay=3600, options='{"jitter": 600}')
        started = parse_row(row, SETTINGS).first_run(TODAY) + 1
        record = ran(TODAY, due=None, started=started * 1000, ended=(started + 1) * 1000)
        assert " late" not in ask("02:30", row, record).sentence
        answer = ask("2026-11-24 02:30", row)
        assert TODAY + 2 * DAY + 3600 <= answer.details["run_at"] <= TODAY + 2 * DAY + 4200

    def test_a_trigger_that_cannot_be_parsed(self):
        row = schedule(cron="every day", status="quarantined", next_run_time=None, reason="cron: x")
        assert ask("02:30", row).state is State.UNKNOWN
        assert ask(None, row).code == Code.QUARANTINED


class TestOneShots:
    def once(self, **columns):
        return schedule(cron=None, next_time=TODAY, next_run_time=None, **columns)

    def test_a_task_that_runs_once_needs_no_time(self):
        answer = ask(None, self.once(status="finished"), ran(TODAY))
        assert answer.sentence.startswith("The task of 2026-11-22 02:30 CET ran at 02:30:01 CET")

    def test_a_task_that_runs_once_has_only_one_occurrence(self):
        answer = ask("05:00", self.once(status="finished"), ran(TODAY))
        assert (answer.code, answer.time) == (Code.RAN, TODAY)
        assert answer.sentence.endswith("; it has no other occurrence.")

    @pytest.mark.parametrize(
        ("status", "code"),
        [
            ("finished", Code.FINISHED),
            ("failed", Code.GAVE_UP),
            ("expired", Code.EXPIRED),
            ("cancelled", Code.CANCELLED),
        ],
    )
    def test_without_a_record_the_status_tells(self, status, code):
        assert ask(None, self.once(status=status)).code == code

    def test_a_task_that_was_finished_by_hand_did_not_run(self):
        row = self.once(status="finished")
        by_hand = change("force_finish", NOW - 60, {"status": "waiting"}, {"status": "finished"})
        answer = ask(None, row, audits=[changed(by_hand, note="done by hand")])
        assert (answer.code, answer.state) == (Code.MARKED_FINISHED, State.DID_NOT_RUN)
        assert answer.sentence == (
            "The task of 2026-11-22 02:30 CET was marked as finished at 10:59 CET by ann on desk"
            " (psched): done by hand."
        )
        failed = ran(TODAY, outcome="failed", fate=None, reason="exit status 1")
        answer = ask(None, row, failed, audits=[by_hand])
        assert answer.code == Code.MARKED_FINISHED
        assert ", after attempt 1 failed on web1" in answer.sentence
        assert ask(None, row, ran(TODAY), audits=[by_hand]).code == Code.RAN

    def test_a_task_that_was_finished_by_hand_can_have_run_again_or_to_its_end(self):
        row = self.once(status="finished")
        by_hand = change("force_finish", NOW - 60, {"status": "waiting"}, {"status": "finished"})
        again = change("requeue", NOW - 30, {"status": "finished"}, {"status": "waiting"})
        assert ask(None, row, audits=[by_hand, again]).code == Code.FINISHED
        marked = change("force_finish", NOW - 60, {"status": "waiting"}, {"status": "finishing"})
        assert ask(None, row, audits=[marked]).code == Code.FINISHED

    def test_a_row_that_plain_sql_has_inserted_without_a_time(self):
        row = Row(key=KEY, type="job", next_run_time=0)
        answer = ask(None, row)
        assert answer.code == Code.NO_WORKER


class TestClockChanges:
    SPRING, AUTUMN = 1_774_746_000, 1_792_890_000  # 2026-03-29 and 2026-10-25, 01:00 UTC

    def at(self, day, policy, *records, text="02:30", cron="30 2 * * *"):
        options = json.dumps({"dst_policy": policy})
        row = schedule(options=options, created_at=1_700_000_000, cron=cron)
        date = "2026-03-29" if day == self.SPRING else "2026-10-25"
        return ask(f"{date} {text}", row, *records, settings=with_settings(history_keep=0))

    def test_a_time_that_does_not_exist_runs_right_after(self):
        answer = self.at(self.SPRING, "debian", ran(self.SPRING))
        assert (answer.code, answer.time) == (Code.RAN, self.SPRING)
        assert answer.sentence == (
            "02:30 does not exist on 2026-03-29 in Europe/Berlin, because the clocks are set from"
            " 02:00 to 03:00, and the schedule runs right after instead: the occurrence of"
            " 2026-03-29 03:00 CEST ran at 03:00:01 CEST on web1 and took 3.2 s."
        )

    def test_a_time_that_does_not_exist_is_skipped(self):
        answer = self.at(self.SPRING, "wallclock")
        assert (answer.code, answer.state) == (Code.NO_SUCH_LOCAL_TIME, State.DID_NOT_RUN)
        assert answer.details["change"] == self.SPRING

    def test_a_time_that_does_not_exist_is_no_time_of_the_schedule(self):
        answer = self.at(self.SPRING, "debian", text="02:45")
        assert (answer.code, answer.state) == (Code.NO_SUCH_LOCAL_TIME, State.NO_INSTANT)

    def test_a_time_that_exists_twice_runs_the_first_time(self):
        first = self.AUTUMN - 1800
        answer = self.at(self.AUTUMN, "debian", ran(first))
        assert (answer.code, answer.time) == (Code.RAN, first)
        assert "02:30 comes twice on 2026-10-25 in Europe/Berlin" in answer.sentence
        assert [each["code"] for each in answer.details["readings"]] == ["ran", "no_instant"]

    def test_a_time_that_exists_twice_runs_both_times(self):
        first, second = self.AUTUMN - 1800, self.AUTUMN + 1800
        answer = self.at(self.AUTUMN, "wallclock", ran(first))
        assert [each["code"] for each in answer.details["readings"]] == ["ran", "unknown"]
        assert (answer.code, answer.time) == (Code.UNKNOWN, second)
        both = self.at(self.AUTUMN, "wallclock", ran(first), ran(second, owner="n1.2"))
        assert (both.code, both.state) == (Code.RAN, State.RAN)


class TestAskedTimes:
    @pytest.mark.parametrize(
        ("text", "instant"),
        [
            ("2026-11-22 02:30", TODAY),
            ("2026-11-22T02:30", TODAY),
            ("2026-11-22 02:30:15", TODAY + 15),
            ("2026-11-22T02:30+01:00", TODAY),
            ("2026-11-22 01:30 +00:00", TODAY),
            ("2026-11-22T01:30Z", TODAY),
            ("02:30", TODAY),
            ("2:30", TODAY),
            ("23:30", TODAY - 3 * 3600),
            ("today 02:30", TODAY),
            ("yesterday 02:30", TODAY - DAY),
            ("tomorrow  02:30", TODAY + DAY),
            (str(TODAY), TODAY),
            ("-2h", NOW - 7200),
            ("now-2h", NOW - 7200),
            ("now - 1.5h", NOW - 5400),
            ("+2h", NOW + 7200),
            ("yesterday", TODAY - DAY - 2.5 * 3600),
            ("2026-11-22", TODAY - 2.5 * 3600),
            ("2026-11-22 2:30", TODAY),
            ("2026-11-21 22:30:00 -03", TODAY),
            ("2026-11-22T02:30:00+01:00 (Europe/Berlin)", TODAY),
            ("2026-11-22T01:30:00.123Z", TODAY),
            (TODAY, TODAY),
        ],
    )
    def test_every_form_of_a_time_is_parsed(self, text, instant):
        assert berlin(text).instants == (instant,)
        assert berlin(text).before == ("-" in str(text) and "h" in str(text))

    @pytest.mark.parametrize(
        "text",
        ["", "noon", "20261122", "2026-11-32", "25:00", "02:60", "-2x", "--2h", "9" * 5000, -1],
    )
    def test_what_is_no_time_is_refused(self, text):
        with pytest.raises(InvalidError, match=r"^time: "):
            berlin(text)

    @pytest.mark.parametrize("text", ["2026-12-01 08:00:00 EST", "2026-12-01 08:00 CEST"])
    def test_the_time_of_another_zone_is_refused_by_its_name(self, text):
        name = text.split()[-1]
        with pytest.raises(InvalidError, match=f"Europe/Berlin; write an offset .* {name}$"):
            berlin(text)

    def test_a_time_of_day_that_today_does_not_have_yet(self):
        change = TestClockChanges.SPRING
        assert berlin("02:30", change - 60).instants == (change - 23.5 * 3600,)
        assert berlin("02:30", change + 60).instants == ()

    def test_ago_means_the_last_occurrence_until_then(self):
        assert ask("-2h", schedule(), ran(TODAY)).time == TODAY


@given(
    st.sampled_from(["*/7 * * * *", "30 2 * * *", "0 0 29 2 *", "@every 90", "0 0 1 1 *"]),
    st.integers(BEGIN - 400 * DAY, BEGIN + 400 * DAY),
)
def test_the_last_time_before_an_instant(line, instant):
    trigger = triggers.parse(line, BERLIN)
    last = last_before(trigger, instant)
    assert last is not None
    assert last < instant
    following = trigger.next_after(last)
    assert following is None or following >= instant


class TestPauses:
    def paused(self, until=None, **columns):
        given = {
            "status": "paused",
            "next_time": TODAY,
            "next_run_time": until,
            "reason": "paused, for people",
            "paused_at": TODAY - 1800,
            "paused_until": until,
            "pause_note": "ann@web1: deploy",
        }
        return schedule(**{**given, **columns})

    def test_now(self):
        answer = ask("02:30", self.paused())
        assert (answer.code, answer.state) == (Code.PAUSED, State.DID_NOT_RUN)
        assert answer.sentence == (
            "The occurrence of 2026-11-22 02:30 CET did not run because ann@web1 paused the"
            " schedule at 02:00 CET: deploy."
        )
        assert answer.details["since"] == TODAY - 1800
        assert ask("tomorrow 02:30", self.paused()).code == Code.PAUSED

    def test_until_a_time(self):
        row = self.paused(TODAY + 55_800)
        before, after = ask("02:30", row), ask("tomorrow 02:30", row)
        assert before.code == Code.PAUSED
        assert " at 02:00 CET until 18:00 CET: deploy" in before.sentence
        assert (after.code, after.state) == (Code.WILL_RUN, State.WILL_RUN)
        assert after.sentence.endswith(
            "; it is paused until 2026-11-22 18:00 CET by ann@web1: deploy."
        )
        assert ask(None, row).details["next"] == TODAY + DAY

    def test_its_end_and_what_it_will_skip_are_told(self):
        row = self.paused(TODAY + 55_800, next_time=TODAY + 3600, cron="30 * * * *")
        answer = ask(None, row, ran(TODAY))
        assert answer.sentence == (
            "The occurrence of 2026-11-22 10:30 CET did not run because ann@web1 paused the"
            " schedule at 02:00 CET until 18:00 CET: deploy;"
            " 15 occurrences from 2026-11-22 03:30 CET to 17:30 CET will be skipped; the next is"
            " 2026-11-22 18:30 CET."
        )
        assert answer.details["will_skip"] == 15
        endless = ask(None, self.paused(next_time=TODAY - DAY))
        assert endless.sentence.endswith(
            "; 2 occurrences from 2026-11-21 02:30 CET to 2026-11-22 02:30 CET will be skipped."
        )

    def test_what_somebody_has_skipped_is_told(self):
        row = schedule(next_time=TODAY + 2 * DAY, next_run_time=TODAY + 2 * DAY)
        skipped = ran(
            TODAY + DAY, outcome=None, fate="skipped", started=None, attempt=0,
            reason="skipped by ann@web1: holidays",
        )  # fmt: skip
        assert ask(None, row, ran(TODAY), skipped).sentence.endswith(
            "; the occurrence of 2026-11-23 02:30 CET will not run (skipped by ann@web1: holidays);"
            " the next is 2026-11-24 02:30 CET."
        )
        new = changed(row, created_at=TODAY + 3600)
        assert ask(None, new, skipped).sentence == (
            "The occurrence of 2026-11-23 02:30 CET was skipped by ann@web1 at 02:30:04 CET:"
            " holidays; the next is 2026-11-24 02:30 CET."
        )

    @pytest.mark.parametrize("columns", [{}, {"cron": None}])
    def test_a_task_that_was_running_goes_on(self, columns):
        row = self.paused(
            owner="n1.1", attempt=1, claimed_at=TODAY, next_run_time=NOW + 60, **columns
        )
        workers = [alive(TODAY - DAY)]
        answer = ask("02:30", row, workers=workers)
        assert (answer.code, answer.state) == (Code.RUNNING, State.RAN)
        assert answer.sentence.endswith(
            " 2026-11-22 02:30 CET has been running on web1 since 02:30 CET; the pause applies when"
            " this run has ended: ann@web1 paused the schedule at 02:00 CET: deploy."
        )
        assert ask(None, row, workers=workers) == answer
        if not columns:
            assert ask("tomorrow 02:30", row, workers=workers).code == Code.PAUSED
        by_sql = ask(None, changed(row, reason=None, paused_at=None), workers=workers)
        assert by_sql.sentence.endswith("; the pause applies when this run has ended.")
        requeued = ran(TODAY, outcome="failed", fate="gave_up")
        assert ask("02:30", row, requeued, workers=workers).code == Code.RUNNING

    def test_a_task_whose_lease_has_ended_does_not_go_on(self):
        row = self.paused(owner="n1.1", attempt=1, claimed_at=TODAY, next_run_time=NOW - 60)
        answer = ask("02:30", row)
        assert (answer.code, answer.state) == (Code.PAUSED, State.DID_NOT_RUN)

    def test_a_task_that_runs_once_runs_after_it(self):
        row = self.paused(TODAY + 55_800, cron=None)
        answer = ask("02:30", row)
        assert (answer.code, answer.details["run_at"]) == (Code.WILL_RUN, TODAY + 55_800)

    def test_nobody_was_there_to_resume_it(self):
        row = self.paused(TODAY + 1800, cron="@hourly")
        answer = ask("04:00", row, workers=[alive(TODAY - DAY, TODAY - 300)])
        assert (answer.code, answer.state) == (Code.NO_WORKER, State.DID_NOT_RUN)
        assert ask("02:30", self.paused(TODAY + 1800)).code == Code.PAUSED

    def test_what_was_skipped(self):
        reason = "paused by ann@web1: deploy (since 2026-11-22T02:00+01:00)"
        record = ran(TODAY, outcome=None, fate="skipped_paused", started=None, attempt=0)
        answer = ask("02:30", schedule(), changed(record, reason=reason))
        assert answer.sentence == (
            f"The occurrence of 2026-11-22 02:30 CET was skipped because the schedule was {reason}."
        )

    def test_after_failures(self):
        row = schedule(
            status="paused",
            next_run_time=None,
            reason="paused after 5 failures in a row: exit status 1",
            reason_code="paused_after_failures",
        )
        failed = ran(TODAY, outcome="failed", fate="gave_up", reason=row.reason)
        answer = ask(None, row, failed)
        assert answer.code == Code.GAVE_UP
        assert answer.sentence.endswith(
            "; the schedule is paused now: it was paused after 5 failures in a row: exit status 1."
        )
        answer = ask("tomorrow 02:30", row, failed)
        assert answer.code == Code.PAUSED
        assert "the schedule was paused after 5 failures in a row" in answer.sentence

    def test_after_a_run(self):
        row = self.paused(next_time=TODAY + DAY, paused_at=TODAY + 1800)
        answer = ask(None, row, ran(TODAY))
        assert answer.code == Code.RAN
        assert answer.sentence.endswith(
            "; the schedule is paused now: ann@web1 paused it at 03:00 CET: deploy."
        )
        by_sql = ask(None, changed(row, reason=None, paused_at=None), ran(TODAY))
        assert by_sql.sentence.endswith("; the schedule is paused now: by plain SQL.")

    def test_without_a_record_the_audit_trail_tells(self):
        resumed = change(
            "resume",
            TODAY + 3600,
            {"status": "paused", "next_time": TODAY},
            {"status": "waiting", "next_time": TODAY + DAY},
        )
        answer = ask("02:30", schedule(), audits=[resumed])
        assert (answer.code, answer.state) == (Code.SKIPPED_PAUSED, State.DID_NOT_RUN)
        assert "by ann on desk" in answer.sentence


class TestHeldForAnExtraRun:
    """An extra run of the schedule is going on."""

    def held(self, **columns):
        return schedule(held_by="w.1", held_until=NOW + 60, **columns)

    def test_what_is_not_due_runs_at_its_time(self):
        answer = ask(None, self.held(), ran(TODAY))
        assert answer == ask(None, schedule(), ran(TODAY))

    def test_what_is_due_waits(self):
        answer = ask(None, self.held(cron="* * * * *", next_time=NOW, next_run_time=NOW))
        assert (answer.code, answer.state) == (Code.WAITING, State.WILL_RUN)
        assert answer.sentence == (
            "The occurrence of 2026-11-22 11:00 CET has been due since 11:00 CET and waits for the"
            " end of an extra run of the schedule; the next is 2026-11-22 11:01 CET."
        )

    def test_a_hold_that_has_ended_holds_nobody_up(self):
        row = changed(self.held(cron="* * * * *", next_time=NOW, next_run_time=NOW), held_until=NOW)
        assert "extra run" not in ask(None, row).sentence

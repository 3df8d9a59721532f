"""Tests of pauses of types: which occurrences are skipped, and when workers read the rules."""

from dataclasses import replace as changed
from types import SimpleNamespace

import pytest

from psched import config
from psched.base.errors import AlreadyExistsError, InvalidError, StoreUnavailableError
from psched.client.verifier import Verifier
from psched.core.catchup import iso
from psched.core.definition import parse_row
from psched.core.history.protocol import RunSelection
from psched.core.history.records import Fate
from psched.core.model import Row
from psched.core.operations.pauses import (
    PastPause,
    PauseReader,
    PauseRule,
    as_paused,
    may_be_skipped,
    past_pauses,
    skipped_by_pause,
)
from psched.core.policy import Run, after_claim
from psched.core.remote_policy import PolicyRequest
from psched.triggers.zone import find_zone
from support.driven import START, driven_host

SETTINGS = config.from_mapping({"url": "sqlite:///unused.db"})
NOON = 1_800_014_400
MINUTE, HOUR, DAY = 60, 3600, 86_400
UTC = find_zone("UTC")


def rule(type_="mail", since=NOON, until=None, id_="a", **fields):
    return PauseRule(id=id_, type=type_, since=since, until=until, by="ann@web1", **fields)


def leased(cron="* * * * *", next_time=NOON, **columns):
    columns = {"owner": "w.1", "fence": 7, "attempt": 1, "type": "mail", **columns}
    return Row(key="k", cron=cron, next_time=next_time, next_run_time=next_time, **columns)


def pause(since, until):
    return PastPause(since, until, "ann")


class TestRules:
    def test_a_rule_holds_before_its_end_and_about_its_type(self):
        assert rule().holds(NOON + DAY)
        assert rule(until=NOON + 5).holds(NOON + 4.9)
        assert not rule(until=NOON + 5).holds(NOON + 5)
        assert rule().covers("mail")
        assert not rule().covers("Mail")
        assert rule(None).covers("Mail")

    def test_a_rule_survives_json_and_what_is_none_is_refused(self):
        full = rule(until=NOON + 5, note="x")
        assert PauseRule.from_json(full.to_json()) == full
        assert PauseRule.from_json(rule(None).to_json() | {"new": 1}) == rule(None)
        stored = full.to_json()
        for field, value in [("id", 5), ("type", 5), ("since", "x"), ("until", True), ("by", None)]:
            assert PauseRule.from_json(stored | {field: value}) is None
        assert PauseRule.from_json([]) is None

    def test_pauses_that_are_over_are_joined_if_they_overlap(self):
        rules = [
            rule(since=NOON, until=NOON + 10),
            rule(None, since=NOON + 5, until=NOON + 20),
            rule(since=NOON + 6, until=NOON + 7),
            rule(since=NOON + 30, until=NOON + 40, note="deploy"),
            rule("web", since=NOON, until=NOON + 90),
            rule(since=NOON + 50, until=NOON + 50),
            rule(since=NOON + 60, until=NOON + 101),
            rule(since=NOON + 60),
        ]
        found = past_pauses(rules, "mail", NOON + 100.9)
        assert [each[:2] for each in found] == [(NOON, NOON + 20), (NOON + 30, NOON + 40)]
        assert found[1].reason.startswith("paused by ann@web1 (type mail): deploy (since ")

    def test_a_waiting_row_is_shown_as_paused_until_the_last_rule_ends(self):
        row = changed(leased(), owner=None)
        shown = as_paused(row, [rule(until=NOON + 5), rule(None, until=NOON + 9)], UTC, NOON)
        assert (shown.status, shown.next_run_time) == ("paused", NOON + 9)
        assert "by ann@web1 (everything)" in shown.reason
        assert as_paused(row, [rule(until=NOON + 5), rule()], UTC, NOON).next_run_time is None
        for other, rules in [
            (leased(), [rule()]),
            (changed(row, status="failed"), [rule()]),
            (row, [rule("web"), rule(until=NOON)]),
        ]:
            assert as_paused(other, rules, UTC, NOON) is other


class TestSkipping:
    def found(self, row, *pauses, settings=SETTINGS):
        definition = parse_row(row, settings)
        return skipped_by_pause(definition, definition.trigger, row.next_time, pauses)

    @pytest.mark.parametrize(
        ("since", "until", "kept", "last", "count"),
        [
            (NOON, NOON + 1, NOON + MINUTE, NOON, 1),
            (NOON, NOON + MINUTE, NOON + MINUTE, NOON, 1),
            (NOON, NOON + MINUTE + 1, NOON + 2 * MINUTE, NOON + MINUTE, 2),
            (NOON - 9, NOON + DAY, NOON + DAY, NOON + DAY - MINUTE, None),
        ],
    )
    def test_what_fell_due_during_a_pause_is_skipped(self, since, until, kept, last, count):
        onward, span = self.found(leased(), pause(since, until))
        assert onward == kept
        assert (span.fate, span.first, span.until) == (Fate.SKIPPED_PAUSED, NOON, last)
        assert (span.count, span.reason) == (count, "ann")

    def test_what_fell_due_before_or_after_a_pause_is_not_skipped(self):
        assert self.found(leased(), pause(NOON + 1, NOON + DAY)) is None
        assert self.found(leased(), pause(NOON - DAY, NOON)) is None
        assert self.found(leased()) is None

    def test_a_delay_belongs_to_the_time_when_it_falls_due(self):
        row = leased(delay=30)
        assert self.found(row, pause(NOON - 60, NOON + 30)) is None
        onward, span = self.found(row, pause(NOON + 30, NOON + 31 + MINUTE))
        assert (onward, span.until) == (NOON + 2 * MINUTE, NOON + MINUTE)

    def test_an_occurrence_that_jitter_delays_until_after_the_pause_runs(self):
        row = leased(options='{"jitter": 600}')
        definition = parse_row(row, SETTINGS)
        until = definition.first_run(NOON) + 1
        onward, span = self.found(row, pause(definition.first_run(NOON), until))
        assert definition.first_run(onward) >= until
        between = range(NOON + MINUTE, onward, MINUTE)
        assert all(definition.first_run(each) < until for each in between)
        assert span.until == onward - MINUTE

    def test_a_schedule_without_a_further_time_ends(self):
        row = leased("0 12 15 1 *")
        definition = parse_row(row, SETTINGS)

        class Once:
            def next_after(self, instant):
                return NOON if instant < NOON else None

        onward, span = skipped_by_pause(definition, Once(), NOON, [pause(NOON, NOON + 9)])
        assert (onward, span.first, span.count) == (None, NOON, 1)

    def test_the_policy_skips_in_one_settlement(self):
        end = after_claim(leased(), SETTINGS, NOON + 999, [pause(NOON, NOON + 10 * MINUTE)])
        assert (end.next_time, end.not_before) == (NOON + 10 * MINUTE,) * 2
        assert (end.attempt, end.status, end.fate) == (0, "waiting", None)
        assert [span.fate for span in end.skipped] == [Fate.SKIPPED_PAUSED]

    def test_what_was_tried_or_runs_once_is_not_skipped(self):
        pauses = [pause(NOON - DAY, NOON + HOUR)]
        now = NOON + 2 * HOUR
        assert isinstance(after_claim(leased(attempt=2), SETTINGS, now, pauses), Run)
        assert isinstance(after_claim(leased(None), SETTINGS, now, pauses), Run)
        for row in (leased(attempt=2), leased(None), leased(next_time=now), leased(delay=9999)):
            assert not may_be_skipped(row, now)
        assert may_be_skipped(leased(), now)

    def test_a_pause_is_sent_to_the_process_that_calls_a_users_trigger(self):
        request = PolicyRequest(leased("@call a:B"), NOON, pauses=(pause(1, 2),))
        assert request.message()["pauses"] == [[1, 2, "ann"]]


class Rules:
    """A store of rules that counts how often they are read."""

    def __init__(self, *rules):
        self.rules, self.reads = list(rules), 0
        self.pauses = self

    def pause_rules(self):
        self.reads += 1
        return self.rules

    def change_pause_rules(self, *, drop, store):
        raise NotImplementedError


class TestReading:
    def test_rules_are_read_only_if_a_schedule_is_late(self):
        reader = PauseReader(Rules())
        assert not reader.is_outdated([], NOON + 60)
        assert not reader.is_outdated([leased(None), leased(next_time=NOON + 59)], NOON + 60)
        assert reader.is_outdated([leased()], NOON + 60)

    def test_what_was_read_is_valid_for_a_second(self):
        store = Rules(rule(until=NOON + 5))
        reader = PauseReader(store)
        reader.read(NOON + 60)
        assert not reader.is_outdated([leased()], NOON + 61)
        assert reader.is_outdated([leased()], NOON + 61.1)
        assert reader.pauses(leased(), NOON + 61)[0][:2] == (NOON, NOON + 5)

    def test_a_rule_that_seems_to_hold_is_read_again(self):
        store = Rules(rule())
        reader = PauseReader(store)
        reader.read(NOON + 60)
        assert reader.is_outdated([leased()], NOON + 60.5)
        assert not reader.is_outdated([leased(type="web")], NOON + 60.5)

    def test_a_store_without_rules_has_none(self):
        reader = PauseReader(SimpleNamespace(pauses=None))
        assert not reader.is_outdated([leased()], NOON + 60)
        reader.read(NOON + 60)
        assert reader.pauses(leased(), NOON + 60) == ()


# --- a worker ----------------------------------------------------------------------


@pytest.fixture
def host(tmp_path):
    with driven_host(tmp_path) as host:
        yield host


MINUTELY = {"cron": "* * * * *"}
FIRST = START + (-START % MINUTE)


def spans(host, key):
    found = host.store().history.runs(RunSelection(key=key))
    return [(each.scheduled_time, each.last, each.fate) for each in found if each.outcome is None]


@pytest.mark.slow
def test_a_paused_type_waits_and_what_fell_due_is_skipped_when_it_is_resumed(host):
    host.schedules.add("one", "test", next_time=FIRST, **MINUTELY)
    host.add("once")
    host.schedules.pause_type("test")
    worker = host.worker()
    worker.advance(10 * MINUTE)
    assert worker.tasks == {}
    host.add("later")
    worker.advance(MINUTE)
    assert worker.tasks == {}

    host.schedules.resume_type("test")
    now = host.clock.wall()
    worker.advance(1.1)
    assert worker.run_due() == [f"later.{START}", f"once.{START}"]
    worker.advance(1.1)
    kept = int(now) + (-int(now) % MINUTE)
    assert host.row("one").next_time == kept
    assert spans(host, "one") == [(FIRST, kept - MINUTE, Fate.SKIPPED_PAUSED)]


def test_at_its_end_a_pause_is_over_without_a_command(host):
    host.schedules.add("one", "test", next_time=FIRST, **MINUTELY)
    until = FIRST + 5 * MINUTE
    host.schedules.pause_all(until)
    worker = host.worker()
    worker.advance(until - START - 1)
    assert worker.tasks == {}
    worker.advance(3)
    assert [*worker.tasks] == ["one"]
    assert worker.tasks["one"].assignment["scheduled_time"] == until
    assert spans(host, "one") == [(FIRST, until - MINUTE, Fate.SKIPPED_PAUSED)]


def test_with_backfill_nothing_is_skipped(host):
    host.schedules.add("one", "test", next_time=FIRST, **MINUTELY)
    host.schedules.pause_type("test")
    worker = host.worker()
    worker.advance(3 * MINUTE)
    host.schedules.resume_type("test", backfill=True)
    worker.advance(1.1)
    ran = worker.run_due()
    assert ran[0] == f"one.{FIRST}"
    assert len(ran) >= 3
    assert spans(host, "one") == []


def test_an_idle_worker_reads_no_rules(host):
    host.schedules.add("one", "test", next_time=FIRST, **MINUTELY)
    host.schedules.pause_type("test")
    remote = host.remote()
    worker = host.worker(remote)
    worker.advance(10 * MINUTE)
    assert remote.requests["pause_rules"] == 0
    assert remote.requests["claim"] > 10


def test_punctual_and_one_off_tasks_cost_no_reading(host):
    host.add("once")
    host.schedules.add("one", "test", next_time=FIRST, **MINUTELY)
    remote = host.remote()
    worker = host.worker(remote)
    worker.run_due()
    worker.advance(MINUTE)
    worker.run_due()
    assert host.row("one").fence
    assert remote.requests["pause_rules"] == 0


def test_a_row_is_given_back_if_the_rules_cannot_be_read(host):
    host.schedules.add("one", "test", next_time=FIRST, **MINUTELY)
    host.schedules.pause_type("test")
    remote = host.remote()
    worker = host.worker(remote)
    worker.advance(3 * MINUTE)
    host.schedules.resume_type("test")
    failures, read = iter([True, True]), remote.pause_rules

    def pause_rules():
        if next(failures, False):
            raise StoreUnavailableError("the database is unavailable: test")
        return read()

    remote.pause_rules = pause_rules
    worker.advance(30)
    assert worker.tasks == {}
    assert next(failures, None) is None
    assert [fate for _, _, fate in spans(host, "one")] == [Fate.SKIPPED_PAUSED]
    assert host.row("one").next_time > host.clock.wall() - MINUTE


# --- the collection ----------------------------------------------------------------


def test_the_rules_that_hold_are_listed_and_prolonged(host):
    with host.schedules.audited("deploy"):
        host.schedules.pause_type("web", "+2h")
    host.schedules.pause_all()
    [all_, web] = host.schedules.pauses()
    assert (all_.type, all_.until, all_.note) == (None, None, None)
    assert (web.type, web.since, web.until) == ("web", START, START + 2 * HOUR)
    assert web.note == "deploy"
    author = host.schedules.access.auditor.author
    assert web.by == f"{author.user}@{author.host}"

    host.clock.advance(HOUR)
    host.schedules.pause_type("web", "+4h")
    [_, web] = host.schedules.pauses()
    assert (web.since, web.until, web.note) == (START, START + 5 * HOUR, None)
    host.schedules.resume_all()
    assert [each.type for each in host.schedules.pauses()] == ["web"]
    host.clock.advance(5 * HOUR)
    assert host.schedules.pauses() == ()


def test_rules_that_ended_long_ago_are_forgotten(host):
    host.schedules.pause_type("old", "+1h")
    host.clock.advance(8 * DAY)
    host.schedules.pause_type("new")
    assert [each.type for each in host.store().pauses.pause_rules()] == ["new"]


def test_wrong_arguments_are_refused(host):
    with pytest.raises(InvalidError, match="type"):
        host.schedules.pause_type("")
    with pytest.raises(InvalidError, match="until"):
        host.schedules.pause_type("web", START - 1)
    with pytest.raises(InvalidError, match="until"):
        host.schedules.pause_all("soon")
    with pytest.raises(AlreadyExistsError, match=r"the type 'web' is not paused \("):
        host.schedules.resume_type("web")
    host.schedules.pause_type("web")
    with pytest.raises(AlreadyExistsError, match="everything is not paused; paused are type web"):
        host.schedules.resume_all()


def test_the_audit_trail_tells_who_has_paused_what(host):
    with host.schedules.audited("deploy"):
        host.schedules.pause_type("web", START + 60)
    host.schedules.resume_type("web", backfill=True)
    host.schedules.pause_all()
    newest = [(each.key, each.action, each.after, each.note) for each in host.schedules.audit()]
    assert newest == [
        ("*", "pause", '{"until":null}', None),
        ("type:web", "resume", '{"backfill":true}', None),
        ("type:web", "pause", f'{{"until":"{iso(START + 60)}"}}', "deploy"),
    ]


def test_a_program_that_polls_obeys_the_rules(host):
    host.schedules.add("one", "test", next_time=FIRST, **MINUTELY)
    host.schedules.pause_type("test")
    host.clock.advance(10 * MINUTE)
    assert host.schedules.poll() is None
    host.schedules.resume_type("test")
    task = host.schedules.poll()
    assert task is None or task.scheduled_time >= host.clock.wall() - MINUTE
    assert [fate for _, _, fate in spans(host, "one")] == [Fate.SKIPPED_PAUSED]


def test_why_and_next_say_that_a_type_is_paused(host):
    host.schedules.add("one", "test", next_time=FIRST, **MINUTELY)
    with host.schedules.audited("deploy"):
        host.schedules.pause_type("test", "+2h")
    host.clock.advance(HOUR)
    answer = host.schedules.why("one", FIRST + MINUTE)
    assert answer.code == "paused"
    assert "(type test)" in answer.sentence
    assert answer.sentence.endswith(": deploy.")
    following = host.schedules.next("one", 1)[0].time
    assert START + 2 * HOUR <= following < START + 2 * HOUR + MINUTE


@pytest.mark.parametrize(("catchup", "code"), [("all", "skipped_paused"), ("latest", "coalesced")])
def test_two_pauses_without_a_worker(host, catchup, code):
    """What fell due between them is late, so catch-up decides about it and what comes after it."""
    host.schedules.add("one", "test", next_time=FIRST, catchup=catchup, **MINUTELY)
    for _ in range(2):
        host.schedules.pause_type("test")
        host.clock.advance(10 * MINUTE)
        host.schedules.resume_type("test")
        host.clock.advance(3 * MINUTE)
    worker, ran = host.worker(host.store()), []
    for _ in range(30):
        worker.advance(1.1)
        # One at a time, because runs of no length at the same instant seem to overlap.
        for runner in worker.tasks.values():
            ran.append(runner.occurrence)
            runner.finish()
    between = [f"one.{FIRST + number * MINUTE}" for number in (10, 11, 12)]
    after = [f"one.{FIRST + number * MINUTE}" for number in (23, 24, 25)]
    assert ran == ([*between, *after] if catchup == "all" else after[-1:])
    answers = [host.schedules.why("one", FIRST + number * MINUTE) for number in (3, 15)]
    assert [each.code for each in answers] == ["skipped_paused", code]
    found = Verifier(host.store(), SETTINGS).verify(since=HOUR)
    assert found.violations == []
    assert found.instants >= 25

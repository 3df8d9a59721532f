"""The checker finds each kind of violation that is planted, and accepts what a fault explains."""

from dataclasses import replace as changed

import pytest

from psched.core.history.records import AuditRecord, Fate, Outcome, RunRecord
from psched.core.model import PAUSED, Row
from psched.reports.findings import Kind
from psched.testing.witnesses import (
    PEOPLE,
    Fault,
    Seen,
    Witness,
    check_rows,
    check_witnesses,
)

AT = 1_900_000_000
LEASE = 30.0


def witness(number=1, *, started=AT + 1.0, seconds=5.0, **fields):
    """A run that was seen, and that did all its work."""
    given = {
        "key": "k",
        "scheduled_time": AT,
        "attempt": number,
        "owner": f"w.{number}",
        "fence": number,
        "host": "h1",
        "started": started,
        "store_time": started,
        "ended": started + seconds,
        "completed": True,
        **fields,
    }
    return Witness(**given)


def record_of(seen, **fields):
    """The record of a run that was seen."""
    return changed(
        seen.as_record(AT + 1000), fate=Fate.FINISHED if seen.completed else None, **fields
    )


def kinds(*witnesses, records=None, audits=(), faults=(), stopped=None):
    """The kinds of what is found."""
    seen = Seen(
        witnesses=witnesses,
        records=[*map(record_of, witnesses)] if records is None else records,
        audits=audits,
        faults=faults,
        lease=LEASE,
        now=AT + 1000,
        stopped=stopped,
    )
    return [each.kind for each in check_witnesses(seen)]


def fault(at, seconds=1.0, host=None, **fields):
    return Fault(at=at, until=at + seconds, host=host, what="a fault", **fields)


def test_runs_one_after_another_are_right():
    later = witness(2, started=AT + 61.0, scheduled_time=AT + 60)
    assert kinds(witness(), later) == []


class TestOverlaps:
    later = witness(2, started=AT + 5.0, scheduled_time=AT + 4)

    def test_two_runs_at_once(self):
        assert kinds(witness(), self.later) == [Kind.OVERLAP]

    def test_a_run_that_has_not_ended(self):
        assert kinds(witness(ended=None, completed=False), self.later) == [Kind.OVERLAP]

    def test_an_extra_run_beside_a_regular_one(self):
        extra = witness(1, started=AT + 5.0, key="k!0123456789abcdef", owner="x.1")
        assert kinds(witness(), extra) == [Kind.OVERLAP]

    def test_a_kill_explains_no_overlap(self):
        assert kinds(witness(), self.later, faults=[fault(AT + 2, host="h1")]) == [Kind.OVERLAP]

    def test_a_store_that_has_forgotten_its_commits_explains_it(self):
        assert kinds(witness(), self.later, faults=[fault(AT + 2, breaks_leases=True)]) == []


def test_a_fence_that_does_not_grow():
    later = witness(2, fence=1, started=AT + 61.0, scheduled_time=AT + 60)
    assert kinds(witness(), later) == [Kind.FENCE]


def test_a_start_before_its_time():
    assert kinds(witness(started=AT - 1.0)) == [Kind.EARLY]


def test_a_start_at_its_time_by_the_store_is_not_early():
    assert kinds(witness(started=AT - 1.0, store_time=AT)) == []


class TestRepetitions:
    again = witness(2, started=AT + 61.0)

    def test_an_occurrence_that_ran_twice(self):
        assert kinds(witness(), self.again) == [Kind.REPEATED]

    def test_another_attempt_after_a_failure_is_right(self):
        assert kinds(witness(completed=False), self.again) == []

    @pytest.mark.parametrize("host", ["h1", None])
    def test_a_fault_of_its_host_or_of_the_store_explains_it(self, host):
        assert kinds(witness(), self.again, faults=[fault(AT + 7, host=host)]) == []

    def test_a_fault_of_another_host_explains_nothing(self):
        assert kinds(witness(), self.again, faults=[fault(AT + 7, host="h2")]) == [Kind.REPEATED]

    def test_a_person_explains_it(self):
        requeue = AuditRecord(
            key="k", action="requeue", time=(AT + 30) * 1000, user="", host="", program=""
        )
        assert kinds(witness(), self.again, audits=[requeue]) == []


class TestRecords:
    def test_a_success_that_nobody_has_seen(self):
        seen = witness(completed=False)
        record = record_of(seen, outcome=Outcome.FINISHED)
        assert kinds(seen, records=[record]) == [Kind.UNSEEN]
        assert kinds(records=[record]) == [Kind.UNSEEN]

    def test_a_run_without_a_record(self):
        assert kinds(witness(), records=[]) == [Kind.UNSEEN]

    def test_the_death_of_its_host_explains_that_it_has_none(self):
        assert kinds(witness(), records=[], faults=[fault(AT + 6, host="h1")]) == []


class TestPauses:
    def pause(self, until="null"):
        return AuditRecord(
            key="k",
            action="pause",
            time=(AT + 10) * 1000,
            after=f'{{"paused_until": {until}}}',
            before="{}",
            user="",
            host="",
            program="",
        )

    def test_a_start_during_a_pause(self):
        assert kinds(witness(started=AT + 100.0), audits=[self.pause()]) == [Kind.PAUSED]

    def test_what_was_claimed_before_the_pause_may_start(self):
        assert kinds(witness(started=AT + 20.0), audits=[self.pause()]) == []

    def test_a_start_after_the_end_of_the_pause(self):
        for until, found in ((AT + 100, []), (AT + 101, [Kind.PAUSED])):
            assert kinds(witness(started=AT + 100.0), audits=[self.pause(until)]) == found

    def test_a_start_after_it_was_resumed(self):
        resume = changed(self.pause(), action="resume", time=(AT + 50) * 1000)
        assert kinds(witness(started=AT + 100.0), audits=[self.pause(), resume]) == []

    def test_a_resumption_is_recorded_a_little_after_it_was_made(self):
        for later, found in ((1, []), (40, [Kind.PAUSED])):
            resume = changed(self.pause(), action="resume", time=(AT + 100 + later) * 1000)
            audits = [self.pause(), resume]
            assert kinds(witness(started=AT + 100.0), audits=audits) == found

    def test_a_pause_and_a_resumption_of_one_moment_are_recorded_in_any_order(self):
        for before, found in ((0.5, []), (2, [Kind.PAUSED])):
            resume = changed(self.pause(), action="resume", time=int((AT + 10 - before) * 1000))
            audits = [resume, self.pause()]
            assert kinds(witness(started=AT + 100.0), audits=audits) == found

    def test_the_record_of_a_later_change_may_be_lost(self):
        lost = fault(AT + 50, host=PEOPLE)
        assert kinds(witness(started=AT + 100.0), audits=[self.pause()], faults=[lost]) == []

    def test_a_start_of_what_was_skipped(self):
        skip = RunRecord(
            key="k",
            type="",
            scheduled_time=AT,
            owner="",
            fence=0,
            ended=(AT + 5) * 1000,
            fate=Fate.SKIPPED,
        )
        late = witness(started=AT + 100.0)
        assert kinds(late, records=[skip, record_of(late)]) == [Kind.PAUSED]


class TestStop:
    def test_a_start_after_the_stop(self):
        assert kinds(witness(), stopped=AT + 0.5) == [Kind.STOPPED]

    def test_a_process_that_is_left_behind(self):
        assert kinds(witness(ended=None, completed=False), stopped=AT + 50.0) == [Kind.STOPPED]

    def test_what_ended_before_the_stop_is_right(self):
        assert kinds(witness(), stopped=AT + 50.0) == []


class TestRows:
    def found(self, **fields):
        row = Row("k", cron="* * * * *", next_time=AT, next_run_time=AT, **fields)
        return [each.kind for each in check_rows([row], AT + 500.0, 200.0)]

    def test_a_row_that_nobody_runs(self):
        assert self.found() == [Kind.STUCK]

    def test_a_lease_that_nobody_ends(self):
        assert self.found(owner="w.1") == [Kind.STUCK]

    def test_a_paused_row_waits(self):
        assert self.found(status=PAUSED) == []

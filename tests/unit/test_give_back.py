"""Tests of what becomes of a schedule whose lease was held for an extra run."""

from dataclasses import replace

import pytest

from psched.config import from_mapping
from psched.core.attempts import borrowed, given_back, returned
from psched.core.declare import declare, redeclare
from psched.core.history.records import Fate
from psched.core.model import Row
from psched.core.operations.extra.borrowing import while_free
from psched.core.operations.extra.give_back import give_back
from psched.core.operations.extra.overlap import beside_another_run, without_lease
from psched.core.operations.extra.turns import LONGEST, ROUND, Turns
from psched.core.policy import after_claim

NOW = 1_700_000_000  # 22:13:20 UTC
NEXT = 1_700_071_200  # 18:00 UTC
SETTINGS = from_mapping({"url": "sqlite:///unused.db"})


def free_row(**fields):
    """A free row, as it is before somebody leases it for an extra run."""
    row = declare("k", {"cron": "0 18 * * *", "timezone": "UTC"}, SETTINGS, lambda: NOW)
    assert row.next_time == row.next_run_time == NEXT
    return replace(row, created_at=NOW, fence=4, **fields)


def leased(row, **fields):
    """The row while it is leased, as it is stored."""
    lease = {"owner": "w.2", "fence": 5, "next_run_time": NOW + 300}
    if row.next_time is not None and row.attempt >= 0:
        lease["attempt"] = borrowed(row.next_run_time, row.attempt)
    return replace(row, **{**lease, **fields})


def answered(row):
    """The row as the store returns it to the one who has leased it."""
    return replace(row, owner="w.2", fence=5)


def claimed(row):
    """The row when its worker has died and another one has claimed it as due."""
    return replace(row, owner="x.1", fence=6, attempt=row.attempt + 1)


def times(end):
    return end.next_time, None if end.rest else end.not_before, end.attempt, end.status


STATES = {
    "waits": {},
    "is due": {"next_run_time": NOW - 10},
    "has failed": {"next_run_time": NOW + 30, "attempt": 3, "reason": "ValueError: no"},
    "is paused": {"status": "paused", "next_run_time": None, "reason": "by ann"},
    "is paused until": {"status": "paused", "next_run_time": NOW + 999, "reason": "by ann"},
    "is quarantined": {"status": "quarantined", "next_run_time": None, "reason": "cron: no"},
    "never runs": {"next_run_time": None},
}


class TestUnchanged:
    @pytest.mark.parametrize("state", STATES)
    @pytest.mark.parametrize("way", ["given back", "found by held", "its worker died"])
    def test_it_returns_to_what_it_was(self, state, way):
        row = free_row(**STATES[state])
        held = leased(row)
        if way == "its worker died":
            end = after_claim(claimed(held), SETTINGS, NOW + 301)
        else:
            before = answered(row) if way == "given back" else replace(held, next_run_time=None)
            end = give_back(before, before, SETTINGS, 0)
            assert end.token == before.token

        assert times(end) == (row.next_time, row.next_run_time, row.attempt, row.status)
        assert end.reason == row.reason
        assert (end.fate, end.skipped, end.wait, end.remove) == (None, (), 0, False)
        assert end.version == row.version

    def test_many_claims_after_the_death_change_nothing(self):
        row = leased(free_row())
        for _ in range(500):
            row = claimed(row)
        assert times(after_claim(row, SETTINGS, NOW)) == (NEXT, NEXT, 0, "waiting")

    @pytest.mark.parametrize("way", ["given back", "found by held"])
    def test_a_row_without_a_time_is_claimed_again_at_once(self, way):
        row = free_row(next_time=None, next_run_time=NOW, attempt=-(7 * 1000 + 999))
        held = answered(row)
        if way == "found by held":
            held = replace(held, next_run_time=None)
        end = give_back(held, held, SETTINGS, 0)

        assert times(end)[:1] + times(end)[2:] == (None, row.attempt, "waiting")
        assert not end.rest

    def test_a_time_that_a_client_has_set_before_is_still_settled_as_such(self):
        row = free_row(attempt=-1, next_run_time=NOW)
        end = give_back(answered(row), answered(row), SETTINGS, 0)
        assert times(end) == (NEXT, NOW, -1, "waiting")


class TestMarks:
    @pytest.mark.parametrize(
        ("status", "becomes"),
        [("cancelling", "cancelled"), ("finishing", "finished"), ("expired", "expired")],
    )
    @pytest.mark.parametrize("died", [False, True])
    def test_a_mark_ends_it_without_a_fate(self, status, becomes, died):
        row = free_row()
        held = leased(row, status=status, version=2)
        if died:
            end = after_claim(claimed(held), SETTINGS, NOW)
        else:
            end = give_back(answered(row), held, SETTINGS, NOW)
        assert (end.status, end.rest, end.attempt, end.fate) == (becomes, True, 0, None)
        assert end.seen_status == status

    @pytest.mark.parametrize("died", [False, True])
    def test_a_deleted_one_is_removed(self, died):
        row = free_row()
        held = leased(row, status="deleting", version=2)
        if died:
            end = after_claim(claimed(held), SETTINGS, NOW)
        else:
            end = give_back(answered(row), held, SETTINGS, NOW)
        assert (end.remove, end.fate) == (True, None)

    def test_a_status_by_plain_sql_is_seen_although_the_version_is_the_same(self):
        row = free_row()
        end = give_back(answered(row), leased(row, status="cancelled"), SETTINGS, NOW)
        assert (end.status, end.rest) == ("cancelled", True)
        end = give_back(answered(row), leased(row, status="paused"), SETTINGS, NOW)
        assert times(end) == (NEXT, NEXT, 0, "paused")

    def test_an_unknown_status_is_quarantined(self):
        row = free_row()
        end = give_back(answered(row), leased(row, status="odd"), SETTINGS, NOW)
        assert (end.status, end.rest) == ("quarantined", True)


class TestChangedByAClient:
    """A client of this version writes the times into the note."""

    @pytest.mark.parametrize("died", [False, True])
    @pytest.mark.parametrize(
        ("changes", "next_time", "run_at"),
        [
            ({"data": {"n": 1}}, NEXT, NEXT),
            ({"cron": "30 * * * *"}, 1_700_001_000, 1_700_001_000),
            ({"delay": 60}, NEXT, NEXT + 60),
            ({"next_time": NOW + 86_400 * 3}, NEXT + 3 * 86_400, NEXT + 3 * 86_400),
            ({"next_run_time": NEXT + 5}, NEXT, NEXT + 5),
            ({"cron": "30 * * * *", "delay": 60}, 1_700_001_000, 1_700_001_060),
        ],
    )
    def test_it_is_as_if_the_row_had_been_free(self, changes, next_time, run_at, died):
        row = free_row()
        new = redeclare(leased(row), changes, SETTINGS, lambda: NOW)
        assert (new.owner, new.next_run_time) == ("w.2", NOW + 300)
        held = replace(new, version=2)
        if died:
            end = after_claim(claimed(held), SETTINGS, NOW)
        else:
            end = give_back(answered(row), held, SETTINGS, NOW + 100)
        assert times(end) == (next_time, run_at, 0, "waiting")

    def test_a_time_of_the_new_trigger_that_has_passed_is_not_lost(self):
        row = free_row()
        held = redeclare(leased(row), {"cron": "0 18 * * 1-7"}, SETTINGS, lambda: NOW)
        assert held.next_time == NEXT
        end = give_back(answered(row), replace(held, version=2), SETTINGS, NEXT + 500)
        assert times(end) == (NEXT, NEXT, 0, "waiting")

    def test_its_wait_for_the_next_attempt_stays_if_only_the_data_change(self):
        row = free_row(attempt=2, next_run_time=NOW + 50)
        held = redeclare(leased(row), {"data": {"n": 1}}, SETTINGS, lambda: NOW)
        end = give_back(answered(row), replace(held, version=2), SETTINGS, NOW)
        assert times(end) == (NEXT, NOW + 50, 2, "waiting")

    def test_a_paused_schedule_that_gets_a_time_waits_for_it(self):
        row = free_row(status="paused", next_run_time=None)
        held = redeclare(leased(row), {"next_time": NEXT + 1}, SETTINGS, lambda: NOW)
        end = give_back(answered(row), replace(held, version=2), SETTINGS, NOW)
        assert times(end) == (NEXT + 86_400, NEXT + 86_400, 0, "waiting")

    def test_the_last_trigger_without_a_further_time_loses_nothing(self):
        row = free_row()
        held = leased(row, cron="2000-01-01T00:00:00Z", version=2)
        end = give_back(answered(row), held, SETTINGS, NOW)
        assert times(end) == (NEXT, NEXT, 0, "waiting")


class TestChangedByAnotherClient:
    """An older client, or one of plain SQL, knows nothing of notes."""

    def test_a_new_trigger_starts_now(self):
        row = free_row()
        held = leased(row, cron="30 * * * *", version=2)
        end = give_back(answered(row), held, SETTINGS, NOW)
        assert times(end) == (1_700_001_000, 1_700_001_000, 0, "waiting")

    def test_a_new_time_applies(self):
        row = free_row(attempt=3)
        held = leased(row, next_time=NEXT + 86_400, attempt=-1, version=2, delay=9)
        end = give_back(answered(row), held, SETTINGS, NOW)
        assert times(end) == (NEXT + 86_400, NEXT + 86_409, 0, "waiting")

    def test_a_resumed_schedule_runs_at_its_next_time(self):
        row = free_row(status="paused", next_run_time=None)
        held = leased(row, status="waiting", version=2)
        end = give_back(answered(row), held, SETTINGS, NOW)
        assert times(end) == (NEXT, NEXT, 0, "waiting")

    def test_what_is_invalid_now_is_found_by_the_next_claim(self):
        row = free_row()
        end = give_back(answered(row), leased(row, cron="no", version=2), SETTINGS, NOW)
        assert times(end) == (NEXT, NEXT, 0, "waiting")

    def test_a_users_trigger_is_asked_by_the_next_claim(self):
        row = free_row()
        held = leased(row, cron="@call no.such:Trigger", version=2)
        end = give_back(answered(row), held, SETTINGS, NOW)
        assert (end.next_time, end.rest, end.not_before) == (None, False, None)
        assert end.attempt == -((NOW - 1) * 1000 + 999)

    def test_a_row_that_has_lost_its_time_gets_one_by_the_next_claim(self):
        row = free_row()
        held = leased(row, next_time=None, attempt=0, version=2)
        end = give_back(answered(row), held, SETTINGS, NOW)
        assert (end.next_time, end.rest, end.attempt) == (None, False, 0)


class TestNotes:
    def test_a_row_without_a_note_is_changed_as_it_is(self):
        for row in (free_row(), free_row(owner="w.1", attempt=1), Row(key="k", attempt=-5000)):
            assert given_back(row) is row
            assert while_free(row, lambda seen: seen) is row

    def test_the_note_of_a_free_row_is_resolved_by_a_change(self):
        row = leased(free_row(), owner=None)
        new = while_free(row, lambda seen: replace(seen, data="{}"))
        assert (new.next_run_time, new.attempt, new.owner) == (NEXT, 0, None)

    def test_the_note_of_a_leased_row_is_written_anew(self):
        row = leased(free_row(attempt=2))
        new = while_free(row, lambda seen: replace(seen, next_run_time=None))
        assert (new.next_run_time, new.owner) == (row.next_run_time, "w.2")
        assert returned(new) == (None, 2)

    def test_a_row_without_a_time_keeps_no_note(self):
        new = while_free(leased(free_row()), lambda seen: replace(seen, next_time=None, attempt=0))
        assert (new.attempt, new.owner) == (0, "w.2")


class TestOverlap:
    ROW = Row(key="k!0123456789abcdef", next_time=NOW, owner="w.1", fence=1, attempt=1)

    def test_an_extra_run_in_the_queue_is_postponed_without_an_attempt(self):
        end = beside_another_run(self.ROW, SETTINGS, ("k", "queue"), 1, now=NOW, turns=Turns())
        assert (end.wait, end.attempt, end.status, end.fate) == (1, 0, "waiting", None)
        assert end.next_time == NOW

    def test_one_that_skips_is_cancelled(self):
        end = beside_another_run(self.ROW, SETTINGS, ("k", "skip"), 1, now=NOW, turns=Turns())
        assert (end.rest, end.attempt, end.status) == (True, 0, "cancelled")
        assert (end.fate, end.retain) == (Fate.SKIPPED_OVERLAP, SETTINGS.retention_time)

    def test_it_is_removed_if_nothing_is_kept(self):
        own = SETTINGS.with_settings(retention_time=0)
        assert beside_another_run(self.ROW, own, ("k", "skip"), 1, now=NOW, turns=Turns()).remove

    @pytest.mark.parametrize(
        ("status", "reason"),
        [
            (None, "its schedule k was deleted"),
            ("deleting", "its schedule k is about to end: it is deleting"),
            ("cancelling", "its schedule k is about to end: it is cancelling"),
            ("failed", "its schedule k has ended: it is failed"),
        ],
    )
    def test_without_its_schedule_it_is_cancelled(self, status, reason):
        schedule = None if status is None else Row(key="k", status=status)
        end = without_lease(self.ROW, SETTINGS, ("k", "queue"), schedule, now=NOW, turns=Turns())
        assert (end.status, end.reason, end.fate) == ("cancelled", reason, Fate.CANCELLED)

    @pytest.mark.parametrize("status", ["waiting", "paused", "quarantined", "migrating"])
    def test_a_schedule_in_service_is_waited_for(self, status):
        schedule = Row(key="k", status=status, owner="w.1", next_run_time=NOW + 1)
        end = without_lease(self.ROW, SETTINGS, ("k", "queue"), schedule, now=NOW, turns=Turns())
        assert (end.status, end.wait) == ("waiting", 1)
        end = without_lease(self.ROW, SETTINGS, ("k", "skip"), schedule, now=NOW, turns=Turns())
        assert end.fate == "skipped_overlap"

    @pytest.mark.parametrize("fields", [{}, {"owner": "w.1", "next_run_time": NOW}])
    def test_one_that_skips_waits_while_no_run_is_going_on(self, fields):
        schedule = Row(key="k", **fields)
        end = without_lease(self.ROW, SETTINGS, ("k", "skip"), schedule, now=NOW, turns=Turns())
        assert (end.status, end.wait) == ("waiting", 1)


class TestTurns:
    def test_those_that_wait_are_tried_one_in_a_second(self):
        turns = Turns()
        assert [turns.wait("k", 1, NOW) for _ in range(ROUND)] == [*range(1, ROUND + 1)]
        assert [turns.wait("k", 1, NOW + passed) for passed in (1, 2, 3)] == [ROUND] * 3

    def test_when_another_run_has_started_those_that_are_tried_wait_shortly(self):
        turns = Turns()
        for _ in range(ROUND):
            turns.wait("k", 1, NOW)
        assert [turns.wait("k", 2, NOW) for _ in range(3)] == [1, 2, 3]

    def test_none_waits_longer_than_a_round(self):
        turns = Turns()
        waits = [turns.wait("k", 1, NOW + place / 100) for place in range(4 * ROUND)]
        assert (min(waits), max(waits)) == (1, ROUND)

    def test_a_single_one_is_tried_less_often_while_the_other_run_goes_on(self):
        turns, now, tries = Turns(), NOW, list[int]()
        while now < NOW + 3600:
            tries.append(turns.wait("k", 1, now))
            now += tries[-1]
        assert (tries[:60], {*tries[-100:]}) == ([1] * 60, {LONGEST})
        assert tries == sorted(tries)
        assert turns.wait("k", 2, now) == 1

    def test_schedules_have_turns_of_their_own(self):
        turns = Turns()
        assert [turns.wait(key, 1, NOW) for key in ("k", "l", "k", "l")] == [1, 1, 2, 2]

    @pytest.mark.parametrize("passed", [31, -1])
    def test_after_a_while_or_a_step_of_the_clock_nothing_is_known(self, passed):
        turns = Turns()
        for _ in range(100):
            turns.wait("k", 1, NOW)
        assert turns.wait("k", 1, NOW + passed) == 1

    def test_it_remembers_few_schedules(self):
        turns = Turns()
        assert {turns.wait(f"k{number}", 1, NOW) for number in range(3000)} == {1}

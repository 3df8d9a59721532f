"""Changes to many schedules: those that conditions select."""

import time

import pytest

from psched import InvalidError
from psched.client.collection import ScheduleCollection
from psched.testing import ManualClock
from support.stores import make_store

LATER = 4_000_000_000


@pytest.fixture
def tasks(schedules):
    """Tasks of two types; those of type mail have the label team."""
    schedules.push_many(
        {"key": f"mail-{n}", "type": "mail", "label": "team", "run_at": LATER} for n in range(4)
    )
    schedules.push("report[1]", "report", run_at=LATER)
    return schedules


def states(schedules):
    return {each.key: each.status for each in schedules.list(order="key")}


class TestSelecting:
    @pytest.mark.parametrize(
        ("keys", "conditions", "found"),
        [
            ((), {"every": True}, ["mail-0", "mail-1", "mail-2", "mail-3", "report[1]"]),
            (("mail-*",), {}, ["mail-0", "mail-1", "mail-2", "mail-3"]),
            (("mail-?",), {"type": "report"}, []),
            (("report[1]",), {}, ["report[1]"]),
            (("mail-1", "*-3"), {}, ["mail-1", "mail-3"]),
            ((), {"label": "team", "type": ["mail", "x"]}, [f"mail-{n}" for n in range(4)]),
            ((), {"status": "failed"}, []),
            ((), {"reason": "*"}, ["mail-0", "mail-1", "mail-2", "mail-3", "report[1]"]),
            ((), {"reason": "?*"}, []),
            (("mail-3", "none", "mail-1", "mail-3"), {}, ["mail-3", "mail-1"]),
            (("mail-3", "*[1]"), {"status": "waiting"}, ["mail-3", "report[1]"]),
        ],
    )
    def test_all_conditions_must_be_fulfilled(self, tasks, keys, conditions, found):
        assert [each.key for each in tasks.select(*keys, **conditions)] == found

    def test_a_pattern_of_any_length_costs_no_more_than_a_short_one(self, tasks):
        began = time.process_time()
        assert [*tasks.select("*a?" * 200_000)] == []
        assert len([*tasks.select("*" * 200_000)]) == 5
        assert time.process_time() - began < 5

    @pytest.mark.parametrize(
        ("field", "conditions"),
        [
            ("status", {"status": "lost"}),
            ("type", {"type": []}),
            ("reason", {"reason": 5}),
            ("reason", {"reason": ""}),
            ("keys", {}),
        ],
    )
    def test_invalid_conditions_are_refused(self, schedules, field, conditions):
        with pytest.raises(InvalidError) as raised:
            schedules.select(**conditions)
        assert raised.value.field == field

    def test_the_reason_matches_whatever_its_letters(self, tasks, sql):
        for key, reason in (("mail-0", "gave up: TimeoutError: 5 s"), ("mail-1", "ValueError")):
            sql("UPDATE {table} SET status = 'failed', reason = :r WHERE id = :k", r=reason, k=key)
        [found] = tasks.select(status="failed", reason="*timeout*")
        assert (found.key, found.reason) == ("mail-0", "gave up: TimeoutError: 5 s")
        assert [each.key for each in tasks.select(reason="timeouterror: 5")] == ["mail-0"]
        assert [each.key for each in tasks.select(reason="timeout?")] == []
        done = tasks.select(reason="*TIMEOUT*").requeue(LATER)
        assert [*done.changed] == ["mail-0"]
        assert states(tasks)["mail-1"] == "failed"


class TestChanging:
    def test_cancelled_and_requeued(self, tasks):
        told = []
        done = tasks.select("mail-*").cancel(report=lambda *each: told.append(each))
        assert [*done.changed] == ["mail-0", "mail-1", "mail-2", "mail-3"]
        assert told == [(key, True) for key in done.changed]
        assert states(tasks)["report[1]"] == "waiting"
        assert tasks.select("mail-*").cancel().changed == []

        assert tasks.select(type="mail").requeue(LATER).changed == []  # they were cancelled
        again = tasks.select(type="mail", status="cancelled").requeue(LATER)
        assert [*again.changed] == [*done.changed]
        assert {*states(tasks).values()} == {"waiting"}

    def test_nothing_is_changed_by_a_dry_run_or_without_consent(self, tasks):
        asked = []
        assert len(tasks.select(every=True).cancel(dry_run=True).changed) == 5
        refused = tasks.select("mail-*").cancel(confirm=asked.append)
        assert (refused.changed, asked) == ([], [["mail-0", "mail-1", "mail-2", "mail-3"]])
        assert {*states(tasks).values()} == {"waiting"}

    @pytest.mark.parametrize("verb", ["cancel", "requeue"])
    def test_what_was_changed_or_deleted_meanwhile_is_skipped(self, tasks, verb):
        tasks.select("mail-*").cancel()
        wanted = {"status": "cancelled"}
        if verb == "cancel":
            tasks.select("mail-*", status="cancelled").requeue(LATER)
            wanted = {"status": "waiting", "type": "mail"}

        def meddle(keys):
            assert [*keys] == ["mail-0", "mail-1", "mail-2", "mail-3"]
            tasks["mail-2"].delete()
            if verb == "cancel":
                tasks["mail-1"].cancel()
            else:
                tasks["mail-1"].requeue(LATER)
            return True

        done = getattr(tasks.select(**wanted), verb)(confirm=meddle)
        assert [*done.changed] == ["mail-0", "mail-3"]
        assert sorted(done.skipped) == ["mail-1", "mail-2"]
        assert "was changed meanwhile" in str(done.skipped["mail-1"])
        assert not done.failed

    def test_a_running_task_is_marked(self, schedules):
        schedules.push("k")
        task = schedules.poll()
        told = []
        selected = schedules.select("k", status="running")
        done = selected.cancel(report=lambda *each: told.append(each))
        assert (done.changed, done.marked) == (["k"], {"k"})
        assert told == [("k", False)]
        assert states(schedules) == {"k": "cancelling"}
        task.finish()

    @pytest.mark.parametrize(
        ("condition", "change"),
        [({"type": "mail"}, {"type": "other"}), ({"label": "team"}, {"label": "another"})],
    )
    def test_one_that_means_something_else_meanwhile_is_skipped(self, tasks, condition, change):
        def meddle(_keys):
            tasks["mail-2"].modify(**change)
            return True

        done = tasks.select(**condition).cancel(confirm=meddle)
        assert (len(done.changed), [*done.skipped]) == (3, ["mail-2"])
        assert states(tasks)["mail-2"] == "waiting"

    def test_a_key_that_contains_an_asterisk_is_no_pattern_if_it_exists(self, tasks):
        tasks.push("mail-*", "mail", run_at=LATER)
        assert tasks.select("mail-*").cancel().changed == ["mail-*"]
        tasks["mail-*"].delete()
        assert len(tasks.select("mail-*").cancel().changed) == 4

    def test_the_time_is_checked_before_anything_is_changed(self, tasks):
        tasks.select("mail-*").cancel()
        with pytest.raises(InvalidError) as raised:
            tasks.select("mail-*", status="cancelled").requeue("soon")
        assert raised.value.field == "run_at"
        assert states(tasks)["mail-0"] == "cancelled"

    def test_an_invalid_one_does_not_stop_the_others(self, schedules, sql):
        for key in ("a", "b"):
            schedules.push(key, run_at=LATER)
            schedules[key].cancel()
        sql("UPDATE {table} SET timezone = 'Nowhere/At_all' WHERE id = 'a'")
        done = schedules.select(status="cancelled").requeue(LATER)
        assert ([*done.changed], [*done.failed]) == (["b"], ["a"])

    @pytest.mark.parametrize(
        ("verb", "status"), [("requeue", "waiting"), ("requeue", "running"), ("cancel", "finished")]
    )
    def test_a_status_that_cannot_be_changed_so_is_refused(self, schedules, verb, status):
        with pytest.raises(InvalidError, match=f"status: '{status}' cannot be {verb}"):
            getattr(schedules.select(status=status), verb)()

    @pytest.mark.parametrize(
        ("rate", "seconds"), [("10/m", 18), ("1/h", 10_800), ("2/s", 1.5), (None, 0)]
    )
    def test_not_faster_than_the_rate(self, tasks, settings, rate, seconds):
        clock = ManualClock()
        with ScheduleCollection(
            make_store(settings.url), settings, clock=clock, draw_nonce=tasks.access.draw_nonce
        ) as collection:
            assert len(collection.select("mail-*").cancel(rate=rate).changed) == 4
        assert sum(clock.slept) == pytest.approx(seconds)

    @pytest.mark.parametrize("rate", ["", "5", "0/s", "-1/s", "1/x", "1.5/s", "10/s ", 5])
    def test_an_invalid_rate_changes_nothing(self, tasks, rate):
        with pytest.raises(InvalidError, match="rate: must be a number per time"):
            tasks.select(every=True).cancel(rate=rate)
        assert {*states(tasks).values()} == {"waiting"}


def test_a_misspelt_option_is_refused_before_anything_is_changed(tasks):
    for verb in ("cancel", "force_finish", "pause", "requeue", "resume", "skip", "stop", "trigger"):
        with pytest.raises(TypeError, match="dryrun"):
            getattr(tasks.select(every=True), verb)(dryrun=True)
    assert {*states(tasks).values()} == {"waiting"}

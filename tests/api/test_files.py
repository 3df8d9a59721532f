"""Plans are made and applied on real stores, also while other clients change schedules."""

import pytest

from psched.base.errors import AlreadyExistsError, InvalidError, NotFoundError
from psched.files.apply import apply_plan, make_plan

WANTED = [
    {"key": "a", "cron": "0 9 * * *"},
    {"key": "b", "type": "exec", "cron": "@daily", "data": {"command": ["true"]}, "note": "why"},
]


@pytest.fixture
def apply(schedules, settings):
    """Makes a plan and carries it out; returns what was done."""

    def apply(wanted, label="mine", *, adopt=False, prune=False):
        done = []
        made = make_plan(schedules, wanted, label, settings=settings, adopt=adopt)
        apply_plan(
            made, schedules, settings=settings, prune=prune,
            report=lambda what, key: done.append((what, key)),
        )  # fmt: skip
        return done

    return apply


def test_it_adds_changes_and_removes_what_is_to_be_and_nothing_else(schedules, apply):
    schedules.add("theirs", cron="@daily", label="theirs")
    schedules.add("nobodys", cron="@daily")
    assert apply(WANTED) == [("added", "a"), ("added", "b")]
    assert (schedules["b"].metadata().label, schedules["b"].metadata().note) == ("mine", "why")
    before = {each.key: each.row for each in schedules.list()}

    assert apply(WANTED) == []
    assert {each.key: each.row for each in schedules.list()} == before

    changed = [{**WANTED[0], "data": {"n": 1}}]
    assert apply(changed) == [("changed", "a")]
    assert schedules["a"].metadata().data == {"n": 1}
    assert schedules["a"].metadata().next_time == before["a"].next_time
    assert apply(changed, prune=True) == [("removed", "b")]
    assert {each.key for each in schedules.list()} == {"a", "theirs", "nobodys"}


def test_somebody_elses_is_left_alone_and_nothing_is_done_by_half(schedules, apply):
    schedules.add("b", cron="@hourly", label="theirs")
    with pytest.raises(AlreadyExistsError, match="b belongs to the label 'theirs'"):
        apply(WANTED)
    assert not schedules["a"].exists()
    with pytest.raises(InvalidError, match=r"c\.cron"):
        apply([*WANTED, {"key": "c", "cron": "x"}], adopt=True)
    assert schedules["b"].metadata().label == "theirs"

    assert apply(WANTED, adopt=True) == [("added", "a"), ("changed", "b")]
    assert schedules["b"].metadata().label == "mine"


def test_a_running_task_is_not_disturbed_by_a_change_and_is_marked_by_a_removal(
    schedules, apply, sql
):
    apply(WANTED)
    sql("update {table} set next_run_time = 0, next_time = 1800000000 where id = 'a'")
    task = schedules.poll()
    assert task.key == "a"

    assert apply([{**WANTED[0], "cron": "0 10 * * *"}, WANTED[1]]) == [("changed", "a")]
    task.extend()
    assert apply([WANTED[1]], prune=True) == [("marked", "a")]
    assert apply([WANTED[1]], prune=True) == []
    with pytest.raises(AlreadyExistsError, match="a is being deleted; apply again"):
        apply(WANTED)
    task.finish()
    assert apply(WANTED) == [("added", "a")]


def test_who_comes_second_writes_nothing_and_sets_no_time_anew(schedules, settings, apply, sql):
    apply(WANTED)
    wanted = [{**WANTED[0], "cron": "30 9 * * *"}, WANTED[1], {"key": "c", "cron": "@daily"}]
    stale = make_plan(schedules, wanted, "mine", settings=settings)
    assert apply(wanted) == [("added", "c"), ("changed", "a")]
    sql("update {table} set next_time = 1800000000 where id = 'a'")
    before = schedules["a"].metadata().row

    with pytest.raises(AlreadyExistsError, match="the key 'c' is taken"):
        apply_plan(stale, schedules, settings=settings)
    schedules["c"].delete()
    apply_plan(stale, schedules, settings=settings)

    assert schedules["a"].metadata().row == before


def test_what_others_have_taken_over_meanwhile_is_theirs(schedules, settings, apply):
    apply(WANTED)
    wanted = [{**WANTED[0], "delay": 5}]
    stale = make_plan(schedules, wanted, "mine", settings=settings)
    for key in "ab":
        schedules[key].modify(label="theirs")

    with pytest.raises(AlreadyExistsError, match="a belongs to the label 'theirs'"):
        apply_plan(stale, schedules, settings=settings, prune=True)
    schedules["a"].modify(label="mine")
    apply_plan(stale, schedules, settings=settings, prune=True)
    assert schedules["b"].exists()

    schedules["a"].modify(delay=0)
    stale = make_plan(schedules, wanted, "mine", settings=settings)
    schedules["a"].delete()
    with pytest.raises(NotFoundError):
        apply_plan(stale, schedules, settings=settings)
    assert apply(wanted) == [("added", "a")]


def test_what_was_interrupted_goes_on_when_it_is_done_again(
    schedules, settings, apply, monkeypatch
):
    monkeypatch.setattr("psched.files.apply._TRANSACTION", 1)
    apply(WANTED)
    wanted = [{**each, "delay": 5} for each in WANTED]

    def interrupt(_done, _key):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply_plan(
            make_plan(schedules, wanted, "mine", settings=settings),
            schedules, settings=settings, report=interrupt,
        )  # fmt: skip
    assert apply(wanted) == [("changed", "b")]


def test_a_schedule_that_has_changed_meanwhile_does_not_keep_others_from_being_changed(
    schedules, settings, apply
):
    apply(WANTED)
    wanted = [{**each, "delay": 5} for each in WANTED]
    made = make_plan(schedules, wanted, "mine", settings=settings)
    schedules["a"].modify(note="meanwhile")
    done = []
    apply_plan(made, schedules, settings=settings, report=lambda *each: done.append(each))
    assert done == [("changed", "a"), ("changed", "b")]
    assert [schedules[key].metadata().delay for key in "ab"] == [5, 5]
    # The note is not declared, so it was removed.
    assert apply(wanted) == []

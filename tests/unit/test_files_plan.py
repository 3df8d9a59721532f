"""Tests of plans: the changes that make existing schedules equal to declared schedules."""

from dataclasses import replace as changed

import pytest

from psched import config
from psched.base.errors import InvalidError
from psched.core.declare import declare
from psched.core.model import CANCELLED, DELETING, QUARANTINED, Row
from psched.files.plan import next_after, next_before, plan

SETTINGS = config.from_mapping(
    {
        "url": "sqlite:///unused.db",
        "timezone": "Europe/Berlin",
        "types": {"report": {"alive_time": 60}},
    }
)
NOON = 1_800_014_400
"""2027-01-15T12:00:00Z."""


def row(key="k", **fields):
    return declare(key, {"cron": "0 9 * * *", "label": "mine", **fields}, SETTINGS, lambda: NOON)


def wanted(key="k", **fields):
    return {"key": key, "cron": "0 9 * * *", **fields}


def planned(declarations, rows, label="mine", **more):
    return plan(declarations, rows, label, settings=SETTINGS, now=lambda: NOON, **more)


def keys(items):
    return [item.key for item in items]


def test_what_is_missing_is_added_what_is_there_is_left_alone_and_what_left_is_named():
    made = planned([wanted("new"), wanted("same")], [row("same"), row("old"), row("x", label="y")])

    assert (keys(made.added), keys(made.unchanged), keys(made.left)) == (["new"], ["same"], ["old"])
    assert not made.changed
    assert not made.refused
    assert made.is_pending(prune=False)
    assert not planned([wanted("same")], [row("same"), row("old")]).is_pending(prune=False)
    assert planned([wanted("same")], [row("same"), row("old")]).is_pending(prune=True)


def test_the_time_of_what_runs_once_is_a_field_like_others():
    later = NOON + 86_400
    once = row(cron=None, at=NOON)

    assert not planned([{"key": "k", "at": NOON}], [once]).changed
    for said in ({"at": later}, {"next_time": later}):
        [moved] = planned([{"key": "k", **said}], [once]).changed
        assert moved.changes == {"next_time": (NOON, later)}
        [no_more_cron] = planned([{"key": "k", **said}], [row()]).changed
        assert [*no_more_cron.changes.items()][-1] == ("next_time", (row().next_time, later))
    # The next_time of a repeating schedule is its progress, not a declared value.
    assert not planned([wanted(next_time=later)], [row()]).changed


def test_a_change_is_told_field_by_field():
    old = row(type="report", data={"a": 1}, retry_wait=5, note="why")
    new = wanted(cron="0 8 * * *", timezone="UTC", data={"a": True}, delay=5, catchup="skip")

    [item] = planned([new], [old]).changed

    assert [*item.changes.items()] == [
        ("type", ("report", "default")),
        ("data", ({"a": 1}, {"a": True})),
        ("cron", ("0 9 * * *", "0 8 * * *")),
        ("timezone", ("Europe/Berlin", "UTC")),
        ("delay", (0, 5)),
        ("catchup", (None, "skip")),
        ("retry_wait", (5, None)),
        ("note", ("why", None)),
    ]


@pytest.mark.parametrize(
    ("stored", "declared"),
    [
        ({}, {"timezone": "Europe/Berlin", "delay": 0, "type": "default", "data": {}}),
        ({"data": {"a": [1], "b": None}}, {"data": {"b": None, "a": (1,)}}),
        ({"type": "report"}, {"type": "report", "alive_time": 60}),
        ({"type": "report", "alive_time": 60}, {"type": "report"}),
        ({"note": "x"}, {"note": "x", "catchup": None, "label": "mine"}),
    ],
)
def test_a_default_that_is_written_out_and_the_order_of_data_are_no_change(stored, declared):
    assert keys(planned([wanted(**declared)], [row(**stored)]).unchanged) == ["k"]


def test_a_row_of_plain_sql_is_compared_by_what_it_means():
    plain = Row(key="k", cron="0 9 * * *", label="mine", options='{"resource": "db"}')
    assert keys(planned([wanted()], [plain]).unchanged) == ["k"]


def test_a_row_that_cannot_be_read_differs():
    broken = changed(row(), data="{", status=QUARANTINED)
    [item] = planned([wanted()], [broken]).changed
    assert item.changes == {"data": ("{", {})}


def test_two_labels_never_touch_each_others_schedules():
    theirs, nobodys = row("theirs", label="theirs"), row("nobodys", label=None)

    made = planned([wanted("theirs", delay=1), wanted("nobodys")], [theirs, nobodys])

    assert made.refused["theirs"].startswith(
        "belongs to the label 'theirs', and is declared for the label 'mine'"
    )
    assert made.refused["nobodys"].startswith(
        "belongs to nobody (it has no label), and is declared for the label 'mine'"
    )
    assert not made.is_pending(prune=True)
    assert "declared for nobody" in planned([wanted()], [row()], None).refused["k"]


def test_taking_over_is_a_change_like_others_and_has_to_be_asked_for():
    rows = [row("theirs", label="theirs"), row("nobodys", label=None)]
    made = planned([wanted("theirs"), wanted("nobodys")], rows, adopt=True)

    assert [item.changes for item in made.changed] == [
        {"label": ("theirs", "mine")},
        {"label": (None, "mine")},
    ]


def test_nobodys_schedules_can_be_declared_but_never_have_left():
    rows = [row("a", label=None), row("b", label=None)]
    made = planned([wanted("a", delay=1)], rows, None)
    assert (keys(made.changed), made.left) == (["a"], [])


def test_what_is_being_deleted_is_nobodys_to_change_or_remove():
    going = changed(row(), status=DELETING, owner="w")
    assert "being deleted" in planned([wanted()], [going], adopt=True).refused["k"]
    assert planned([], [going]).left == []


@pytest.mark.parametrize(
    ("declaration", "field"),
    [
        (wanted(cron="99 * * * *"), "k.cron"),
        (wanted(data={"a": {1, 2}}), "k.data"),
        (wanted(label="theirs"), "k.label"),
        (wanted(crom="@daily"), "k.crom"),
        ({"cron": "@daily"}, "key"),
    ],
)
def test_nonsense_is_refused_with_key_and_field(declaration, field):
    with pytest.raises(InvalidError) as refused:
        planned([declaration], [])
    assert refused.value.field == field


def test_a_key_is_declared_once():
    with pytest.raises(InvalidError, match="declared twice"):
        planned([wanted(), wanted()], [])


class TestPreview:
    def test_a_new_trigger_counts_from_now_on_in_its_zone(self):
        [item] = planned([wanted(cron="30 8 * * *", timezone="Asia/Kolkata")], [row()]).changed

        before, after = next_before(item, SETTINGS), next_after(item, SETTINGS, NOON + 0.5)

        first = NOON + 20 * 3600
        assert before.instants == [first, first + 86_400, first + 2 * 86_400]
        assert after.instants[0] == first - 5 * 3600

    def test_another_change_changes_no_times(self):
        [item] = planned([wanted(delay=90)], [row()]).changed
        assert next_after(item, SETTINGS, NOON) == next_before(item, SETTINGS)

    def test_what_is_added_has_no_past_and_what_goes_has_no_future(self):
        made = planned([wanted("new", next_time=NOON + 86_400 * 7)], [row()])
        [new], [old] = made.added, made.left
        assert next_before(new, SETTINGS) is None
        assert next_after(new, SETTINGS, NOON).instants[0] == NOON + 7 * 86_400 + 20 * 3600
        assert next_after(old, SETTINGS, NOON) is None

    def test_what_is_at_rest_does_not_fire(self):
        [item] = planned([wanted(delay=1)], [changed(row(), status=CANCELLED)]).changed
        assert next_after(item, SETTINGS, NOON).problem == "none: it is cancelled"

    def test_what_has_ended_runs_again_with_a_new_trigger_or_time(self):
        ended = changed(row(), status=CANCELLED, cron="0 5 * * *")
        [item] = planned([wanted()], [ended]).changed
        assert next_after(item, SETTINGS, NOON).instants[0] == NOON + 20 * 3600
        once = wanted(cron=None, next_time=NOON + 7)
        [item] = planned([once], [changed(row(), cron=None, status=CANCELLED)]).changed
        assert next_after(item, SETTINGS, NOON).instants == [NOON + 7]

    def test_what_is_quarantined_is_taken_back_into_service_by_a_change(self):
        broken = changed(row(), status=QUARANTINED, data="{")
        [item] = planned([wanted()], [broken]).changed
        assert next_before(item, SETTINGS).problem == "none: it is quarantined"
        assert next_after(item, SETTINGS, NOON).instants[0] == broken.next_time

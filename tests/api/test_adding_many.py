"""ScheduleCollection.add_many: many schedules in one call."""

import pytest

from psched import AlreadyExistsError, InvalidError, Schedule

LATER = 4_000_000_000


def test_each_is_added_with_all_that_is_said_of_it(schedules):
    added = schedules.add_many(
        {"key": key, "type": "t", "cron": "@daily", "next_time": LATER, "data": {"n": n}}
        for n, key in enumerate("cab")
    )
    assert all(isinstance(schedule, Schedule) for schedule in added)
    assert [schedule.key for schedule in added] == ["c", "a", "b"]
    assert [schedule.metadata().data for schedule in added] == [{"n": 0}, {"n": 1}, {"n": 2}]
    schedules.add("d", "t", cron="@daily", next_time=LATER, data={"n": 0})
    one, other = (schedules[key].metadata() for key in "cd")
    for name in ("type", "cron", "timezone", "delay", "next_time", "next_run_time", "data"):
        assert getattr(one, name) == getattr(other, name)


ODD = ["NULL", "a,b", "{x}", 'quo"te', "it's", "back\\slash", "%s %(n)s", ":n", "Zürich 東京 😀"]


def test_whatever_is_in_a_text_is_stored_as_it_was_given(schedules):
    schedules.add_many(
        {"key": text, "type": text, "label": text, "data": {text: [text, None, ""]}, "at": LATER}
        for text in ODD
    )
    schedules.push_many({"key": f"task {text}", "type": text, "run_at": LATER} for text in ODD)
    for text in ODD:
        found = schedules.read(text)
        assert (found.type, found.label, found.data) == (text, text, {text: [text, None, ""]})
        task = schedules.read(f"task {text}")
        assert (task.type, task.data, task.cron, task.label) == (text, {}, None, None)


def test_none_is_none(schedules):
    assert [*schedules.add_many([])] == []
    assert [*schedules.list()] == []


def test_those_without_a_time_start_at_the_same(on_host):
    asked, now = [], on_host._store.now
    on_host._store.now = lambda: asked.append(now()) or asked[-1]
    added = on_host.add_many({"key": f"k{n}"} for n in range(20))
    assert len(asked) == 1
    assert len({schedule.metadata().next_time for schedule in added}) == 1


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"key": "k", "cron": "61 * * * *"}, "schedules[2].cron"),
        ({"key": "k", "colour": "red"}, "schedules[2].colour"),
        ({"key": ""}, "schedules[2].key"),
        ({"cron": "@daily"}, "schedules[2].key"),
        ({"key": "b"}, "schedules[2].key"),
        ("k", "schedules[2]"),
    ],
    ids=str,
)
def test_one_that_makes_no_sense_is_named_and_none_is_added(schedules, wrong, field):
    with pytest.raises(InvalidError) as refused:
        schedules.add_many([{"key": "a"}, {"key": "b"}, wrong, {"key": "z", "delay": -1}])
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: ")
    assert [*schedules.list()] == []


def test_a_key_that_is_there_twice_is_said_with_both_places(schedules):
    with pytest.raises(InvalidError, match=r"'a' is that of schedules\[0\] as well"):
        schedules.add_many([{"key": "a"}, {"key": "b"}, {"key": "a"}])


def test_keys_that_are_taken_are_named_and_none_is_added(schedules):
    for key in ("b", "m7"):
        schedules.add(key, next_time=LATER)
    with pytest.raises(AlreadyExistsError, match=r"^the key 'b' is taken$"):
        schedules.add_many([{"key": "a"}, {"key": "b"}])
    with pytest.raises(AlreadyExistsError, match=r"^the keys 'm7', 'b' are taken$"):
        schedules.add_many([*({"key": f"m{n}"} for n in range(1200)), {"key": "b"}])
    assert {found.key for found in schedules.list()} == {"b", "m7"}


def test_of_many_keys_that_are_taken_the_first_are_named(schedules):
    many = [{"key": f"k{n}", "next_time": LATER} for n in range(8)]
    schedules.add_many(many)
    with pytest.raises(AlreadyExistsError, match="'k0', 'k1', 'k2', 'k3', 'k4' and 3 more are"):
        schedules.add_many(many)

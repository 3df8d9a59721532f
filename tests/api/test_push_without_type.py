"""A push without a type, which is probably a mistake: its data or its type was forgotten."""

import warnings

import pytest

import psched
from psched import InvalidError
from psched.app import open_in_worker
from psched.config import from_mapping
from support.tables import fill_sqlite

WITHOUT = "no type is given, so the task's type is 'default'"


@pytest.fixture
def settings(tmp_path):
    """Settings that name no handler."""
    return from_mapping({"url": fill_sqlite(tmp_path / "psched.db")})


def test_it_warns_if_the_settings_name_no_handler(schedules):
    with pytest.warns(UserWarning, match=WITHOUT) as warned:
        schedules.push("k", data={"n": 1})
    (warning,) = warned
    assert warning.filename == __file__
    assert "push('KEY', 'TYPE', data={…})" in str(warning.message)
    assert schedules["k"].metadata().type == "default"


def test_it_warns_once_for_many_tasks_and_once_for_each_line(schedules):
    with pytest.warns(UserWarning, match=WITHOUT) as warned:
        schedules.push_many([{"key": "a", "type": "t"}, {"key": "b"}, {"key": "c"}])
    assert [warning.filename for warning in warned] == [__file__]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        for key in "def":
            schedules.push(key)
    assert len(warned) == 1


def test_a_type_that_is_given_is_no_mistake(schedules):
    schedules.push("a", "default")
    schedules.push("b", "mail", {"to": "ann"})
    schedules.push_many([{"key": "c", "type": "default"}])


@pytest.mark.parametrize("handlers", [{"exec": "true"}, {"script": "a.py"}, {"dispatch": "a:B"}])
def test_it_does_not_warn_if_a_handler_may_take_the_type(settings, schedules, handlers):  # noqa: ARG001
    with psched.open(settings.with_settings(**handlers)) as opened:
        opened.push("k")


def test_it_does_not_warn_in_a_worker_whose_program_may_have_handlers(settings, schedules):  # noqa: ARG001
    with open_in_worker(settings) as opened:
        opened.push("k")


def test_data_in_the_place_of_the_type_are_refused_with_the_right_call(schedules):
    with pytest.raises(InvalidError) as refused:
        schedules.push("mail-7", {"to": "ann"})
    assert str(refused.value) == (
        "type: must be a text, not dict; the type stands before the data:"
        " push('mail-7', 'TYPE', data={…})"
    )
    with pytest.raises(InvalidError, match=r"add\('s1', 'TYPE', data=\{…\}\)"):
        schedules.add("s1", {"to": "ann"}, cron="@daily")
    assert len(schedules) == 0

"""The payload of type exec: checked when it is declared, and when it is run."""

from dataclasses import replace as changed
from typing import ClassVar

import pytest

from psched.application.dispatch import call_handler
from psched.application.task import Task
from psched.base.errors import InvalidError, NotAllowedError
from psched.base.exec_data import check_declared_exec, check_exec
from psched.config import from_mapping
from psched.core.declare import declare, derive, redeclare
from psched.core.definition import parse_row
from psched.core.model import QUARANTINED, Row
from psched.handlers.exec import Exec, Program, find_command
from psched.process.run_as_list import DESCRIBING

GOOD = {"command": ["true"]}

VALID = [
    GOOD,
    {"command": ("date", "-u")},
    {"command": "a | b", "shell": True},
    {"command": "a", "shell": 1, "append_key": 0},  # as SQLite's json_object() writes true, false
    {"command": ["a", ""], "shell": False, "append_key": True, "cwd": "/", "stdin": ""},
    {"command": ["a"], "env": {"A": "", "B": "2"}, "stdin": "two\nlines\0"},
    {"command": ["a"], "env": {}, "data": {"any": ["thing"]}},
    {"command": ["a"], **dict.fromkeys(("shell", "append_key", "cwd", "stdin", "env", "data"))},
]

INVALID = [
    ({}, '"command" is missing'),
    ({"command": None}, '"command" is missing'),
    ({"command": "date -u"}, 'one text needs "shell": true'),
    ({"command": "date -u", "shell": False}, 'one text needs "shell": true'),
    ({"command": ["date"], "shell": True}, 'for a list, omit "shell"'),
    ({"command": []}, '"command" is empty'),
    ({"command": [""]}, '"command" is empty'),
    ({"command": "", "shell": True}, '"command" is empty'),
    ({"command": ["sleep", 5]}, '"command" must be a list of texts'),
    ({"command": {"a": "b"}}, '"command" must be a list of texts'),
    ({"command": ["a\0b"]}, '"command" must be a list of texts, without NUL'),
    ({**GOOD, "shell": "yes"}, '"shell" must be true or false'),
    ({**GOOD, "append_key": 2}, '"append_key" must be true or false'),
    ({**GOOD, "cwd": 5}, '"cwd" must be the path of a folder'),
    ({**GOOD, "cwd": ""}, '"cwd" must be the path of a folder'),
    ({**GOOD, "stdin": ["a"]}, '"stdin" must be a text'),
    ({**GOOD, "env": {"A": 1}}, '"env" must map names to texts; put numbers in quotes'),
    ({**GOOD, "env": ["A=1"]}, '"env" must map names to texts'),
    ({**GOOD, "env": {"A=B": "1"}}, '"env" has a name that is empty or contains "="'),
    ({**GOOD, "env": {"": "1"}}, '"env" has a name that is empty or contains "="'),
]

UNKNOWN = [
    ({"comand": ["true"]}, "'comand' is not a field of type exec; did you mean \"command\"?"),
    ({**GOOD, "environ": {}}, "'environ' is not a field of type exec; did you mean \"env\"?"),
    ({**GOOD, "append-key": True}, 'did you mean "append_key"?'),
    ({**GOOD, "environment": {}}, 'did you mean "env"?'),
    ({**GOOD, "colour": "red"}, "'colour' is not a field of type exec. The fields are command,"),
    ({**GOOD, "colour": "red"}, "stdin, ok_exit, data; put values for the program under data"),
]

ON = from_mapping({"url": "sqlite:///unused.db"})


def now():
    return 1_800_000_000


ASSIGNMENT = {
    "key": "k",
    "type": "exec",
    "scheduled_time": 1,
    "attempt": 1,
    "cron": None,
    "timezone": "UTC",
    "delay": 0,
    "owner": "me",
    "fence": 1,
}


def task(data):
    row = declare("k", {"next_time": 1, "data": data}, ON, now)
    given = {"key": "k", "type": "exec", "data": row.data, "scheduled_time": 1, "attempt": 1}
    more = {"cron": None, "timezone": "UTC", "delay": 0, "owner": "me", "fence": 1}
    return Task({**given, **more}, None)


@pytest.mark.parametrize("data", VALID)
def test_what_can_be_run_is_accepted_when_it_is_declared_and_when_it_is_run(data):
    check_declared_exec(data)
    assert declare("k", {"type": "exec", "data": data}, ON, now).type == "exec"
    Exec(task(data))


@pytest.mark.parametrize(("data", "problem"), INVALID)
def test_what_cannot_be_run_is_refused_when_it_is_declared_and_when_it_is_run(data, problem):
    for check in (
        lambda: check_declared_exec(data),
        lambda: check_exec(data),
        lambda: declare("k", {"type": "exec", "data": data}, ON, now),
        lambda: Exec(task(data)),
    ):
        with pytest.raises(InvalidError) as refused:
            check()
        assert refused.value.field == "data"
        assert problem in refused.value.problem


@pytest.mark.parametrize(("data", "problem"), UNKNOWN)
def test_an_unknown_field_is_refused_when_it_is_declared(data, problem):
    with pytest.raises(InvalidError) as refused:
        declare("k", {"type": "exec", "data": data}, ON, now)
    assert problem in str(refused.value)


def test_a_field_that_plain_sql_has_written_is_left_to_the_program():
    check_exec({**GOOD, "colour": "red"})
    Exec(task({**GOOD, "colour": "red"}))


class TestChanges:
    SEEN = Row(key="k", type="exec", data='{"comand":["a"]}', next_time=5, next_run_time=5)

    def test_a_change_of_the_data_or_of_the_type_is_checked(self):
        for seen, fields in (
            (self.SEEN, {"data": {"comand": ["b"]}}),
            (changed(self.SEEN, type="mail"), {"type": "exec"}),
            (changed(self.SEEN, type="mail"), {"type": "exec", "data": {}}),
        ):
            with pytest.raises(InvalidError, match="command"):
                redeclare(seen, fields, ON, now)
        assert redeclare(self.SEEN, {"data": GOOD}, ON, now).data == '{"command":["true"]}'

    def test_another_change_leaves_the_data_that_are_stored(self):
        assert redeclare(self.SEEN, {"delay": 5}, ON, now).data == self.SEEN.data
        rests = changed(self.SEEN, status=QUARANTINED, next_run_time=None)
        assert redeclare(rests, {}, ON, now).status == "waiting"

    def test_a_schedule_that_becomes_another_type_is_not_checked(self):
        assert redeclare(self.SEEN, {"type": "mail", "data": {"x": 1}}, ON, now).type == "mail"


@pytest.mark.parametrize(
    "settings",
    [
        {"exec_type": False},
        {"exec": "true"},  # exec_type is then off
        {"script": "a.py"},
        {"only": ["mail"]},
    ],
)
def test_the_data_are_not_checked_if_another_handler_may_run_them(settings):
    fields = {"type": "exec", "data": {"any": "thing"}}
    assert declare("k", fields, ON.with_settings(**settings), now).type == "exec"


def test_who_routes_the_type_to_a_handler_of_their_own_is_told_how_to_declare_it():
    settings = ON.with_settings(dispatch="a:B")
    with pytest.raises(InvalidError, match="if a:B has a route for type exec, set exec_type: off"):
        declare("k", {"type": "exec", "data": {"any": "thing"}}, settings, now)
    declare("k", {"type": "exec", "data": {}}, settings.with_settings(exec_type=False), now)


@pytest.mark.parametrize(
    "settings",
    [
        {"exec_type": ["date"]},
        {"exec": "true", "exec_type": True},
        {"only": ["exec", "mail"]},
    ],
)
def test_the_data_are_checked_if_the_built_in_handler_runs_them(settings):
    fields = {"type": "exec", "data": {"any": "thing"}}
    with pytest.raises(InvalidError, match="'any' is not a field of type exec"):
        declare("k", fields, ON.with_settings(**settings), now)


def test_other_types_may_have_any_data():
    assert declare("k", {"type": "execute", "data": {"any": "thing"}}, ON, now)


def test_a_program_that_is_not_allowed_is_refused_before_the_data_are_checked():
    class Restricted(Exec):
        allowed = ("date",)

    with pytest.raises(NotAllowedError, match='"env" is refused'):
        Restricted(task({**GOOD, "env": {"A": 1}}))


class TestRunAs:
    FIELDS: ClassVar = {"type": "exec", "data": GOOD, "next_time": 1}

    def test_a_program_can_have_a_user_and_nothing_else(self):
        assert declare("k", {**self.FIELDS, "run_as": "www-data"}, ON, now).run_as == "www-data"
        with pytest.raises(InvalidError, match=r"^run_as: needs the type exec"):
            declare("k", {"type": "mail", "run_as": "backup", "next_time": 1}, ON, now)
        row = declare("k", {**self.FIELDS, "run_as": "backup"}, ON, now)
        with pytest.raises(InvalidError, match=r"^run_as: needs the type exec"):
            redeclare(row, {"type": "mail"}, ON, now)
        assert redeclare(row, {"run_as": None}, ON, now).run_as is None

    @pytest.mark.parametrize("name", ["", "0", "a b", "../x", "-u", "a\nb", "a:b", "x" * 65])
    def test_a_name_that_no_user_has_is_refused(self, name):
        with pytest.raises(InvalidError, match=r"^run_as: "):
            declare("k", {**self.FIELDS, "run_as": name}, ON, now)

    def test_a_row_with_an_impossible_user_is_not_understood(self):
        row = Row(key="k", type="exec", data='{"command":["true"]}', next_time=5, run_as="a b")
        with pytest.raises(InvalidError, match=r"^run_as: "):
            parse_row(row, ON)

    def test_an_extra_run_has_the_user_of_its_schedule(self):
        row = declare("k", {**self.FIELDS, "run_as": "backup"}, ON, now)
        assert derive("k.extra", row, {}, ON).run_as == "backup"

    @pytest.mark.parametrize("allowed", [False, ["/bin/false"]])
    def test_the_list_of_root_is_asked_in_place_of_exec_type(self, allowed):
        handler = type("Handler", (Exec,), {"allowed": allowed})
        fields = {"run_as": "backup", **ASSIGNMENT}

        command = find_command(handler, fields, b'{"command": "x", "shell": true}')

        assert command is not None
        assert (command.user, command.arguments[0]) == ("backup", "/bin/sh")
        without = find_command(handler, {**fields, "run_as": None}, b'{"command": ["/bin/true"]}')
        assert without is None

    @pytest.mark.parametrize("handler", [Program, print, type("Users", (), {})])
    def test_no_other_handler_runs_what_is_for_another_user(self, handler):
        fields = {**ASSIGNMENT, "run_as": "backup", "data": "{}"}

        assert find_command(handler, fields, b"{}") is None
        with pytest.raises(NotAllowedError, match=r"^run_as: backup: only the built-in type exec"):
            call_handler(handler, Task(fields, None), fields, offer_kill=id, run_awaitable=id)


def test_what_describes_a_task_to_its_program_is_never_refused_for_another_user():
    """Root's helper loads no handler, so the names of these variables stand twice."""
    assert {*Exec(task(GOOD)).command.environment} == DESCRIBING

"""Tests of the settings ``exec`` and ``script``, which determine the handler of all types."""

import itertools
import re
from typing import ClassVar

import pytest

from psched.application.dispatch import Dispatch
from psched.application.task import Task
from psched.base.errors import ConfigError, LoadError
from psched.config import from_mapping
from psched.handlers.configured import SingleHandler, leaves_programs, load_handlers

NUMBERS = itertools.count()
"""Makes the names of modules unique, because Python imports a name only once."""

TASK = Task(
    {
        "key": "t1",
        "type": "t",
        "data": "{}",
        "cron": None,
        "timezone": "UTC",
        "delay": 0,
        "scheduled_time": 0,
        "attempt": 1,
        "owner": "me",
        "fence": 1,
    },
    None,
)


@pytest.fixture
def load(tmp_path, monkeypatch):
    """A function that writes a script and loads the script's handlers."""
    monkeypatch.setattr("sys.path", [])
    monkeypatch.setattr("sys.argv", [])
    path = tmp_path / f"script{next(NUMBERS)}_for_a_test.py"

    def load_content(content, **settings):
        path.write_text(content)
        given = {"url": "sqlite:////none", "script": [str(path), "-x"], **settings}
        return load_handlers(from_mapping(given, environ={}))

    return load_content


def test_of_several_classes_the_one_called_run_is_meant(load):
    only = load("class A:\n def run(self): 0\nclass Run(A): pass\n")

    assert only.find("any").__name__ == "Run"
    assert only.name.endswith(".py:Run")


def test_the_only_class_is_meant_but_none_that_was_imported_or_cannot_run(load):
    only = load("from threading import Thread\nclass A: pass\nclass B:\n def run(self): 0\n")

    assert only.find("any").__name__ == "B"


def test_psched_s_own_types_keep_their_meaning(load):
    only = load("class B:\n def run(self): 0\n")

    assert only.find("exec") is None
    assert only.find("") is only.find("mail")


@pytest.mark.parametrize(
    "kill", ["kill(self)", "kill(self, reason)", "kill(self, reason=None)", "kill(self, *a)"]
)
def test_a_class_whose_kill_takes_no_reason_is_not_given_one(load, kill):
    only = load(
        "class B:\n def __init__(self, task): self.n = 0\n def run(self): 0\n"
        f" def {kill}: self.n += 1\n"
    )

    made = only.find("any")(TASK)
    made.kill("timeout")

    assert made.n == 1
    assert type(made).__name__ == "B"


@pytest.mark.parametrize(
    ("content", "settings", "text"),
    [
        (
            "",
            {},
            "should have one class with run.*, but has none; set script_class",
        ),
        ("Run = 7", {}, "script: there is no class 'Run' in"),
        ("x = 1", {"script_class": "x"}, "script: there is no class 'x' in"),
        ("class Run: pass", {}, "the class Run has no run"),
        ("class Run:\n def run(self): yield", {}, "is a generator"),
        (
            "class Run:\n def run(self): 0\n async def kill(self): 0",
            {},
            "Run.kill is a coroutine; it must be a plain function",
        ),
        ("1/0", {}, "ZeroDivisionError"),
    ],
)
def test_a_script_that_cannot_run_tasks_is_refused(load, content, settings, text):
    with pytest.raises(LoadError, match=text):
        load(content, **settings)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"exec": "true", "dispatch": "a:B"},
            "exec: runs tasks of every type, so that none is left for",
        ),
        ({"exec": "true", "script": "a.py"}, "exec: runs tasks of every type"),
        ({"script": "a.py", "dispatch": "a:B"}, "script: runs tasks of every type"),
        ({"script_class": "A"}, "script_class: needs script"),
        ({"script": "a.py", "script_class": "a b"}, "script_class: must be the name of a class"),
        ({"exec": []}, "exec: must be the path of a program, or a list .*, not an empty list"),
        ({"exec": [""]}, "exec: is empty"),
        ({"exec": ["sleep", 5]}, "exec: must be .*; put each argument in quotes"),
    ],
)
def test_settings_for_one_handler_that_contradict_each_other_are_refused(settings, text):
    with pytest.raises(ConfigError, match=text):
        from_mapping({"url": "sqlite:////none", **settings}, environ={})


class Routes(Dispatch):
    routes: ClassVar = {"mail": print}


class OwnExec(Dispatch):
    routes: ClassVar = {"exec": print}


class PatternOfExec(Dispatch):
    routes: ClassVar = {re.compile("^ex"): print}


class MissingExec(Dispatch):
    routes: ClassVar = {"exec": "nowhere_at_all:Handler"}


class Hooked(Dispatch):
    def after_fork(self):
        pass


class Finds(Dispatch):
    def find(self, _type):
        return None


@pytest.mark.parametrize(
    ("dispatch", "leaves"),
    [
        (None, True),
        (Routes(), True),
        (SingleHandler(print, "print"), True),
        (OwnExec(), False),
        (PatternOfExec(), False),
        (MissingExec(), False),
        (Hooked(), False),
        (Finds(), False),
    ],
    ids=lambda each: type(each).__name__,
)
def test_programs_are_left_to_psched_if_no_code_of_users_has_to_run(dispatch, leaves):
    assert leaves_programs(dispatch) is leaves

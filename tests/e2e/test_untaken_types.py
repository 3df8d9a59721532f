"""Commands warn about a type that no worker of the last day takes, as its record says."""

import re
from typing import ClassVar

import pytest

from psched.application import Dispatch
from psched.handlers.configured import handled_types
from psched.service.functions import App

WARNING = "Warning: no worker seen in the last day takes the type 'nosuch' (they take only"
DAY = 86_400


@pytest.fixture
def note(service):
    """A function that writes the record of a worker, which says what types it takes."""

    def noting(nonce, types):
        with service.sql() as database:
            database.execute(
                "INSERT INTO psched_workers (nonce, host, pid, number, generation, slots, busy,"
                " types, started, seen) VALUES (?, 'h', 1, 0, 1, 1, 0, ?, 0, unixepoch())",
                [nonce, types],
            )

    return noting


FILE = """
label: null
schedules:
  s1: {type: nosuch, cron: "@daily"}
  s2: {type: nosuch, cron: "@daily"}
"""

ASKED = [
    ("add", "s1", "nosuch", "@daily"),
    ("push", "s1", "nosuch", "{}"),
    ("pause", "--type", "nosuch"),
    ("edit", "there", "--new-type", "nosuch"),
    ("apply", "schedules.yml", "--quiet"),
    ("apply", "schedules.yml", "--quiet", "--dry-run"),
]


@pytest.fixture
def asked(service):
    """A function that runs one of these commands, and returns what it warns of."""
    service.write("schedules.yml", FILE)
    service.invoke("add", "there", "mail", "@daily")

    def asking(*arguments):
        words = [
            str(service.folder / each) if each.endswith(".yml") else each for each in arguments
        ]
        done = service.invoke(*words)
        assert done.exit_code == (3 if "--dry-run" in arguments else 0), done.output
        return done.stderr

    return asking


@pytest.mark.parametrize("arguments", ASKED, ids=" ".join)
def test_a_type_that_no_worker_takes_is_a_warning(asked, note, arguments):
    note("w1", '["mail", "web"]')
    note("w2", '["exec"]')
    assert asked(*arguments) == f"{WARNING} exec, mail, web)\n"


@pytest.mark.parametrize("types", [(), ('["mail"]', None), ('["mail"]', '["nosuch"]')])
@pytest.mark.parametrize("arguments", ASKED, ids=" ".join)
def test_nothing_is_said_if_no_worker_was_seen_or_one_takes_the_type(asked, note, arguments, types):
    for number, each in enumerate(types):
        note(f"w{number}", each)
    assert asked(*arguments) == ""


def test_a_worker_that_was_seen_before_the_last_day_does_not_count(asked, note, service):
    note("w1", '["mail"]')
    with service.schedules() as schedules:
        now = schedules.now()
    with service.sql() as database:
        database.execute("UPDATE psched_workers SET seen = ?", [int(now) - DAY - 60])
    assert asked(*ASKED[0]) == ""


def test_without_a_run_history_nothing_is_known(asked, note, service):
    note("w1", '["mail"]')
    with service.sql() as database:
        database.execute("DROP TABLE psched_workers")
    assert asked(*ASKED[0]) == ""


def test_a_real_worker_records_the_types_of_its_handlers(service):
    service.configure(history="all")
    service.start()
    service.add("t1")
    service.wait_for_finish("t1")
    warned = service.invoke("add", "x", "nosuch", "@daily").stderr
    assert warned.startswith(WARNING)
    assert service.invoke("add", "y", "exec", "@daily", '{"command": ["true"]}').stderr == ""


class Mail(Dispatch):
    routes: ClassVar = {"mail": print, "web": print}


class Patterns(Dispatch):
    routes: ClassVar = {"mail": print, re.compile("^web-"): print}


class Own(Dispatch):
    def find(self, _type):
        return print


def app():
    made = App(url="sqlite:///unused.db")
    made.task("mail")(lambda: None)
    return made


@pytest.mark.parametrize(
    ("dispatch", "types"),
    [
        (None, {"exec", "push"}),
        (Mail(), {"exec", "mail", "push", "web"}),
        (app(), {"exec", "mail", "push"}),
        (Patterns(), None),
        (Own(), None),
    ],
)
def test_the_types_that_have_a_handler(dispatch, types):
    found = handled_types(dispatch)
    assert (None if found is None else {*found}) == types

"""Tests of which messages a process accepts from another process."""

import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest

from psched.config import from_mapping
from psched.core.columns import LATEST_TIME, NAME_LENGTH
from psched.core.definition import LONGEST_CRON, LONGEST_KEY, parse_row
from psched.core.model import Occurrence, Row
from psched.master import messages
from psched.process import link
from psched.runner.messages import (
    FROM_FORK_SERVER,
    FROM_PROGRAM_RUNNER,
    FROM_RUNNER,
    TO_FORK_SERVER,
    TO_RUNNER,
)
from psched.service.worker_boot import service_description

DEEP = json.loads("[" * 500 + "]" * 500)

WEIRD = [
    None, True, False, 0, -1, 1, 2.5, -0.5, 2**63, 10**400, nan, inf, -inf, "", "x", "\0", "\ud800",
    "x" * 10**6, b"", [], [[]], [None], [True] * 10**5, {}, {"": None}, DEEP,
]  # fmt: skip

LOAD = {"slots": 5, "free": 0, "due": 7, "late": 42.5}
TASK = {
    "occurrence": "s1.60", "type": "t", "attempt": 1, "pid": 100, "running_for": 0.5,
    "lease_left": -3.5, "state": "running",
}  # fmt: skip

SETTINGS = {
    "processors": 1, "start_timeout": 60.0, "child_heartbeat_limit": 60.0, "graceful_timeout": 1.0,
    "graceful_kill_limit": 1.0, "log_level": "info", "log_format": "text", "cgroup": "auto",
    "wake": "local",
    "log": None, "pid_file": "/run/é",
    "about": {
        "url": "sqlite://", "table": "psched", "config": "", "programs": "rows", "triggers": "rows",
    },
}  # fmt: skip

ASSIGNMENT = {
    "key": "s1", "type": "t", "scheduled_time": 60, "attempt": 1, "cron": None, "timezone": "UTC",
    "delay": 0, "run_as": None, "owner": "n.1", "fence": 1, "data_limit": 1024,
    "on_return": "finish", "output": "pipe", "result": "explicit",
}  # fmt: skip

MASTER = {
    "pid": 100, "phase": "running", "generation": 1, "uptime": 1.5, "problem": None,
    "worker_deaths": 0, "workers": [], "errors": [], "url": "sqlite://", "table": "psched",
    "programs": "rows may", "triggers": "rows may",
}  # fmt: skip

WORKER = {
    "pid": 101, "number": 0, "generation": 1, "state": "ready", "uptime": 1.5,
    "silent_for": 0.5, "store_away": None, "tasks": [],
}  # fmt: skip

END = {
    "error": None, "exit": [None, None], "used": [1, None], "last": False, "store": True,
    "result": None,
}  # fmt: skip

GOOD = [
    (FROM_RUNNER, {"done": None, **END, "last": True, "store": False}),
    (FROM_RUNNER, {"done": None, **END, "exit": [0, None], "used": [0, 1]}),
    (FROM_RUNNER, {"done": None, **END, "used": None}),
    (FROM_RUNNER, {"done": "ValueError: é", **END, "error": "a\nb\té" * 1000, "exit": [None, 9]}),
    (FROM_RUNNER, {"done": None, **END, "result": '{"rows":"日本"}'}),
    (FROM_RUNNER, {"decide": "finish"}),
    (FROM_RUNNER, {"retry": None, "wait": 0.5}),
    (FROM_RUNNER, {"retry": "asked for", "wait": None}),
    (FROM_RUNNER, {"extend": True}),
    (FROM_RUNNER, {"update_data": True, "data": b"{}"}),
    (TO_RUNNER, {"run": ASSIGNMENT, "data": b"{}"}),
    (TO_RUNNER, {"held": True}),
    (TO_RUNNER, {"unavailable": "away"}),
    (TO_RUNNER, {"unanswered": "the connection broke"}),
    (TO_RUNNER, {"invalid": ["data", "too large"]}),
    (messages.FROM_WORKER, {"ready": None}),
    (messages.FROM_WORKER, {"ready": SETTINGS}),
    (messages.FROM_WORKER, {"looked": True}),
    (messages.FROM_WORKER, {"recovered": ["n"]}),
    (messages.FROM_WORKER, {"tasks": 3, "away": None, "enough": "", **LOAD}),
    (messages.FROM_WORKER, {"report": {"tasks": [TASK], "errors": ["line"]}}),
    (messages.FROM_MASTER, {"go": False}),
    (messages.FROM_MASTER, {"stop": None, "hurry": False}),
    (messages.FROM_MASTER, {"recover": ["n"]}),
    (messages.FROM_MASTER, {"pause": True}),
    (messages.FROM_MASTER, {"reopen": True}),
    (messages.FROM_MASTER, {"report": True}),
    (FROM_FORK_SERVER, {"born": [100], "error": None, "refused": None}),
    (FROM_FORK_SERVER, {"born": [], "error": 11, "refused": None}),
    (FROM_FORK_SERVER, {"ended": [[100, 0, None, 1, 2], [101, None, 9, None, None]]}),
    (TO_FORK_SERVER, {"fork": [0, 1], "programs": True}),
    (FROM_PROGRAM_RUNNER, {"ready": True}),
    (FROM_PROGRAM_RUNNER, {"exited": [3, None, 500, 8000]}),
    (FROM_PROGRAM_RUNNER, {"exited": [None, 9, 0, 0]}),
    (FROM_PROGRAM_RUNNER, {"unstarted": [2, 1]}),
    (TO_FORK_SERVER, {"bury": [100]}),
]


@pytest.mark.parametrize(("accepted", "message"), GOOD)
def test_what_psched_says_is_accepted_and_what_it_says_beside_that_is_ignored(accepted, message):
    assert accepted.fault(message) is None
    assert accepted.fault({**message, "unknown": DEEP}) is None


@pytest.mark.parametrize(("accepted", "message"), GOOD)
def test_each_field_is_needed(accepted, message):
    for name in message:
        assert accepted.fault({n: v for n, v in message.items() if n != name}) is not None


@pytest.mark.parametrize(("accepted", "message"), GOOD)
def test_a_field_that_is_something_else_is_a_fault(accepted, message):
    refused = 0
    for name in message:
        for value in WEIRD:
            fault = accepted.fault({**message, name: value})
            refused += fault is not None
            if fault is not None:
                assert fault == f"the message {next(iter(message))!r} with an impossible {name!r}"
            else:
                # What is accepted is of the field's type, within its bounds, and can be written.
                assert value is None or isinstance(value, (bool, int, float, str, bytes, list))
                assert value not in (10**400, 2**63)
                assert not (isinstance(value, float) and value - value != 0)
                assert value not in ("\0", "\ud800", "x" * 10**6, DEEP)
    assert refused > len(WEIRD) / 2


@pytest.mark.parametrize("name", MASTER)
def test_a_master_tells_all_but_what_it_does_not_know_yet(name):
    assert messages.STATUS.fault(MASTER) is None
    assert messages.STATUS.fault({**MASTER, "pid": 1}) is None  # in a container
    for value in WEIRD:
        if value not in (None, 0, 1, 2.5, "", "x", []):
            assert messages.STATUS.fault({**MASTER, name: value}) is not None, value
    if name not in ("url", "programs", "triggers"):
        without = {each: value for each, value in MASTER.items() if each != name}
        assert messages.STATUS.fault(without) is not None
        # A message with only optional fields lacks the required ones.
        assert messages.STATUS.fault({"url": "sqlite://", "table": "psched"}) is not None
        assert messages.STATUS.fault({"programs": "any"}) is not None


@pytest.mark.parametrize("name", LOAD)
def test_a_master_may_tell_its_load_and_that_of_its_workers(name):
    loaded = {**MASTER, **LOAD, "workers": [{**WORKER, **LOAD}]}
    assert messages.STATUS.fault({**MASTER, "workers": [WORKER]}) is None
    assert messages.STATUS.fault(loaded) is None
    assert messages.STATUS.fault({**loaded, name: -1}) is not None
    assert messages.STATUS.fault({**loaded, "workers": [{**WORKER, **LOAD, name: -1}]}) is not None
    assert messages.STATUS.fault({**loaded, "workers": [{**LOAD}]}) is not None


@pytest.mark.parametrize(
    ("name", "good"), [("claim_age", None), ("claim_age", 1.5), ("waited", 0), ("waited", 301.5)]
)
def test_a_worker_may_tell_whether_it_could_claim_lately(name, good):
    told = {"tasks": 3, "away": None, "enough": "", **LOAD}
    assert messages.FROM_WORKER.fault({**told, name: good}) is None
    assert messages.STATUS.fault({**MASTER, "workers": [{**WORKER, name: good}]}) is None
    for value in -1, nan, "1", True:
        assert messages.FROM_WORKER.fault({**told, name: value}) is not None
        assert messages.STATUS.fault({**MASTER, "workers": [{**WORKER, name: value}]}) is not None


@pytest.mark.parametrize("value", [True, False, -1, 2.0, 2**63, "1", None])
def test_whole_numbers_are_neither_flags_nor_texts(value):
    assert not link.whole()(value)


@pytest.mark.parametrize("value", [True, nan, inf, -inf, -0.1, 1e13, 10**400, "1", None])
def test_numbers_are_finite_and_within_bounds(value):
    assert not link.number()(value)


@pytest.mark.parametrize("message", [None, [], "done", 1, {}, {"unknown": 1}, {"": {}}])
def test_what_is_of_no_kind_is_a_fault(message):
    for accepted in FROM_RUNNER, TO_RUNNER, messages.FROM_WORKER, messages.FROM_MASTER:
        assert accepted.fault(message) is not None


def test_a_message_of_two_kinds_is_checked_as_both():
    both = {"pause": True, "stop": "now", "hurry": False}
    assert messages.FROM_MASTER.fault(both) == "the message 'stop' with an impossible 'stop'"


def test_a_row_with_the_longest_texts_reaches_its_runner_and_the_status():
    settings = from_mapping({"url": "sqlite:///unused.db"})
    row = Row("k" * LONGEST_KEY, "t" * NAME_LENGTH, owner="n.1")
    definition = replace(parse_row(row, settings), cron="x" * LONGEST_CRON)
    run = definition.assignment(row, LATEST_TIME) | {"output": "pipe"}
    told = {"run": run, "data": b"{}"}
    assert TO_RUNNER.fault(told) is None
    occurrence = str(Occurrence(row.key, LATEST_TIME))
    assert messages.TASK({**TASK, "occurrence": occurrence, "type": row.type})


@pytest.mark.parametrize("record", [SETTINGS, ASSIGNMENT, TASK])
def test_each_field_of_a_record_is_checked(record):
    check = {id(SETTINGS): messages.SETTINGS, id(TASK): messages.TASK}.get(id(record))
    if check is None:

        def check(value):
            return TO_RUNNER.fault({"run": value, "data": b""}) is None

    assert check(record)
    for name in record:
        assert not check({n: v for n, v in record.items() if n != name})
        assert sum(check({**record, name: value}) for value in WEIRD) < len(WEIRD) / 2


def test_a_master_can_report_the_path_of_any_configuration():
    for path in "/etc/\udcff.yml", "/etc/\n.yml", "/etc/ü.yml", f"/{'x' * 4000}\udcff":
        settings = replace(from_mapping({"url": "memory:"}), origin=Path(path))
        assert link.brief_text(service_description(settings)["config"])

"""Which hosts run a schedule: the field hosts, its form in a column, and the settings of a host."""

import logging
import socket

import pytest

from psched.base.errors import ConfigError, InvalidError
from psched.config import from_mapping
from psched.core.declare import declare, redeclare
from psched.core.hosts import (
    LOOK_INTERVAL,
    MOST_LANES,
    MOST_PATTERNS,
    hosts_of,
    lane_of,
    serves,
)
from psched.core.model import Row
from psched.core.operations.rescheduled import changes_of
from psched.stores.lanes import Lanes
from psched.testing import ManualClock

SETTINGS = from_mapping({"url": "sqlite:///unused.db"})

FORMS = {
    "db1": ("db1", ["db1"]),
    "DB1.Example.com": ("db1.example.com", ["db1.example.com"]),
    "web*": ("*web*", ["web*"]),
    ("web*", "db1"): ("*db1 web*", ["db1", "web*"]),
    ("db2", "db1", "db2"): ("*db1 db2", ["db1", "db2"]),
    ("db1",): ("db1", ["db1"]),
}


@pytest.mark.parametrize("hosts", FORMS)
def test_one_value_of_hosts_has_one_form_that_tells_it(hosts):
    lane, read = FORMS[hosts]
    assert lane_of(hosts if isinstance(hosts, str) else [*hosts]) == lane
    assert hosts_of(lane) == read


def test_no_hosts_are_every_host():
    assert lane_of(None) is None
    assert hosts_of(None) is None
    assert serves([], None)


@pytest.mark.parametrize(
    "hosts", [[], "", " db1", "a b", ["db1", ""], ["é"], 5, [5], "[ab]", "a,b"]
)
def test_what_is_no_name_of_a_host_is_refused_by_the_name_of_the_field(hosts):
    with pytest.raises(InvalidError) as caught:
        lane_of(hosts)
    assert caught.value.field == "hosts"


def test_a_long_list_is_refused_with_a_way_out():
    with pytest.raises(InvalidError, match="give these hosts a label in common"):
        lane_of([f"host-{i}" for i in range(20)])


@pytest.mark.parametrize(
    ("lane", "names"),
    [
        *[("db1", ["db1"]), ("eu", ["db1", "eu"]), ("*w?b*", ["web"]), ("*db1 eu*", ["x", "eu2"])],
        ("@db1", ["db1", "eu"]),
    ],
)
def test_a_host_serves_its_name_its_labels_and_what_matches_them(lane, names):
    assert serves(names, lane)
    assert not serves(["other"], lane)


@pytest.mark.parametrize(("hosts", "lane"), [(None, "&*"), ("DB1", "&db1"), (["b*", "a"], "&a b*")])
def test_a_template_has_one_form_that_tells_its_hosts_and_no_host_serves_it(hosts, lane):
    assert lane_of(hosts, each_host=True) == lane
    told = hosts_of(lane)
    assert told is None if hosts is None else lane_of(told, each_host=True) == lane
    assert not serves(["db1", "a", "b"], lane)


@pytest.mark.parametrize(
    ("key", "lane", "template"),
    [("k@db1", "@db1", "k"), ("k@db1", "db1", None), ("k@db1", None, None), ("k", "@db1", None)],
)
def test_the_row_of_a_host_tells_its_template(key, lane, template):
    assert Row(key=key, lane=lane).template == template


def test_hosts_are_declared_changed_and_removed_like_other_fields():
    row = declare("k", {"cron": "@daily", "hosts": ["web*", "db1"]}, SETTINGS, lambda: 0.0)
    assert (row.lane, row.hosts) == ("*db1 web*", ["db1", "web*"])
    moved = redeclare(row, {"hosts": "db2"}, SETTINGS, lambda: 0.0)
    assert (moved.lane, moved.next_time, moved.cron) == ("db2", row.next_time, row.cron)
    assert changes_of(row, moved, SETTINGS)["hosts"] == (["db1", "web*"], ["db2"])
    assert redeclare(moved, {"hosts": None}, SETTINGS, lambda: 0.0).lane is None
    assert redeclare(moved, {"delay": 5}, SETTINGS, lambda: 0.0).lane == "db2"


@pytest.mark.parametrize("url", ["dynamodb://eu-west-1", "simpledb://eu-west-1"])
def test_a_store_that_cannot_leave_rows_to_other_hosts_refuses_the_field(url):
    settings = from_mapping({"url": url})
    with pytest.raises(InvalidError, match="runs everything on any host") as caught:
        declare("k", {"hosts": "db1"}, settings, lambda: 0.0)
    assert caught.value.field == "hosts"


def test_a_host_has_the_name_of_the_system_unless_it_is_given_one():
    assert SETTINGS.host_names == (socket.gethostname().lower(),)
    named = SETTINGS.with_settings(host_name="DB1", host_labels=["EU", "db", "db1"])
    assert named.this_host == "db1"
    assert named.host_names == ("db1", "eu", "db")


@pytest.mark.parametrize(
    "wrong", [{"host_name": "web*"}, {"host_labels": ["a b"]}, {"host_labels": [*"abcdefg"]}]
)
def test_a_wrong_name_or_too_many_labels_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SETTINGS.with_settings(**wrong)


def test_a_host_looks_for_its_lanes_now_and_then():
    clock, there = ManualClock(), []
    lanes = Lanes(("db1", "eu"), lambda _after: there.pop(0), clock)
    there[:] = [None, ["*web*", "*d*"]]
    assert lanes.look() == ()
    assert lanes.look() == ()
    clock.sleep(LOOK_INTERVAL)
    assert lanes.look() == ["db1", "@db1", "eu", "*d*"]
    assert there == []


def test_a_look_that_takes_long_is_rare():
    clock, looks = ManualClock(), []

    def slow(_after):
        looks.append(clock.monotonic())
        clock.sleep(2)
        return []

    lanes = Lanes(("db1",), slow, clock)
    for _ in range(450):
        lanes.look()
        clock.sleep(1)
    assert len(looks) == 3
    assert looks[1] - looks[0] >= 200


def test_a_host_finds_its_lanes_among_very_many_of_others():
    """Each look reads some of them; what was found before is served meanwhile."""
    clock = ManualClock()
    others = [f"*a{i:04} b" for i in range(2 * MOST_PATTERNS)]
    there = sorted(["*a0* a", *others, "*db1 db2", "*zz"])
    lanes = Lanes(
        ("db1",), lambda after: [lane for lane in there if lane > after][:MOST_PATTERNS], clock
    )
    for _ in range(3):
        lanes.look()
        clock.sleep(LOOK_INTERVAL)
    assert lanes.served == ["db1", "@db1", "*db1 db2"]
    for _ in range(2):
        assert lanes.look() == ["db1", "@db1", "*db1 db2"]
        clock.sleep(LOOK_INTERVAL)
    there.remove("*db1 db2")
    for _ in range(4):
        lanes.look()
        clock.sleep(LOOK_INTERVAL)
    assert lanes.served == ["db1", "@db1"]


def test_a_host_with_too_many_lanes_says_once_which_it_does_not_serve(caplog):
    clock = ManualClock()
    patterns = [f"*d{'?' * i}*" for i in range(MOST_LANES - 1)]
    lanes = Lanes(("db1" + "x" * 20,), lambda _after: patterns, clock)
    with caplog.at_level(logging.ERROR):
        assert len(lanes.look()) == MOST_LANES
        clock.sleep(LOOK_INTERVAL)
        lanes.look()
    assert len(caplog.messages) == 1
    assert f"runs nothing whose hosts are {patterns[-1][1:]}: " in caplog.messages[0]

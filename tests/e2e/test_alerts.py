"""psched alerts, and how show and why mention alerts; schedules that expect something."""

import json
import re

import pytest
import yaml

from psched.core.alerts.alert import Alert, Delivery, Rule
from support.stores import store_factory

SINCE = 1_700_000_000_000


@pytest.fixture
def store(service, tmp_path):  # noqa: ARG001  # the table is there
    with store_factory(f"sqlite:///{tmp_path}/psched.db") as open_store:
        yield open_store()


def alert(key="k", **fields):
    return Alert(**{"key": key, "rule": Rule.LATE, "since": SINCE, "text": "it is late", **fields})


def shown(service, *arguments):
    """What psched alerts shows as JSON, the newest first."""
    result = service.invoke("alerts", "--json", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_without_an_alert_nothing_is_shown(service):
    result = service.invoke("alerts")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no open alert\n")
    assert service.invoke("alerts", "--all").stderr == "no alert\n"
    assert shown(service) == []


def test_open_alerts_are_listed_and_with_all_those_that_are_over(service, store):
    store.alerts.raise_alerts([alert("a"), alert("b", rule=Rule.LONGEST, text="slow\x1b[31m")])
    store.alerts.raise_alerts([alert("", host="web1", rule=Rule.NO_SLOT, text="5 rows wait")])
    store.alerts.close_alerts([alert("a")], "it has started")
    result = service.invoke("alerts", "--utc")
    heading, *lines = result.stdout.splitlines()
    assert heading.split() == ["SINCE", "(UTC)", "RULE", "KEY", "OPEN", "FOR", "TEXT"]
    assert re.fullmatch(r"2023-11-14 22:13  no_slot  host web1  [\d.]+ m?s +5 rows wait", lines[0])
    assert re.fullmatch(r"2023-11-14 22:13  longest  b  +[\d.]+ m?s +slow\\x1b\[31m", lines[1])
    assert len(lines) == 2
    heading, *lines = service.invoke("alerts", "--all").stdout.splitlines()
    assert "CLOSED" in heading
    assert len(lines) == 3
    assert lines[-1].rstrip().endswith("it is late; over: it has started")


def test_the_options_select_alerts(service, store):
    store.alerts.raise_alerts([alert("a"), alert("b")])
    store.alerts.raise_alerts([alert("a", rule=Rule.SILENT)])
    store.alerts.close_alerts([alert("a")], "over")
    assert [each["rule"] for each in shown(service, "a")] == ["silent"]
    assert [each["rule"] for each in shown(service, "a", "--all")] == ["silent", "late"]
    assert [each["key"] for each in shown(service, "--rule", "late", "--rule", "lost")] == ["b"]
    assert len(shown(service, "--all", "--limit", "2")) == 2
    with service.sql() as database:
        database.execute("update psched_alerts set raised = raised - 7200000 where rule = 'late'")
    assert [each["rule"] for each in shown(service, "--all", "--since", "1h")] == ["silent"]
    assert len(shown(service, "--all", "--since", "9999d")) == 3
    table = service.invoke("alerts", "--limit", "1").stdout.splitlines()
    assert table[-1] == "1 alert; --limit N shows older ones"


def test_the_json_form_is_that_of_the_documentation(service, store):
    store.alerts.raise_alerts(
        [alert(type="t", label="ours", scheduled_time=SINCE // 1000, on_raise=("slack",))]
    )
    (taken,) = store.alerts.take_alerts("monitor", lease=60, limit=1)
    tried = Delivery(tries=1, next_try=SINCE + 500, problem="refused")
    taken = type(taken)(
        **{name: getattr(taken, name) for name in taken.__slots__}
        | {"deliveries": {"raised/slack": tried}, "next_try": SINCE + 500}
    )
    assert store.alerts.note_deliveries(taken)
    (found,) = shown(service)
    assert found.pop("raised") > 1.7e9
    assert found == {
        "key": "k",
        "host": None,
        "rule": "late",
        "since": SINCE / 1000,
        "type": "t",
        "label": "ours",
        "scheduled_time": SINCE // 1000,
        "text": "it is late",
        "closed": None,
        "closed_text": None,
        "on_raise": ["slack"],
        "on_close": [],
        "deliveries": {
            "raised/slack": {
                "tries": 1,
                "next_try": SINCE / 1000 + 0.5,
                "done": False,
                "problem": "refused",
            }
        },
        "next_try": SINCE / 1000 + 0.5,
    }


def test_alerts_can_be_closed_by_hand(service, store):
    store.alerts.raise_alerts([alert("a"), alert("b"), alert("a", rule=Rule.SILENT)])
    assert service.invoke("alerts", "a", "--close", "--rule", "late").stdout == "a: late: closed\n"
    assert service.invoke("alerts", "a", "--close").stdout == "a: silent: closed\n"
    assert service.invoke("alerts", "a", "--close").stderr == "no open alert\n"
    assert [each["key"] for each in shown(service)] == ["b"]
    assert re.match(r"closed by \S+@\S+$", shown(service, "a", "--all")[0]["closed_text"])
    with service.schedules() as schedules:
        audited = [(each.action, each.key, each.after) for each in schedules.audit()]
    assert audited == [
        ("acknowledge", "a", '{"rules":"silent"}'),
        ("acknowledge", "a", '{"rules":"late"}'),
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--close"], "--close needs a KEY"),
        (["k", "--close", "--all"], "--close goes only with KEY and --rule"),
        (["--rule", "slow"], "'slow' is not one of"),
    ],
)
def test_options_that_contradict_each_other_are_refused(service, arguments, text):
    result = service.invoke("alerts", *arguments)
    assert result.exit_code == 2
    assert text in result.stderr


def test_a_wrong_time_is_refused(service):
    refused = service.invoke("alerts", "--since", "soon")
    assert (refused.exit_code, "neither an age" in refused.stderr) == (1, True)


def test_without_the_table_the_fix_is_told(service):
    with service.sql() as database:
        database.execute("drop table psched_alerts")
        database.execute("delete from psched_info where name = 'alerts_version'")
    service.add("k", "t", cron="@daily")
    result = service.invoke("alerts")
    assert result.exit_code == 1
    assert "psched init" in result.stderr
    for command in "show", "why":
        told = service.invoke(command, "k")
        assert (told.stderr, "alert" in told.stdout) == ("", False)


@pytest.mark.monitor
def test_show_and_why_mention_what_is_expected_and_what_is_open(service, store):
    service.configure(expect={"silent": "2d", "longest": "90m"})
    service.add("k", "t", cron="@daily", expect={"late": "5m", "unusual": 2.5, "longest": "off"})
    store.alerts.raise_alerts([alert()])
    lines = service.invoke("show", "k").stdout.splitlines()
    (expected,) = (line for line in lines if line.startswith("expect:"))
    assert expected.split(maxsplit=1)[1] == "silent 2d, late 5m, unusual 2.5"
    (told,) = (line for line in lines if line.startswith("alert:"))
    assert re.fullmatch(r"alert: late, raised at 20\S+ \S+ \S+: it is late", told)
    found = json.loads(service.invoke("show", "k", "--json").stdout)
    assert found["expect"] == {"late": 300, "longest": None, "silent": 172_800, "unusual": 2.5}
    assert [each["rule"] for each in found["alerts"]] == ["late"]
    *_, last = service.invoke("why", "k").stdout.splitlines()
    assert last.startswith("An alert is open: late, raised at ")
    for options, name in ((["--utc"], "UTC"), (["--zone", "Asia/Tokyo"], "JST")):
        *_, last = service.invoke("why", "k", *options).stdout.splitlines()
        assert last.endswith(f" {name}: it is late")
    store.alerts.close_alerts([alert()], "over")
    assert "alert" not in service.invoke("show", "k").stdout
    assert "alert" not in service.invoke("why", "k").stdout


def test_a_file_declares_what_is_expected(service, tmp_path):
    file = tmp_path / "schedules.yml"
    content = {"label": "x", "schedules": {"k": {"cron": "@daily", "expect": {"late": "5m"}}}}
    file.write_text(yaml.safe_dump(content))
    assert service.invoke("apply", str(file)).exit_code == 0
    assert service.invoke("apply", str(file), "--dry-run").exit_code == 0
    exported = yaml.safe_load(service.invoke("export", "-").stdout)
    assert exported["schedules"]["k"]["expect"] == {"late": 300}
    content["schedules"]["k"]["expect"] = {"late": 300, "silent": False}
    file.write_text(yaml.safe_dump(content))
    assert "expect" in service.invoke("apply", str(file)).stdout
    row = service.row("k").row
    assert (row.label, row.options.decode()) == ("x", '{"expect":{"late":300,"silent":"off"}}')
    content["schedules"]["k"]["expect"] = {"late": "soon"}
    file.write_text(yaml.safe_dump(content))
    refused = service.invoke("apply", str(file))
    assert refused.exit_code != 0
    assert "k: expect: late: must be a number of seconds above 0" in refused.stderr
    assert service.invoke("edit", "k", "--unset", "expect").exit_code == 0
    row = service.row("k").row
    assert (row.label, row.options) == ("x", None)
